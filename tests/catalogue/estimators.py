"""Everything public that takes private data: what it releases on neighbours, held against what it charges.

An entry runs its class or function on neighbouring data sets with the noise watched (:mod:`tests.catalogue.seam`).
:func:`problems` says where a release was made before its charge, cost more than was charged, or did not pass the noise.
What is public in these rooms and takes no private data, or hands it to something that is listed, says so with a reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_ndtr, ndtr
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tacit import accounting as acc
from tacit import additive, linear_model, opacus, pate, sgd, tuning
from tacit.ledger import Ledger
from tacit.noise.entropy import expanded
from tests.catalogue.seam import Moved, Watched, alike, moved, watched

DELTA = 1e-5
#: Every draw that the data do not enter (who takes part, how many runs) is the same for neighbours.
DRAWS = bytes(range(32))


@dataclasses.dataclass(frozen=True)
class Released:
    """What a run gave out, and the mechanism that it says it was."""

    values: Any
    #: what it says it costs: an (ε, δ), or where it leaves that to others the mechanism
    stated: acc.Privacy | acc.Mechanism


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """Two data sets that differ by one record under an adjacency, or by ``records``: one removed and another added."""

    adjacency: str
    one: Any
    other: Any
    records: int = 1


@dataclasses.dataclass(frozen=True)
class Entry:
    """How a public name is run on data with a ledger, and the neighbours that attack it.

    ``per_step``: records are sampled, so that each release is held against the noise of one step. ``charged_by`` says
    who charges where the name itself has no ledger.
    """

    run: Callable[[Any, Ledger], Released]
    neighbours: Callable[[], Iterator[Neighbours]]
    per_step: bool = False
    charged_by: str = ""


def problems(entry: Entry) -> list[str]:
    """Where what a name releases contradicts what it charges."""
    return [found for neighbours in entry.neighbours() for found in _attacked(entry, neighbours)]


def _attacked(entry: Entry, neighbours: Neighbours) -> list[str]:
    seen, released, charged = _one_run(entry, neighbours.one, neighbours.adjacency)
    other, other_released, _ = _one_run(entry, neighbours.other, neighbours.adjacency)
    found = []
    if not seen.drawn:
        found.append("no noise was drawn")
    if not entry.charged_by and (not seen.charged_at or seen.charged_at[0] > 0):
        found.append("something got noise before anything was charged" if seen.charged_at else "nothing was charged")
    if not alike(released.values, other_released.values):
        found.append("what is released depends on the data other than through the noise")
    apart = moved(seen, other)
    if isinstance(apart, str):
        return [f"{neighbours.adjacency}: {one}" for one in [*found, apart]]
    stated = released.stated
    paid = stated if isinstance(stated, acc.Mechanism) and entry.charged_by else charged
    if paid is not None:
        found += _too_cheap(apart, paid, neighbours, per_step=entry.per_step)
    if isinstance(stated, acc.Privacy) and paid is not None:
        price = acc.epsilon(paid, stated.delta, adjacency=neighbours.adjacency).upper
        if price < stated.claim * (1 - 1e-9):
            found.append(f"ε = {stated.claim} is claimed and {price} was charged")
    return [f"{neighbours.adjacency}: {one}" for one in found]


def _one_run(entry: Entry, data: Any, adjacency: str) -> tuple[Watched, Released, acc.Mechanism | None]:
    ledger = Ledger()
    ledger.register("people", epsilon=1e3, delta=10 * DELTA, charges=10, adjacency=adjacency)
    with expanded(DRAWS), watched() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        released = entry.run(data, ledger)
    records = ledger.history("people")
    charged = acc.Composed(tuple((r.mechanism, 1) for r in records)) if records else None
    return seen, released, charged


def _too_cheap(apart: Moved, paid: acc.Mechanism, neighbours: Neighbours, *, per_step: bool) -> list[str]:
    """Where neighbours move further than what was paid covers."""
    if per_step:
        noises = list(_noises(paid))
        if not noises:
            return [f"{paid!r} was charged, which says nothing of the noise of a step"]
        for far, noise in zip(apart.gaussian, noises * len(apart.gaussian), strict=False):
            least = neighbours.records / noise
            if far > least * (1 + 1e-6):
                return [f"a step moves by {far} of its noise; {least} was charged"]
        return []
    mu = math.sqrt(math.fsum(x * x for x in apart.gaussian))
    for delta in (DELTA, 1e-3) if mu else (0.0,):
        epsilon = acc.epsilon(paid, delta, adjacency=neighbours.adjacency).upper
        left = epsilon * (1 + 1e-9) + 1e-12 - apart.laplace - apart.choice
        if left < 0 or gaussian_delta(mu, left) > delta * (1 + 1e-6):
            return [f"neighbours lie {mu} (Gaussian) and {apart.laplace} (Laplace) apart; ε = {epsilon} was charged"]
    return []


def _noises(mechanism: acc.Mechanism) -> Iterator[float]:
    """The noise multipliers of one step, or of one run of a selection, in order."""
    for part, _ in mechanism.parts():
        if isinstance(part, acc.Gaussian):
            yield part.noise_multiplier
        elif hasattr(part, "mechanism"):
            yield from _noises(part.mechanism)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of N(μ, 1) against N(0, 1)."""
    if mu == 0:
        return 0.0
    return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


