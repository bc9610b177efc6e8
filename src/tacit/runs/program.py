"""How does a program do what ``tacit train`` does? :func:`run`: the same folder, files, charge and bytes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit import accounting as acc
from tacit.ledger import OperatorView, Release
from tacit.report import read_card
from tacit.runs.folder import Published, RunFolder, carry_out
from tacit.runs.models import build
from tacit.runs.progress import Told
from tacit.runs.read import Form, Tables, is_known, schema_of
from tacit.runs.settings import IN_MEMORY, SCHEMA, Settings, SettingsError, check_keys, make, read, saved
from tacit.runs.train import TrainRun, absolute
from tacit.schema import Schema
from tacit.sgd.training.plan import size_in_words


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """A run that has ended, in its folder. All but ``views`` may be published.

    ``views`` is what only the operator may see: evaluations on rows that were not declared public.
    """

    folder: Path
    told: dict[str, Any]
    views: tuple[OperatorView, ...] = ()

    @functools.cached_property
    def settings(self) -> Settings:
        """What was set, as it is kept in the folder."""
        return saved(self.folder)

    @functools.cached_property
    def card(self) -> Release:
        """The privacy card, every value with its source."""
        return read_card(self.folder / "privacy.json")

    @property
    def report(self) -> Path:
        """The page to show."""
        return self.folder / "report.html"

    @functools.cached_property
    def model(self) -> nn.Module:
        """The trained model on the CPU, in evaluation mode."""
        found = build(self.settings.model, Form.of(schema_of(self.settings)))
        found.load_state_dict(torch.load(self.folder / "model.pt", weights_only=True))
        return found.eval()

    @functools.cached_property
    def privacy(self) -> acc.Privacy:
        """What the run promises, as its card states it."""
        guarantee, mechanism = self.card["guarantee"], self.card["mechanism"]
        epsilon = guarantee["epsilon"]
        interval = acc.Bound(
            float(epsilon["lower"]),
            float(epsilon["upper"]),
            tight=epsilon["tight"],
            given=guarantee["delta"],
            adjacency=guarantee["adjacency"],
            unit=guarantee["unit"],
        )
        parameters, names = mechanism["parameters"], ("steps_planned", "steps_executed", "basis", "sampler")
        details = {name: mechanism[name] for name in names} | {
            "size": size_in_words(guarantee["unit"], given="size" in parameters),
            "noise": mechanism["noise_generator"],
            "max_rows": rows if (rows := parameters.get("records_per_unit", 1)) > 1 else None,
        }
        return acc.Privacy(interval, acc.from_dict(mechanism["description"]), details)

    @property
    def results(self) -> list[dict[str, Any]]:
        """What the models of the run are worth on public rows, by model and subgroup."""
        return list(self.told["results"])

    @property
    def metrics(self) -> dict[str, float]:
        """The same of the private model on all public rows, by the name of the measure."""
        return {r["metric"]: r["value"] for r in self.results if r["model"] == "private" and not r["group"]}

    @property
    def claim(self) -> str:
        """The guarantee in a line: ε, δ and the neighbours."""
        epsilon = self.told["epsilon"]
        shown = f"{epsilon:.10g}" if isinstance(epsilon, float) else "∞"
        return f"ε = {shown} at δ = {self.told['delta']:g}, {self.told['neighbours']}"

    def __repr__(self) -> str:
        lines = [f"{self.folder}: {self.claim}", *(f"  {name}: {value:.4g}" for name, value in self.metrics.items())]
        if self.views:
            lines.append(f"  for the operator only: .views, and {self.folder / 'private' / 'operator.jsonl'}")
        return "\n".join([*lines, f"  report: {self.report}"])


def run(
    data: Any = None,
    *,
    name: str | None = None,
    runs: str | Path = "runs",
    resume: bool | str | Path = False,
    config: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> RunResult:
    """Train a model with a guarantee; write the privacy card and the report. What ``tacit train`` does, in a program.

    ``data`` is a file, the name of a known data set, or a table in memory (a data frame, a mapping of columns, a
    structured array) with a ``schema``, as a file or a :class:`tacit.Schema`. ``settings`` are the options of the
    command under their names, with ``_`` for ``-``, and its defaults; ``model`` may also be a function that can be
    imported. ``config`` is a TOML file of settings; what is given here wins. The run lives in ``runs/NAME``.

    ``resume=True`` goes on with the run ``name``, ``resume=folder`` with that one: the same model, the same claim, one
    charge. Settings that are given then must be those of the run; a table in memory must be given again. A run that
    has ended is left as it is, and its result is returned.

    On a terminal there is a live line, elsewhere one line at the end, with ``quiet`` neither. Mistakes are raised:
    :class:`tacit.runs.settings.SettingsError` names the setting, :class:`tacit.ledger.BudgetExceeded` what would fit.

    Guarantee: (ε, δ) of the card, for its unit and neighbours, for everything in the folder but ``private/``, and for
    the result but its ``views``.
    """
    place = RunFolder(Path(runs), name, _resumed(resume, Path(runs), name))
    given, tables = _given(data, settings)
    if place.resume is not None:
        chosen = saved(place.resume, given.get("ledger"))
        _check_same(chosen, (read(config) if config is not None else {}) | given)
    else:
        base = read(config) if config is not None else {}
        chosen = make(base | given, str(config) if config is not None else "")
    progress = Told(quiet=quiet, every_tenth=False)
    done = carry_out(TrainRun(chosen, tables), place, progress)
    result = _result(done)
    if not quiet:
        sys.stderr.write(f"tacit: {result.folder}: {result.claim}; report: {result.report}\n")
    return result


def _result(done: Published) -> RunResult:
    return RunResult(done.folder, done.told, tuple(done.views))


def _resumed(resume: bool | str | Path, runs: Path, name: str | None) -> Path | None:
    """The folder of the run to go on with."""
    if isinstance(resume, str | Path):
        return Path(resume)
    if resume and name is None:
        raise SettingsError("resume: say which run: resume=True with its name, or resume=folder")
    return runs / name if resume and name is not None else None


def _given(data: Any, settings: dict[str, Any]) -> tuple[dict[str, Any], Tables]:
    """Settings as texts and numbers, and what stands beside them in memory."""
    check_keys(settings)
    found = {key: value for key, value in (settings | {"data": data}).items() if value is not None}
    memory: dict[str, Any] = {}
    for key in ("data", "evaluate"):
        if key in found and not isinstance(found[key], str | Path):
            memory[key], found[key] = found[key], IN_MEMORY
    if isinstance(found.get("schema"), Schema):
        if is_known(str(found.get("data", ""))):
            raise SettingsError(f"schema: the known data set {found['data']} has its own; leave this out")
        memory["schema"], found["schema"] = found["schema"], SCHEMA
    if "data" in memory and "schema" not in found:
        raise SettingsError("schema: a table in memory needs a schema: public bounds, categories, target and unit")
    if "model" in found and not isinstance(found["model"], str):
        found["model"] = _importable(found["model"])
    return {key: str(value) if isinstance(value, Path) else value for key, value in found.items()}, Tables(**memory)


def _importable(model: Any) -> str:
    """A factory by the name under which a run that goes on finds it again."""
    module, name = getattr(model, "__module__", None), getattr(model, "__qualname__", None)
    found = None if module in (None, "__main__") else getattr(sys.modules.get(module), str(name), None)
    if found is model and callable(model):
        return f"{module}:{name}"
    raise SettingsError(
        "model: linear, mlp, cnn, or a function of a module, called with the numbers of inputs and outputs; a run that "
        "goes on makes its model anew, so a model that is made already, or a function of this program alone, will not "
        "do. Your own model in your own loop: tacit.sgd.Training"
    )


def _check_same(chosen: Settings, given: dict[str, Any]) -> None:
    """A run goes on as it was."""
    asked = absolute(dataclasses.replace(chosen, **{k: v for k, v in given.items() if k != "ledger"}))
    compared = [key for key in given if key != "ledger" and given[key] != SCHEMA]
    for key in compared:
        if getattr(asked, key) != getattr(chosen, key):
            was = getattr(chosen, key)
            raise SettingsError(f"{key}: a run is resumed as it was, with {key} = {was!r}, not {getattr(asked, key)!r}")


def _with_options(function: Callable[..., RunResult]) -> inspect.Signature:
    """The signature with every setting and its default, for help() and notebooks."""
    own = list(inspect.signature(function).parameters.values())[:-1]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in dataclasses.fields(Settings)
        if field.name != "data"
    ]
    return inspect.Signature([*own, *options], return_annotation=RunResult)


run.__signature__ = _with_options(run)  # type: ignore[attr-defined]
