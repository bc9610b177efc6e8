"""How are hyper-parameters chosen privately, at one charge, with one model and a card that says so? ``tacit tune``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.accounting.base import owner_numbers
from tacit.cluster import Ray
from tacit.ledger import BudgetExceeded, OperatorView
from tacit.report import Run, Statement, columns_of
from tacit.runs import publish
from tacit.runs.evaluate import evaluate, predict, public_sources
from tacit.runs.folder import taken_back
from tacit.runs.journal import Journal
from tacit.runs.models import build, loss_for
from tacit.runs.progress import Reporter
from tacit.runs.read import TableRecords
from tacit.runs.read import read as read_records
from tacit.runs.settings import CONFIG, Settings, SettingsError, check_keys, make, parsed
from tacit.runs.train import absolute, check_device, open_ledger, optimizer_for, schema_words
from tacit.schema.toml import toml_value
from tacit.sgd import Training
from tacit.tuning import LogUniform, PrivateSearch, SearchResult, Space, Uniform, bounded_loss, correct_count

#: What a candidate may set.
TUNABLE = ("learning_rate", "clip_norm", "batch", "epochs", "steps", "momentum", "optimizer", "model")
#: The keys of [search] with their usual values.
SEARCH: dict[str, Any] = {
    "method": "geometric",
    "runs": None,
    "eta": 1.0,
    "threshold": None,
    "choice_epsilon": None,
    "score_noise": 20.0,
    "validation_every": 10,
    "workers": 1,
    "backend": "local",
    "num_cpus": 1,
    "num_gpus": 0,
}
#: What the search keeps on its way, in the private part of the folder.
SCRATCH = "search"


@dataclasses.dataclass(frozen=True, eq=False)
class SearchRun:
    """A search over training runs: what they share, what is chosen from, and how."""

    settings: Settings
    space: dict[str, Any]
    search: dict[str, Any]
    config = CONFIG
    keyed = True

    @property
    def ledger(self) -> str | None:
        """The ledger that is charged."""
        return self.settings.ledger

    @property
    def stem(self) -> str:
        """The data's name."""
        return Path(self.settings.data).stem

    def files(self) -> dict[str, str]:
        """The configuration with absolute paths, in a form that :func:`read` takes back."""
        return {CONFIG: self.to_toml()}

    def check(self, journal: Journal) -> None:
        """Every search can go on."""

    def read(self) -> TableRecords:
        """The records, after a look at the device: the price is of a model that is made here, with a cluster too."""
        check_device(self.settings.device)
        return read_records(self.settings)

    def make(self, journal: Journal, data: TableRecords, progress: Reporter) -> list[OperatorView]:
        """Search, then decide on what was selected."""

        def spent(error: Exception) -> bool:  # the charge is the first that a search does after its first state
            return not isinstance(error, BudgetExceeded) and (journal.private / SCRATCH / "state").exists()

        with taken_back(journal, spent):
            search = self.over(data, journal.private, journal.secret("rows")[:16])
            search.progress = False if progress.quiet else None
            with contextlib.redirect_stdout(sys.stderr):  # Ray tells of lost workers on standard output
                found = search.select()
            self.release(journal, data, search, found)
        return []

    def planned(self) -> dict[str, Any]:
        """Price and noise of the search; nothing is trained, charged or written."""
        search = self.over(self.read(), Path("private"), os.urandom(16))
        privacy = search.privacy
        return {
            "epsilon": privacy.upper,
            "delta": privacy.delta,
            "neighbours": privacy.interval.terms,
            "basis": privacy.details["method"],
            "noise": [search.noise_of(c) for c in search.space.candidates] if search.space.candidates else search.noise,
        }

    def over(self, records: TableRecords, private: Path, key: bytes) -> PrivateSearch:
        """The search over training runs, with ``key`` for the coins that part the rows."""
        settings, search = self.settings, self.search
        every = search["validation_every"]
        if isinstance(every, bool) or not isinstance(every, int) or every < 2:
            raise SettingsError(f"[search] validation_every: a whole number, 2 or more, not {every!r}")
        (x, y, owners), (score_x, score_y, scored) = parted(records, every, key)
        whole = int(owner_numbers(records.owners).max()) + 1
        # How the coins fell is private: the size that is used is the expected one.
        size = settings.size or max(1, round(whole * (1 - 1 / every)))
        unit, classes = records.schema.unit.name, bool(records.schema.classes)

        def train(candidate: dict[str, Any], noise: float) -> Training:
            chosen = with_candidate(settings, candidate)
            model = build(chosen.model, records.form).to(chosen.device)
            return Training(
                model,
                optimizer_for(chosen, model),
                loss_for(records.schema),
                (x, y),
                batch_size=chosen.batch,
                epochs=chosen.epochs,
                steps=chosen.steps,
                noise_multiplier=noise,
                delta=chosen.delta,
                clip_norm=chosen.clip_norm,
                sampler=chosen.sampler,
                adjacency=chosen.adjacency,
                size=size,
                unit=unit,
                groups=owners,
                max_rows=chosen.max_rows,
                draw=chosen.draw,
            )

        def answers(model: Any, inputs: Any) -> Any:
            return predict(model, inputs, records.schema).numpy().astype(score_y.numpy().dtype)

        noise = search["score_noise"]
        if classes:
            score = correct_count(score_x, score_y.numpy(), noise=noise, predict=answers, groups=scored, unit=unit)
        else:
            # Both lie in [-1, 1] on the encoded scale, so that a quarter of the squared error lies in [0, 1].
            def losses(model: Any) -> Any:
                return (predict(model, score_x, records.schema) - score_y).double().square().numpy() / 4

            score = bounded_loss(losses, noise=noise, groups=scored, unit=unit)
        where = search["backend"]
        if where == "ray":
            where = Ray(num_cpus=search["num_cpus"], num_gpus=search["num_gpus"])
        threshold = search["threshold"]
        if threshold is not None:  # given as accuracy (or minus the mean loss) on the expected number of rows
            threshold = float(threshold) * (settings.size or whole) / every
        first = train({}, 1.0) if settings.adjacency is None else None
        return PrivateSearch(
            _space(self.space, settings),
            train,
            score,
            method=search["method"],
            epsilon=settings.epsilon,  # type: ignore[arg-type]
            delta=settings.delta,  # type: ignore[arg-type]
            runs=search["runs"],
            eta=search["eta"],
            threshold=threshold,
            choice_epsilon=search["choice_epsilon"],
            adjacency=settings.adjacency or (first.plan.adjacency if first is not None else "add-remove"),
            ledger=open_ledger(settings, records),
            source=records.source,
            dataset=settings.dataset,
            purpose=settings.purpose if settings.purpose != "private training" else "private tuning",
            workers=search["workers"],
            backend=where,
            scratch=private / SCRATCH,
        )

    def release(self, journal: Journal, records: TableRecords, search: PrivateSearch, found: SearchResult) -> None:
        """Model, card and report of the selected run, decided; where nothing was selected, card and report alone."""
        settings, stage = self.settings, journal.stage()
        results: tuple[Any, ...] = ()
        model_file, charge = None, found.charge
        basis = "nothing was selected, as the law of the runs allows"
        noises = sorted(set(search.noises))
        parameters: dict[str, Any] = {
            "candidates": dict(self.space),
            "runs_on_average": search.runs,
            "noise_multiplier": noises[0] if len(noises) == 1 else noises,
            "score_noise": search.score.noise,
        }
        if found.best is not None:
            chosen = with_candidate(settings, found.best)
            # A fresh model with the trained weights: buffers that a forward pass may have written stay behind.
            fresh = build(chosen.model, records.form)
            weights = {name: value.detach().cpu() for name, value in found.model.named_parameters()}
            fresh.load_state_dict(weights, strict=False)
            content = publish.save_weights(stage / "model.pt", fresh.state_dict())
            model_file = publish.vouched(content, search.dataset, charge.number if charge is not None else None)
            results = tuple(evaluate(chosen, records, fresh)[0]) if settings.public_because else ()
            listed = ", ".join(f"{key} = {value}" for key, value in found.best.items())
            basis = f"selected, and covered by the guarantee: {listed}"
        fields, counted = found.for_card(), settings.size is None
        if counted and fields["adjacency"] == "add-remove":  # as for a training run: the number of records is shown
            fields |= {"adjacency": "zero-out", "epsilon": None}
        described = Run(
            journal.folder.name,
            fields.pop("mechanism"),
            **fields,
            purpose=search.purpose,
            parameters=parameters,
            basis=basis,
            sampler=f"{settings.sampler}, in every run",
            generator="training: ChaCha12, keyed; "
            + ("score: exact, from ChaCha12 under a secret of each run; " if search.cluster is not None else "score, ")
            + "number of runs and choice: exact, from the operating system",
            uncovered=settings.uncovered,
            records_public=counted,
            public_sources=public_sources(settings, records),
            assumed=records.assumed,
            pretrained=None if ":" in settings.model else (),
            data=records.name,
            schema=schema_words(settings, records),
            columns=columns_of(records.schema),
            ledger=search.ledger,
            dataset=search.dataset,
            charge=charge.number if charge is not None else None,
            model_file=model_file,
            evaluations=results,
            statement=Statement(settings.trust_model, settings.release, settings.contact),
        )
        card = publish.stage(journal, described)
        files = publish.SHOWN | ({} if found.best is None else {"model": "model.pt"})
        told = {"tuning": card["accesses"]["tuning_words"], "best": found.best, "score": found.score, "model": None}
        journal.decide(publish.summary(card) | told | {"files": files}, scratch=[SCRATCH])

    def to_toml(self) -> str:
        """The configuration with absolute paths, in a form that :func:`read` takes back."""
        left_out = ("tuning", *self.space)
        text = absolute(self.settings).to_toml()
        lines = [line for line in text.splitlines() if line.partition(" = ")[0] not in left_out]
        lines += ["", "[space]"]
        for key, values in self.space.items():
            if isinstance(values, dict):
                inner = ", ".join(f"{k} = {toml_value(v)}" for k, v in values.items())
                lines.append(f"{key} = {{ {inner} }}")
            else:
                lines.append(f"{key} = {toml_value(values)}")
        found = {key: value for key, value in self.search.items() if value is not None}
        lines += ["", "[search]", *(f"{key} = {toml_value(value)}" for key, value in found.items())]
        return "\n".join(lines) + "\n"