# -- tables ----

ROWS = 24
BOUNDS = {"bounds": (0.0, 10.0)}
TARGET = {"target_bounds": (-20.0, 35.0)}
EXTREME = np.array([[10.0, 10.0, 10.0], [0.0, 0.0, 0.0], [10.0, 0.0, 10.0], [1e12, -1e12, 5.0]])


def _table() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.uniform(0, 10, (ROWS, 3))
    return x, x @ [2.0, -1.0, 0.5] + 4


def _rows(answers: tuple[float, ...]) -> Iterator[Neighbours]:
    """A table with one extreme row more, and with one extreme row in place of another."""
    x, y = _table()
    if len(answers) == 2:  # classes
        y = (y > 8).astype(int)
    pairs = [(EXTREME[i], answers[j % len(answers)]) for i, j in ((0, 0), (0, 1), (1, 0), (2, 1), (3, 2), (3, 1))]
    ends = [(np.vstack([x, row]), np.append(y, y.dtype.type(a))) for row, a in pairs]
    yield from (Neighbours("add-remove", end, (x, y)) for end in ends)
    yield from (Neighbours("replace-one", end, ends[0]) for end in ends[1:])


def _regression() -> Iterator[Neighbours]:
    return _rows((-20.0, 35.0, 1e12))


def _classification() -> Iterator[Neighbours]:
    return _rows((0.0, 1.0))


def _fitted(estimator: Any) -> Callable[[Any, Ledger], Released]:
    """A fit as scikit-learn's: what it leaves on itself, and what it predicts."""

    def run(data: Any, ledger: Ledger) -> Released:
        settings = estimator.get_params(deep=False) | {"ledger": ledger, "dataset": "people"}
        made = type(estimator)(**settings).fit(*data)
        kept = {k: v for k, v in vars(made).items() if k[0] != "_" and k[-1] == "_" and _plain(v)}
        return Released([kept, made.predict(EXTREME[:3])], made.privacy_)

    return run


def _plain(value: Any) -> bool:
    return isinstance(value, np.ndarray | float | int | str | tuple)


LM = linear_model
TABLES = {
    "linear_model.LinearRegression": [
        LM.LinearRegression(1.0, DELTA, **BOUNDS, **TARGET),
        LM.LinearRegression(1.0, DELTA, method="adassp", **BOUNDS, **TARGET),
        LM.LinearRegression(1.0, DELTA, method="sufficient-statistics", **BOUNDS, **TARGET),
        LM.LinearRegression(1.0, 0, **BOUNDS, **TARGET),
    ],
    "linear_model.Ridge": [LM.Ridge(1.0, 1.0, DELTA, **BOUNDS, **TARGET)],
    "linear_model.FunctionalLinearRegression": [
        LM.FunctionalLinearRegression(1.0, **BOUNDS, **TARGET),
        LM.FunctionalLinearRegression(1.0, sensitivity="textbook", **BOUNDS, **TARGET),
    ],
    "linear_model.LogisticRegression": [
        LM.LogisticRegression(1.0, DELTA, classes=[0, 1], **BOUNDS),
    ],
    "additive.AdditiveRegressor": [
        additive.AdditiveRegressor(1.0, DELTA, **BOUNDS, **TARGET),
        additive.AdditiveRegressor(1.0, DELTA, pairs=[("x0", "x2")], **BOUNDS, **TARGET),
        additive.AdditiveRegressor(1.0, DELTA, edges={"x0": [5.0]}, **BOUNDS, **TARGET),
    ],
    "additive.AdditiveClassifier": [additive.AdditiveClassifier(1.0, DELTA, classes=[0, 1], **BOUNDS)],
    "linear_model.FunctionalLogisticRegression": [LM.FunctionalLogisticRegression(1.0, classes=[0, 1], **BOUNDS)],
}


