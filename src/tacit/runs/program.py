"""How does a program do what ``tacit train`` does? With :func:`run`: the same folder, files, charge and bytes."""

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
from tacit.report.words import UNREACHED
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
    """A run that has ended, in its folder. Everything except ``views`` may be published.

    Args:
        folder: The folder of the run.
        told: What ``tacit train --json`` prints.
        views: What only the operator may see: evaluations on rows that were not declared public.
    """

    folder: Path
    told: dict[str, Any]
    views: tuple[OperatorView, ...] = ()

    @functools.cached_property
    def settings(self) -> Settings:
        """The settings, as the folder keeps them."""
        return saved(self.folder)

    @functools.cached_property
    def card(self) -> Release:
        """The privacy card, every value with its source."""
        return read_card(self.folder / "privacy.json")

    @property
    def report(self) -> Path:
        """The path of the report."""
        return self.folder / "report.html"

    @functools.cached_property
    def model(self) -> nn.Module:
        """The trained model on the CPU, in evaluation mode."""
        found = build(self.settings.model, Form.of(schema_of(self.settings)))
        found.load_state_dict(torch.load(self.folder / "model.pt", weights_only=True))
        return found.eval()

    @functools.cached_property
    def privacy(self) -> acc.Privacy:
        """What the run guarantees, as its card states it."""
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
        assumed = self.card["accountant"]["assumptions"]
        details = {name: mechanism[name] for name in names} | {
            "size": size_in_words(
                "row" if self.settings.draw == "rows" else guarantee["unit"], given="size" in parameters
            ),
            "noise": mechanism["noise_generator"],
            "max_rows": rows if (rows := parameters.get("kept", parameters.get("records_per_unit", 1))) > 1 else None,
            "probes": next((a[len(UNREACHED) : -1] for a in assumed if a.startswith(UNREACHED)), None),
        }
        return acc.Privacy(interval, acc.from_dict(mechanism["description"]), details)

    @property
    def results(self) -> list[dict[str, Any]]:
        """Results on public rows, by model and subgroup."""
        return list(self.told["results"])

    @property
    def metrics(self) -> dict[str, float]:
        """Results of the private model on all public rows, by metric."""
        return {r["metric"]: r["value"] for r in self.results if r["model"] == "private" and not r["group"]}

    @property
    def claim(self) -> str:
        """The guarantee in one line: ε, δ and the neighbours."""
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
    """Train a model with a guarantee, and write the privacy card and the report: ``tacit train`` from Python.

    On a terminal a live line shows the progress; elsewhere one line is written at the end.

    Guarantee:
        The (ε, δ) on the card, for its unit and neighbours, holds for everything in the folder except ``private/``,
        and for everything in the result except its ``views``.

    Args:
        data: A .csv or .parquet file, the name of a known data set (``tacit data list``), or a table in memory: a data
            frame, a mapping of columns or a structured array, with ``schema``.
        name: The name of the run. None names it after the data, with the first free number.
        runs: The folder that holds the folders of all runs.
        resume: True continues the run ``name``; a path continues the run in that folder. The model, the claim and the
            charge stay the same. Settings that are given must be those of the run, and a table in memory must be given
            again. If the run has ended, nothing is changed and its result is returned.
        config: A TOML file of settings. Arguments given here override it.
        quiet: Whether to write no progress.
        schema: The public schema of your table: a TOML file or a :class:`tacit.Schema`. A known data set has its own.
        data_dir: The folder of the known data sets; None searches the usual places (``tacit data where``).
        target: The column to predict, in place of the schema's target, which becomes a feature: yes/no or categories
            for a classification, a number for a regression. The choice is public. None keeps the schema's target.
        without: Columns that are left out, such as those that follow from the answer.
        model: ``"linear"``, ``"mlp"``, ``"cnn"`` (for pictures), or a function that can be imported (itself, or
            ``"module:factory"``). It is called with the numbers of inputs and outputs.
        epsilon: The ε to keep. Give this or ``noise``.
        noise: The noise multiplier. Give this or ``epsilon``.
        correlated: ``"banded"`` or ``"banded-inverse"`` (with ``:8`` for 8 bands): noise that takes back noise of
            earlier steps. None gives independent noise.
        delta: The δ of (ε, δ), well below 1 / number of records, such as 1e-6. Required.
        epochs: Passes over the data. Give this or ``steps``.
        steps: The number of steps. Give this or ``epochs``.
        batch: The expected number of units in a batch.
        learning_rate: The learning rate. None takes that of the optimizer in ``tacit.runs.settings.RATES``: 0.5 for
            ``"sgd"``, 0.01 for ``"adam"`` and ``"rmsprop"``.
        optimizer: An optimizer of ``torch.optim`` in lower case, such as ``"sgd"``, ``"adam"``, ``"adamw"``,
            ``"rmsprop"`` or ``"adagrad"``; not ``"lbfgs"``, ``"sparseadam"`` or ``"muon"``.
        momentum: The momentum of ``"sgd"``, from 0 to below 1. The others have torch's own defaults.
        clip_norm: The L2 norm to which the gradient of each unit is clipped.
        sampler: How batches are drawn: ``"poisson"``, ``"truncated"``, ``"fixed"``, ``"shuffle"``, ``"chunks"`` or
            ``"balls-in-bins"``.
        adjacency: What a neighbour is: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``. None takes the sampler's.
        size: A public number of units to price with, in place of the true one. Without it the number is counted and
            treated as public.
        max_rows: How many rows of one unit a step may use, or with ``draw="rows"`` the run.
        draw: ``"units"`` draws units for a step and averages their rows. ``"rows"`` draws rows, of which a unit has
            ``max_rows`` at most; then the column of ids may hold lists, for rows with several owners.
        ledger: The ledger to charge: a file, ``postgresql://…`` or ``https://…``. None charges nothing.
        dataset: The name of the data in the ledger.
        plan: The schedule whose next run this is (``tacit ledger plan``). It pays; None charges the run itself.
        evaluate: A file, a split of a known data set, or a table to evaluate on.
        public_share: About this share of the units, chosen by a hash, is set apart as public and evaluated on.
        public_because: Why the evaluation rows need no protection. Without it results stay with the operator.
        public_overlap: Whether the protected people may be in those rows too, for the card: ``"yes"``, ``"no"`` or
            ``"unknown"``. The sides of ``public_share`` are known not to share a unit that has an id.
        by: Columns with categories by which results are shown too.
        reference: Whether to train a non-private reference on the public rows.
        tuning: How hyper-parameters were chosen, for the card: ``"none"``, ``"charged"``,
            ``"on public data only"``, ``"not charged"`` or ``"not stated"``.
        tuning_note: A sentence about that, for the card.
        uncovered: What else was released about the data that ε does not cover, for the card. None means not stated.
        purpose: What the run is for. The card and the ledger show it.
        trust_model: Who is trusted with the data, for the card.
        release: What is released and to whom, for the card.
        contact: Whom to ask, for the card.
        checkpoint_every: Steps between two checkpoints; None means 50.
        audit_canaries: How many canaries to plant, from which ``tacit audit`` proves a lower bound on ε. Such a run
            is not resumed.
        device: The torch device, such as ``"cpu"`` or ``"cuda"``.
        compile: True compiles the step at the start, False never; None (default) does it when that pays.

    Returns:
        The run, with its ``folder``, ``model``, ``privacy``, ``metrics``, ``card`` and ``report``.

    Raises:
        SettingsError: If a setting is wrong; the message names it.
        BudgetExceeded: If the ledger refuses the charge, with what would still fit.
        NameTaken: If a run of this name exists.

    Example:
        ``examples/run_in_python.py`` trains on a table in memory and reads the result.
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
    """The folder of the run to continue."""
    if isinstance(resume, str | Path):
        return Path(resume)
    if resume and name is None:
        raise SettingsError("resume: which run? Give resume=True with its name, or resume=folder")
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
        "model: give 'linear', 'mlp', 'cnn' or a function that can be imported, which is called with the numbers of "
        "inputs and outputs. A resumed run builds its model again, so a model object, or a function of this script, "
        "will not do. For your own model in your own loop use tacit.sgd.Training"
    )


def _check_same(chosen: Settings, given: dict[str, Any]) -> None:
    """A run continues with the settings it had."""
    asked = absolute(dataclasses.replace(chosen, **{k: v for k, v in given.items() if k != "ledger"}))
    compared = [key for key in given if key != "ledger" and given[key] != SCHEMA]
    for key in compared:
        if getattr(asked, key) != getattr(chosen, key):
            was = getattr(chosen, key)
            raise SettingsError(
                f"{key}: a resumed run keeps its settings: {key} = {was!r}, not {getattr(asked, key)!r}"
            )


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