def read(path: Path, given: dict[str, Any] | None = None) -> SearchRun:
    """A search from one file: settings, the space and how it is searched; mistakes are named by their key."""
    found = parsed(path)
    space, search = found.pop("space", None), found.pop("search", {})
    _check_tables(path, space, search)
    check_keys(found, str(path))
    found |= {key: value for key, value in (given or {}).items() if value is not None}
    if "epsilon" not in found:
        raise SettingsError(f"{path}: epsilon: the budget of the whole search; the noise follows from it")
    if "tuning" in found:
        raise SettingsError(f"{path}: tuning: a search is charged, and its card says so; leave this out")
    if "audit_canaries" in found:
        raise SettingsError(
            f"{path}: audit_canaries: a search plants none; leave this out, and plant them in a run of its own: tacit "
            "train --audit-canaries"
        )
    first = {key: values[0] for key, values in space.items() if isinstance(values, list) and values}
    settings = make({**found, **first, "tuning": "charged"}, str(path))
    return SearchRun(settings, space, SEARCH | search)


def _check_tables(path: Path, space: Any, search: Any) -> None:
    if not isinstance(space, dict) or not space:
        raise SettingsError(f"{path}: [space] says what to choose from, such as learning_rate = [0.1, 1.0]")
    if not isinstance(search, dict):
        raise SettingsError(f"{path}: [search] is a table")
    for key in space:
        if key not in TUNABLE:
            raise SettingsError(f"{path}: [space] {key}: what can be chosen is {', '.join(TUNABLE)}")
    for key in search:
        if key not in SEARCH:
            raise SettingsError(f"{path}: [search] {key}: the keys are {', '.join(SEARCH)}")


