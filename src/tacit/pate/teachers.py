"""How are teachers trained on disjoint people, and how do they vote? Torch modules, scikit-learn estimators, callables.

Only counts of labels leave. One person's data reach one teacher, and every teacher votes on every query. A teacher that
got no data, or that failed, votes by a fixed pseudo-random pattern that depends on nobody's data. So one person moves
one vote per query, and that is what the aggregators price.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.base import owner_numbers, unit_of
from tacit.cluster import Ray, backend_of, seeded
from tacit.ledger import OperatorView
from tacit.noise import Key
from tacit.pate import partition as dealing
from tacit.pate.counts import VoteCounts

#: How often a teacher that fails is trained again.
RETRIES = 2


class TeacherWarning(UserWarning):
    """Some teachers failed and vote by a fixed pattern. For the operator: which ones fail depends on the data."""


class Teachers:
    """Train teachers on disjoint parts of the private data, and let them vote on public queries.

    Guarantee:
        Training and voting release nothing. With ``partition="keyed"``, adding or removing one unit changes one
        teacher, so one vote per query moves; replacing one changes two. With ``"positions"`` replacing one unit changes
        one teacher, and nothing is guaranteed for adding or removing one. Where, when and how often a teacher is
        trained changes nothing: its randomness is seeded by ``seed`` and its number.

    Args:
        make_model: A callable without arguments that makes a torch module or an estimator with ``fit`` and
            ``predict``; such a module or estimator, which is copied; or a callable ``train(x, y)`` that returns a
            callable ``predict(x)``.
        data: The private rows and labels ``(x, y)``, or a torch data set of such pairs.
        n: The number of teachers.
        groups: The id of each row's owner: the owner is then the unit. None protects one record, identified by its
            contents.
        unit: The name of the unit, such as ``"person"`` or ``"household"``; needs ``groups``. None means ``"person"``
            with ``groups`` and ``"record"`` without.
        classes: The public number of labels, or the list of them. None takes labels as whole numbers from 0 and leaves
            their number to the aggregator.
        partition: ``"keyed"`` deals units to teachers by a keyed hash of their id; ``"positions"`` deals them out in
            turn, into parts of equal size.
        key: The secret key of the hash. None draws a new one; give one to deal the same way again.
        seed: Seeds the teachers' initial weights and batches. It decides accuracy, not privacy.
        backend: ``"local"``, ``"ray"``, or a :class:`tacit.cluster.Ray` with the CPUs, GPUs and retries per teacher
            (per stack of teachers for torch modules). A worker gets only its own teachers' rows.

    Raises:
        ValueError: If there are no records, if labels are not among ``classes``, if ids are missing, or if ``n`` or
            ``partition`` is not allowed.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(400, 2)); y = (x[:, 0] > 0).astype(int)
        >>> teachers = Teachers(LogisticRegression, (x, y), n=10, classes=2).fit()
        >>> teachers.vote(rng.normal(size=(5, 2)))
        VoteCounts(5 queries, 2 classes, 10 teachers) [counts are private: not covered by the guarantee]
    """

    def __init__(
        self,
        make_model: Any,
        data: Any,
        n: int = 250,
        *,
        groups: Any = None,
        unit: str | None = None,
        classes: int | Sequence[Any] | None = None,
        partition: str = "keyed",
        key: Key | None = None,
        seed: int = 0,
        backend: str | Ray = "local",
    ) -> None:
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n, the number of teachers, must be a whole number of 1 or more, not {n!r}")
        if partition not in dealing.PARTITIONS:
            raise ValueError(f"partition must be one of {', '.join(dealing.PARTITIONS)}, not {partition!r}")
        self.n, self.seed, self.partition = int(n), int(seed), partition
        self.cluster = backend_of(backend)
        self.x, self.y = _pair(data)
        self.unit = unit_of(unit, owned=groups is not None, ids="Pass groups=, the id of every row's owner, with unit=")
        self.labels, self.classes = _labels_of(classes)
        if len(self.y) == 0:
            raise ValueError("data has no records: teachers need rows to learn from")
        people = groups
        if groups is None:
            people = range(len(self.y)) if partition == "positions" else dealing.contents(self.x, self.y)
        else:
            owner_numbers(groups, len(self.y))  # refuses what is not one id a row
        if partition == "keyed":
            where = dealing.keyed(people, self.n, key if key is not None else Key.generate())
        else:
            where = dealing.positions(people, self.n)
        self._parts = [np.flatnonzero(where == i) for i in range(self.n)]
        self._targets = self._encode(self.y)
        self._make, self.kind = _kind(make_model)
        self._fitted: list[Any] | None = None
        self._failed: dict[int, str] = {}
        self._options: dict[str, Any] = {}

    # -- training ----

    def fit(
        self,
        *,
        steps: int = 600,
        batch_size: int = 32,
        learning_rate: float = 2e-3,
        weight_decay: float = 1e-4,
        augment: Callable[[Any], Any] | None = None,
        average: float = 0.0,
        device: str | None = None,
        together: int | None = None,
        n_jobs: int = 1,
        progress: bool = True,
    ) -> Teachers:
        """Train all teachers. Releases nothing.

        Most options are for torch modules, which are trained with AdamW for a fixed number of steps, however many rows
        a teacher has.

        Args:
            steps: Torch: steps per teacher.
            batch_size: Torch: rows per step.
            learning_rate: Torch: the learning rate.
            weight_decay: Torch: the weight decay.
            augment: Torch: a function that changes each batch at random. None changes nothing.
            average: Torch: the decay of an exponential average of the weights, which is what a teacher ends with. 0
                keeps the last weights.
            device: Torch: where to train. None takes a GPU if there is one (on a cluster, if a task has one).
            together: Torch: teachers per stack, and per task of a cluster. None means all of them on a GPU of this
                machine, and 50 elsewhere.
            n_jobs: Estimators and callables on this machine: processes (needs ``joblib`` if it is not 1).
            progress: Whether to show a progress bar on a terminal.

        Returns:
            The same object, trained.

        Raises:
            ValueError: If ``n_jobs`` is given together with a cluster.
            RuntimeError: If every teacher failed.
        """
        if self.cluster is not None and n_jobs != 1:
            raise ValueError(
                "n_jobs is for backend='local'; on a cluster its size decides how many teachers train at once"
            )
        self._failed = {}
        if self.kind == "torch":
            import torch

            here = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            there = here
            if self.cluster is not None:
                there = torch.device(device or ("cuda" if self.cluster.num_gpus else "cpu"))
            whole = self.n if self.cluster is None and here.type == "cuda" else 50
            self._options = {"device": here, "together": together or whole}
            self._fit_torch(
                progress=progress,
                steps=steps,
                batch_size=batch_size,
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                augment=augment,
                average=average,
                device=there,
            )
        else:
            self._fit_others(n_jobs, progress=progress)
        self._report()
        return self

    def _fit_torch(self, *, progress: bool, **options: Any) -> None:
        import torch

        from tacit.pate.stacked import StackedTeachers, train_group, train_group_elsewhere

        x = torch.as_tensor(np.asarray(self.x) if not torch.is_tensor(self.x) else self.x)
        y = torch.as_tensor(self._targets)
        together = self._options["together"]
        groups = [(first, self._parts[first : first + together]) for first in range(0, self.n, together)]
        shared = (self._make, self.seed, options, RETRIES)
        results: dict[int, tuple[list[Any], list[int]]] = {}
        with _Progress("teachers", self.n, progress) as shown:
            if self.cluster is None:
                x, y = x.to(options["device"]), y.to(options["device"])
                for place, (first, parts) in enumerate(groups):
                    results[place] = train_group(*shared, first, x, y, parts)
                    shown(len(parts))
            else:

                def tasks() -> Iterator[tuple[Any, ...]]:
                    for first, parts in groups:
                        # Only the rows of these teachers leave, part after part.
                        rows, ends = np.concatenate(parts), np.cumsum([0, *map(len, parts)])
                        moved = [np.arange(*pair) for pair in itertools.pairwise(ends)]
                        # A stack of teachers without anybody still needs a row to stand for what they do not learn.
                        sent = (x[rows], y[rows]) if len(rows) else (torch.zeros_like(x[:1]), torch.zeros_like(y[:1]))
                        yield first, *sent, moved

                for place, result in self.cluster.map(train_group_elsewhere, tasks(), shared=shared):
                    results[place] = result
                    shown(len(groups[place][1]))
        stacked = StackedTeachers(self._make, 0)
        for place in range(len(groups)):
            models, broken = results[place]
            stacked.models += models
            self._failed |= dict.fromkeys(broken, "its weights are not finite")
        self._fitted = [stacked]

    def _fit_others(self, n_jobs: int, *, progress: bool) -> None:
        x = self.x if not hasattr(self.x, "detach") else self.x.detach().cpu().numpy()
        busy = [i for i in range(self.n) if len(self._parts[i])]

        def part(i: int) -> tuple[Any, ...]:
            rows = self._parts[i]
            return _take(x, rows), self._targets[rows], self.seed * 100_003 + i

        results: dict[int, tuple[Any, str]] = {}
        with _Progress("teachers", len(busy), progress) as shown:
            found: Iterator[tuple[int, Any]]
            if self.cluster is None:
                found = enumerate(
                    _parallel(lambda k: _train_one(self._make, self.kind, *part(busy[k])), len(busy), n_jobs)
                )
            else:
                found = self.cluster.map(_train_one, (part(i) for i in busy), shared=(self._make, self.kind))
            for place, result in found:
                results[busy[place]] = result
                shown(1)
        self._fitted = [results.get(i, (None, ""))[0] for i in range(self.n)]
        self._failed = {i: results[i][1] for i in busy if results[i][1]}

    def _report(self) -> None:
        if not self._failed:
            return
        # The text of an error may hold records: only its type is shown here, the text is in the diagnostics.
        first = next(iter(self._failed.values())).partition(":")[0]
        busy = sum(1 for part in self._parts if len(part))
        if len(self._failed) >= max(busy, 1):
            self._fitted = None
            raise RuntimeError(
                f"every teacher failed, the first of them with {first}; diagnostics() shows the operator the full text"
            )
        warnings.warn(
            f"{len(self._failed)} of {self.n} teachers failed {RETRIES + 1} times and vote by a fixed pattern "
            f"(the first: {first}; diagnostics() shows the full text) [operator view: not covered by the guarantee]",
            TeacherWarning,
            stacklevel=3,
        )

    # -- voting ----

    def vote(self, x: Any) -> VoteCounts:
        """Count the teachers' labels for each query. Which teacher said what does not leave.

        Guarantee:
            Nothing is charged here: the counts are private until an aggregator has added its noise.

        Args:
            x: The public queries, in the form of the private rows.

        Returns:
            One histogram of labels per query.

        Raises:
            RuntimeError: If the teachers are not trained, or if every teacher failed to predict.
        """
        if self._fitted is None:
            raise RuntimeError("the teachers are not trained yet: call teachers.fit() first")
        if len(x) == 0:
            return VoteCounts(
                np.zeros((0, self.classes or 1), np.int64),
                self.n,
                self.partition,
                self.unit,
                x,
                self.classes is not None,
                (self.x, self.y),
            )
        said = self._predict(x)
        silent = self._silent()
        if silent:
            # A pattern that depends only on the teacher's number and the query's place. If the classes are not known
            # it uses the two that always exist: with the largest label that others give, one person who brings a new
            # label would move the votes of all silent teachers.
            rng = np.random.default_rng([20_170_301, self.n, len(said[0])])
            pattern = rng.random((self.n, said.shape[1]))
            known = self.classes if self.classes is not None else 2
            said[silent] = np.minimum((pattern[silent] * known).astype(np.int64), known - 1)
        classes = self.classes if self.classes is not None else int(said.max(initial=0)) + 1
        counts = np.zeros((said.shape[1], classes), np.int64)
        rows = np.arange(said.shape[1])
        for labels in said:
            counts[rows, labels] += 1
        known = self.classes is not None
        return VoteCounts(counts, self.n, self.partition, self.unit, x, known, (self.x, self.y))

    def _silent(self) -> list[int]:
        """Teachers without data, or that failed."""
        return [i for i, part in enumerate(self._parts) if not len(part) or i in self._failed]

    def _predict(self, x: Any) -> NDArray[np.int64]:
        assert self._fitted is not None
        if self.kind == "torch":
            import torch

            rows = torch.as_tensor(np.asarray(x) if not torch.is_tensor(x) else x)
            found = self._fitted[0].predict(rows, **self._options)
            width = self._width(rows[:1])
            if self.classes is None:
                self.classes = width
            elif width > self.classes:
                raise ValueError(f"the model has {width} outputs, but there are only {self.classes} classes")
            return np.asarray(found)
        rows = x if not hasattr(x, "detach") else x.detach().cpu().numpy()
        said = np.zeros((self.n, len(rows)), np.int64)
        before = len(self._failed)
        for i, model in enumerate(self._fitted):
            if model is None or i in self._failed:
                continue
            try:
                said[i] = _predicted(model, self.kind, rows, self.classes)
            except Exception as error:  # noqa: BLE001 - a teacher that cannot predict is one that failed
                self._failed[i] = f"{type(error).__name__}: {error}"
        if len(self._failed) > before:
            self._report()
        return said

    def _width(self, row: Any) -> int:
        """The number of labels that a torch model tells apart: its public shape."""
        import torch

        model = self._fitted[0].models[0] if self._fitted else self._make()
        model.eval()
        with torch.no_grad():
            return int(model(row.to(next(model.parameters()).device)).shape[-1])

    def _encode(self, y: Any) -> NDArray[np.int64]:
        values = y.detach().cpu().numpy() if hasattr(y, "detach") else np.asarray(y)
        if self.labels is not None:
            place = {label: i for i, label in enumerate(self.labels)}
            try:
                return np.array([place[v] for v in values.tolist()], dtype=np.int64)
            except KeyError:
                raise ValueError(f"a label is not among the public classes {self.labels}") from None
        if values.dtype.kind not in "iub" or values.ndim != 1:
            raise ValueError("labels must be whole numbers from 0; for others give classes=, the public list of them")
        if values.size and (values.min() < 0 or (self.classes is not None and values.max() >= self.classes)):
            raise ValueError(
                f"labels must lie between 0 and {'classes - 1' if self.classes is None else self.classes - 1}"
            )
        return values.astype(np.int64)

    def diagnostics(self, x: Any = None, y: Any = None) -> OperatorView:
        """Show the operator the sizes of the parts, failures, and the teachers' accuracy. From private data.

        Args:
            x: Rows to measure accuracy on. None measures none.
            y: Their labels.

        Returns:
            A view that no release takes.
        """
        sizes = [len(part) for part in self._parts]
        values: dict[str, Any] = {
            "smallest_part": min(sizes),
            "largest_part": max(sizes),
            "teachers_without_data": sum(1 for s in sizes if not s),
            "failed": dict(self._failed),
        }
        if x is not None:
            right = (self._predict(x) == self._encode(y)).mean(axis=1)
            values |= {"accuracy_mean": float(right.mean()), "accuracy_least": float(right.min())}
        return OperatorView(**values)

    def __repr__(self) -> str:
        state = "trained" if self._fitted is not None else "not trained"
        return f"Teachers({self.n} x {self.kind}, by {self.unit}, partition={self.partition!r}, {state})"


# -- kinds of models ----


def _kind(make: Any) -> tuple[Any, str]:
    """What makes one model, and which of the three kinds it is."""
    if hasattr(make, "state_dict") and hasattr(make, "forward") and not inspect.isclass(make):
        return _fresh_module(make), "torch"
    if hasattr(make, "fit") and hasattr(make, "predict") and not inspect.isclass(make):
        return lambda: copy.deepcopy(make), "estimator"
    if not callable(make):
        raise TypeError(
            f"make_model must make a torch module or an estimator, or be train(x, y), not {type(make).__name__}"
        )
    if not inspect.isclass(make) and _required(make) == 2:
        return make, "callable"
    product = make()
    if hasattr(product, "state_dict") and hasattr(product, "forward"):
        return make, "torch"
    if hasattr(product, "fit") and hasattr(product, "predict"):
        return make, "estimator"
    raise TypeError(
        f"make_model() returned {type(product).__name__}: neither a torch module nor an estimator with fit and predict"
    )


def _pair(data: Any) -> tuple[Any, Any]:
    """Records and labels."""
    if hasattr(data, "tensors"):
        data = data.tensors
    if isinstance(data, tuple | list):
        if any(hasattr(part, "tocsr") for part in data):
            raise TypeError(
                "a sparse table cannot be dealt out by rows: pass x.toarray(), or texts and an estimator that makes "
                "them sparse inside, such as make_pipeline(TfidfVectorizer(), …)"
            )
        if len(data) == 2 and len(data[0]) == len(data[1]):
            return data[0], data[1]
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, np.ndarray):
        rows = [data[i] for i in range(len(data))]
        if all(isinstance(row, tuple) and len(row) == 2 for row in rows):
            return _stacked([x for x, _ in rows]), np.asarray([int(label) for _, label in rows])
    raise ValueError("data must be (x, y), the records and as many labels, or a data set of such pairs")


def _stacked(records: list[Any]) -> Any:
    """One tensor, or one array."""
    if records and hasattr(records[0], "detach"):
        return importlib.import_module("torch").stack(records)
    return np.asarray(records)


def _required(make: Any) -> int:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return 0
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for p in signature.parameters.values() if p.kind in plain and p.default is inspect.Parameter.empty)


def _fresh_module(module: Any) -> Callable[[], Any]:
    def make() -> Any:
        fresh = copy.deepcopy(module)
        for part in fresh.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        return fresh

    return make


def _labels_of(classes: int | Sequence[Any] | None) -> tuple[list[Any] | None, int | None]:
    if classes is None:
        return None, None
    if isinstance(classes, int | np.integer) and not isinstance(classes, bool):
        if classes < 2:
            raise ValueError(f"classes must be 2 or more, not {classes}")
        return None, int(classes)
    labels = list(classes)  # type: ignore[arg-type]
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ValueError("classes must be the number of labels, or the list of them, each once")
    return labels, len(labels)


class ConstantTeacher:
    """A teacher whose part holds only one label: it always answers that."""

    def __init__(self, label: int) -> None:
        self.label = label

    def predict(self, x: Any) -> NDArray[np.int64]:
        """The one label for every row."""
        return np.full(len(x), self.label, np.int64)


def _train_one(make: Any, kind: str, x: Any, y: NDArray[np.int64], seed: int) -> tuple[Any, str]:
    """A trained model and no message, or no model and why."""
    if kind == "estimator" and (y == y[0]).all():
        return ConstantTeacher(int(y[0])), ""
    told = ""
    for attempt in range(RETRIES + 1):
        try:
            # Seeded by the teacher: what others drew before it, here or on another machine, changes nothing.
            with seeded(seed + 7_919 * attempt, torch_too=kind == "callable"):
                if kind == "callable":
                    return make(x, y), ""
                model = make()
                if hasattr(model, "get_params") and "random_state" in model.get_params():
                    model.set_params(random_state=(seed + 7_919 * attempt) % 2**31)
                model.fit(x, y)
                return model, ""
        except Exception as error:  # noqa: BLE001 - whatever a user's model raises, the other teachers go on
            told = f"{type(error).__name__}: {error}"
    return None, told


def _predicted(model: Any, kind: str, x: Any, classes: int | None) -> NDArray[np.int64]:
    labels = np.asarray(model(x) if kind == "callable" else model.predict(x))
    if labels.ndim == 2 and classes is not None and labels.shape[1] == classes:
        labels = labels.argmax(axis=1)  # scores, one column a class
    if labels.shape != (len(x),):
        raise ValueError(f"a teacher must give one label per query: {len(x)}, not {labels.shape}")
    whole = labels.astype(np.int64)
    if not np.array_equal(whole, labels) or whole.min(initial=0) < 0:
        raise ValueError("a teacher's labels must be whole numbers from 0")
    if classes is not None and whole.max(initial=0) >= classes:
        raise ValueError(f"a teacher gave a label that is none of the {classes} classes")
    return whole


def _parallel(job: Callable[[int], Any], count: int, n_jobs: int) -> Iterator[Any]:
    """The results in order, by processes where asked for and joblib is there."""
    if n_jobs == 1:
        yield from map(job, range(count))
        return
    joblib = importlib.import_module("joblib")
    yield from joblib.Parallel(n_jobs=n_jobs, return_as="generator")(joblib.delayed(job)(i) for i in range(count))


def _take(data: Any, rows: NDArray[np.intp]) -> Any:
    if isinstance(data, list | tuple):
        return [data[i] for i in rows]
    return data.iloc[rows] if hasattr(data, "iloc") else data[rows]


class _Progress:
    """A bar on the operator's terminal; nothing elsewhere, or if rich is not installed."""

    def __init__(self, name: str, total: int, wanted: bool) -> None:
        self.bar: Any = None
        if wanted and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import Progress
            except ModuleNotFoundError:
                return
            self.bar = Progress(console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(name, total=total)

    def __enter__(self) -> Callable[[int], None]:
        if self.bar is None:
            return lambda count: None
        self.bar.start()
        return lambda count: self.bar.advance(self.task, count)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