# -- votes ----


def _votes() -> Iterator[Neighbours]:
    votes = np.array([[30, 20, 0], [50, 0, 0], [17, 17, 16], [0, 1, 49]])
    for source, target in ((0, 1), (2, 0), (1, 2)):
        other = votes.copy()
        able = other[:, source] > 0
        other[able, source] -= 1
        other[able, target] += 1
        for adjacency in acc.ADJACENCIES:
            yield Neighbours(adjacency, votes, other)


def _answered(aggregator: Any, **options: Any) -> Callable[[Any, Ledger], Released]:
    def run(votes: Any, ledger: Ledger) -> Released:
        answers = aggregator.answer(votes, queries=len(votes), ledger=ledger, dataset="people", delta=DELTA, **options)
        return Released([answers.labels, answers.answered], answers.privacy)

    return run


SURE = np.full((4, 3), 1 / 3)
VOTES = {
    "pate.GNMax": _answered(pate.GNMax(classes=3, vote_noise=5.0)),
    "pate.LNMax": _answered(pate.LNMax(classes=3, scale=5.0)),
    "pate.ConfidentGNMax": _answered(pate.ConfidentGNMax(classes=3, vote_noise=5.0, threshold=1.0, check_noise=9.0)),
    "pate.InteractiveGNMax": _answered(
        pate.InteractiveGNMax(classes=3, vote_noise=5.0, threshold=1.0, check_noise=9.0), scores=SURE
    ),
}


# -- scores and searches ----


def _judged(make: Callable[[Any], Any]) -> Callable[[Any, Ledger], Released]:
    def run(data: Any, ledger: Ledger) -> Released:
        score = make(data)
        return Released(score(None), score.mechanism)

    return run


def _above_five(model: Any, x: Any) -> Any:
    return (np.asarray(x)[:, 0] > 5).astype(int)


def _right(data: Any) -> tuning.Score:
    return tuning.correct_count(*data, noise=2.0, predict=_above_five)


def _loss(data: Any) -> tuning.Score:
    x, y = data
    return tuning.bounded_loss(lambda model: np.abs(x[:, 0] - y), bound=3.0, noise=2.0)


def _searched(data: Any, ledger: Ledger) -> Released:
    """Two candidates, each a noisy mean: training and score are both watched."""

    def train(candidate: dict[str, Any], noise: float) -> float:
        from tacit.noise import add_gaussian

        return float(add_gaussian(float(np.clip(data[0][:, 0], 0, 1).sum()), noise))

    search = tuning.PrivateSearch(
        {"which": ["one", "other"]},
        train,
        tuning.correct_count(*data, noise=20.0, predict=_above_five),
        epsilon=2.0,
        delta=DELTA,
        runs=3,
        mechanism=lambda candidate, noise: acc.Gaussian(noise),
        ledger=ledger,
        dataset="people",
        progress=False,
    )
    found = search.run()
    return Released([found.best, found.model], found.privacy)


# -- training ----


def _examples() -> Iterator[Neighbours]:
    """One example more, whose gradient is as large as one likes."""
    x, y = _table()
    x, y = x[:12] / 10, (y[:12] > 8).astype(int)
    for far, answer in ((1e6, 0), (-1e6, 1)):
        yield Neighbours("add-remove", (np.vstack([x, np.full(3, far)]), np.append(y, answer)), (x, y))


def _exchanged(answers: tuple[float, float]) -> Callable[[], Iterator[Neighbours]]:
    """Where the number of records is public: one is taken out and another, that pulls the other way, comes in."""

    def made() -> Iterator[Neighbours]:
        x, y = _table()
        if answers == (0, 1):
            y = (y > 8).astype(int)
        one, other = (
            (np.vstack([x, np.full(3, far)]), np.append(y, y.dtype.type(a)))
            for far, a in zip((1e6, -1e6), answers, strict=True)
        )
        yield Neighbours("add-remove", one, other, records=2)

    return made


def _tensors(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(data[0], dtype=torch.float32), torch.as_tensor(data[1])


def _cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


SETTINGS: dict[str, Any] = {"batch_size": 6, "steps": 16, "noise_multiplier": 1.3, "delta": DELTA, "size": 12}


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1)


def _trained(data: Any, ledger: Ledger) -> Released:
    model, optimizer = _model()
    training = sgd.Training(
        model, optimizer, _cross_entropy, _tensors(data), ledger=ledger, dataset="people", **SETTINGS
    )
    for batch in training:
        training.step(batch)
    return Released(dict(model.state_dict()), training.privacy)