def _space(space: dict[str, Any], settings: Settings) -> Any:
    """Lists as they are, tables with low and high as distributions; every candidate of a grid is checked now."""
    made: dict[str, Any] = {}
    for key, values in space.items():
        if isinstance(values, dict):
            if not {"low", "high"} <= set(values) <= {"low", "high", "log"}:
                raise SettingsError(f"[space] {key}: a range has low, high and, optionally, log = true")
            kind = LogUniform if values.get("log", False) else Uniform
            made[key] = kind(float(values["low"]), float(values["high"]))
        else:
            made[key] = values
    found = Space(made)
    for candidate in found.candidates or (found.draw(),):
        with_candidate(settings, candidate)
    return found


def with_candidate(settings: Settings, candidate: dict[str, Any]) -> Settings:
    """The settings of one candidate; epochs and steps take each other's place."""
    changes = dict(candidate)
    if "epochs" in changes:
        changes["steps"] = None
    elif "steps" in changes:
        changes["epochs"] = None
    return dataclasses.replace(settings, **changes)


def parted(records: TableRecords, every: int, key: bytes) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Rows with their owners, to train on and to score on, apart by a coin for every unit of privacy.

    The coins are secret and independent of each other and of the data, so that a record more or fewer changes nothing
    about the others; rows taken by their position would not have that property.
    """
    owner = owner_numbers(records.owners)
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big")))
    held = (generator.random(int(owner.max()) + 1) < 1 / every)[owner]
    train, score = (
        (records.x[side], records.y[side], owner[side.numpy()]) for side in map(torch.from_numpy, (~held, held))
    )
    return train, score