def _fit(data: Any, ledger: Ledger) -> Released:
    model, optimizer = _model()
    found = sgd.fit(
        model, optimizer, _cross_entropy, _tensors(data), ledger=ledger, dataset="people", progress=False, **SETTINGS
    )
    return Released(dict(model.state_dict()), found.privacy)


def _engine(data: Any, ledger: Ledger) -> Released:
    model, optimizer = _model()
    engine = opacus.PrivacyEngine(ledger=ledger, dataset="people")
    loader = DataLoader(TensorDataset(*_tensors(data)), batch_size=6)
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.3, max_grad_norm=1.0, epochs=4
    )
    for x, y in itertools.chain(*[loader] * 4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return Released({k: v.clone() for k, v in model.state_dict().items()}, acc.nothing())


QUICK: dict[str, Any] = {"epochs": 8, "batch_size": 13, "random_state": 0, **BOUNDS}
CLASSIFIER = sgd.Classifier(2.0, DELTA, classes=[0, 1], **QUICK)
REGRESSOR = sgd.Regressor(2.0, DELTA, **TARGET, **QUICK)

ENTRIES: dict[str, list[Entry]] = {
    **{
        name: [
            Entry(_fitted(one), _classification if "Logistic" in name or "Classifier" in name else _regression)
            for one in made
        ]
        for name, made in TABLES.items()
    },
    **{name: [Entry(run, _votes)] for name, run in VOTES.items()},
    "tuning.correct_count": [Entry(_judged(_right), _classification, charged_by="the search that asks for scores")],
    "tuning.bounded_loss": [Entry(_judged(_loss), _regression, charged_by="the search that asks for scores")],
    "tuning.PrivateSearch": [Entry(_searched, lambda: itertools.islice(_classification(), 2), per_step=True)],
    "sgd.Training": [Entry(_trained, _examples, per_step=True)],
    "sgd.fit": [Entry(_fit, lambda: itertools.islice(_examples(), 1), per_step=True)],
    "sgd.Classifier": [
        Entry(_fitted(sgd.Classifier(2.0, DELTA, classes=[0, 1], **QUICK)), _exchanged((0, 1)), per_step=True)
    ],
    "sgd.Regressor": [
        Entry(_fitted(sgd.Regressor(2.0, DELTA, **TARGET, **QUICK)), _exchanged((1e6, -1e6)), per_step=True)
    ],
    "opacus.PrivacyEngine": [Entry(_engine, _exchanged((0, 1)), per_step=True)],
}


# -- what takes no private data, or hands it on ----

RESULT = "holds what was released, or reads it"
PUBLIC = "takes public settings or public data only"

#: Public names that release nothing, with the reason.
RELEASES_NOTHING: dict[str, str] = {
    "additive.ColumnCurve": RESULT,
    "linear_model.SchemaEncoder": "row by row, by public bounds; learns nothing from rows",
    "pate.Aggregator": "what the aggregators share; it adds no noise itself",
    "pate.Answers": RESULT,
    "pate.Teachers": "stay with the operator: their votes leave through an aggregator",
    "pate.VoteCounts": "stays with the operator: it leaves through an aggregator",
    "tuning.Defaults": PUBLIC,
    "tuning.LogUniform": PUBLIC,
    "tuning.PublicTuning": RESULT,
    "tuning.SearchResult": RESULT,
    "tuning.Space": PUBLIC,
    "tuning.Uniform": PUBLIC,
    "tuning.batch_for": PUBLIC,
    "tuning.good_defaults": PUBLIC,
    "tuning.learning_rate_for": PUBLIC,
    "tuning.noise_for": PUBLIC,
    "tuning.tune_on_public": "takes public data, and a reason why they are",
    "prompts.Accuracy": "a metric for public data",
    "prompts.Endpoint": "a model behind an address; prompts are sent to it by their owner",
    "prompts.LanguageModel": "a model; what it is asked stays with who asks",
    "prompts.Prompt": PUBLIC,
    "prompts.PromptTeachers": "stay with the operator: their votes leave through an aggregator",
    "prompts.Scorer": "the shape of a model that scores",
    "prompts.Template": PUBLIC,
    "prompts.Tuned": RESULT,
    "prompts.Verbalizer": PUBLIC,
    "prompts.calibrated": "takes public texts",
    "prompts.choose": "takes labelled answers that were released, and public texts",
    "prompts.load": PUBLIC,
    "linear_model.from_json": "reads a fitted estimator back from a text of released values",
    "linear_model.to_json": "writes what a fitted estimator released",
    "sgd.AdaptiveClipping": PUBLIC,
    "sgd.Banded": PUBLIC,
    "sgd.BandedInverse": PUBLIC,
    "sgd.Sampling": PUBLIC,
    "sgd.PrivacyTarget": PUBLIC,
    "sgd.Persistence": PUBLIC,
    "sgd.GradientClipping": PUBLIC,
    "sgd.Execution": PUBLIC,
    "sgd.Charging": PUBLIC,
    "sgd.Check": RESULT,
    "sgd.ClippedGradients": "clipped sums without noise, for a loop that adds it: not to be released",
    "sgd.Clipping": PUBLIC,
    "sgd.DPAdam": "an optimizer: reads gradients that have noise",
    "sgd.Facts": PUBLIC,
    "sgd.Fit": RESULT,
    "sgd.Look": RESULT,
    "sgd.Plan": PUBLIC,
    "sgd.Vitals": "reads gradients that have noise",
    "sgd.read_vitals": "reads what was kept of gradients that have noise",
    "sgd.check": "looks at a model; its report is the operator's",
    "sgd.clipped_grad": "clipped sums without noise, for a loop that adds it: not to be released",
    "sgd.ExampleGradients": "stays with the operator",
    "sgd.example_gradients": "single gradients without clipping or noise: the operator's, not to be released",
    "sgd.fix": "changes a model",
    "sgd.records": "rows by number, for training",
    "sgd.table": "rows by number, for training",
    "opacus.GradSampleModule": "a model whose gradients the engine's optimizer releases",
    "opacus.GradSampleModuleFastGradientClipping": "a model whose gradients the engine's optimizer releases",
    "integrations.lightning.PrivateDDPStrategy": "how ranks are joined; adds no noise itself",
    "integrations.trackers.Tracker": RESULT,
    "integrations.trackers.record": RESULT,
    "integrations.trackers.tensorboard": RESULT,
    "integrations.trackers.mlflow": RESULT,
    "integrations.trackers.wandb": RESULT,
    "integrations.losses.base_of": "looks at a model",
    "integrations.losses.blank": "a batch of nothing",
    "integrations.losses.per_example_loss": "losses for a loop that clips; not to be released",
    "integrations.losses.token_losses": "losses for a loop that clips; not to be released",
    "integrations.transformers.PrivacyCallback": "watches the trainer that make_private makes",
    "integrations.transformers.PrivateMixin": "what make_private mixes into a trainer, checked as that",
}

#: Public names made of parts that are listed here, or that draw by a law of their own: the test that holds them to it.
CHECKED_ELSEWHERE: dict[str, str] = {
    "tuning.PrivateSearchCV": "tests/tuning/test_cv.py",
    "tuning.Score": "tests/tuning/test_search.py",
    "tuning.exponential_mechanism": "tests/tuning/test_exponential.py",
    "tuning.permute_and_flip": "tests/tuning/test_exponential.py",
    "tuning.generalised_exponential_mechanism": "tests/tuning/test_exponential.py",
    "prompts.tune": "tests/prompts/test_tune.py",
    "integrations.lightning.PrivateTraining": "tests/integrations/test_lightning.py",
    "integrations.transformers.make_private": "tests/integrations/test_transformers.py",
}

#: Rooms that take private data; what they make public is found here.
ROOMS = ("linear_model", "additive", "pate", "tuning", "prompts", "sgd", "opacus", "integrations")


def public() -> set[str]:
    """Every public class and function of these rooms that is not an error."""
    found = set()
    for room in ROOMS:
        module = importlib.import_module(f"tacit.{room}")
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            error = inspect.isclass(value) and issubclass(value, BaseException)
            if (inspect.isclass(value) or inspect.isfunction(value)) and not error:
                found.add(f"{room}.{name}")
    return found | set(_of_files("integrations"))


def _of_files(room: str) -> Iterator[str]:
    """Public classes and functions of a room whose files are imported one by one; read, as some need more installed."""
    for path in (Path(acc.__file__).parents[1] / room).glob("*.py"):
        if path.stem not in ("__init__", "run"):  # run.py is what the trainers share
            for name in re.findall(r"^(?:class|def) ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.M):
                yield f"{room}.{path.stem}.{name}"


def unlisted(names: set[str]) -> list[str]:
    """Public names without an entry and without a reason why they need none."""
    return sorted(names - set(ENTRIES) - set(RELEASES_NOTHING) - set(CHECKED_ELSEWHERE))
