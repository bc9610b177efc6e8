"""What may leave the house, and what only the operator may see?

They are different types. A :class:`Release` (a card, a report, a tracker's record, an exported table, a model's
metadata) holds only values that were *charged* to a ledger or are *public*. It refuses any other value and names it.
An :class:`OperatorView` holds what was computed from private data without noise (loss, clipped fraction, gradient
norms, counts of clipped values). It prints with a mark, cannot enter a release, leaves its values behind when pickled,
and is written to a private :class:`OperatorLog`.

This file is in the ledger's room because "charged" means "there is a charge in a ledger for it", and because every
room that computes on private data may import the ledger.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from tacit.ledger.charge import Charge
from tacit.ledger.errors import LedgerError

MARK = "operator view: not covered by the guarantee"


class PrivateValueError(LedgerError, TypeError):
    """A value that is neither charged nor public was about to be released, or others could read a private log."""


@dataclasses.dataclass(frozen=True)
class Charged:
    """A value that a mechanism released, with the charge that paid for it."""

    value: Any
    dataset: str
    charge: str


@dataclasses.dataclass(frozen=True)
class Public:
    """A value that does not depend on private data, with the reason."""

    value: Any
    because: str


def charged(value: Any, charge: Charge) -> Charged:
    """Mark a value as the output of the mechanism that a charge paid for.

    Guarantee:
        None by itself: the caller vouches that ``value`` is that output, or was computed from such outputs alone. The
        type makes sure that somebody vouched for every value in a release, by name.

    Args:
        value: What the mechanism released.
        charge: The charge, as :meth:`Ledger.charge` granted it.

    Returns:
        The value with the name of its data set and the number of its charge.

    Raises:
        PrivateValueError: If ``charge`` is not a granted charge, or ``value`` contains an operator view.

    Example:
        >>> from tacit import accounting as acc
        >>> from tacit.ledger import Ledger
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
        >>> with ledger.charge("people", acc.Laplace(10.0)) as charge:
        ...     count = charged(45.0, charge)  # what the mechanism gave
        >>> Release({"count": count}).source("count")
        'charged to people (charge ...)'
    """
    if not isinstance(charge, Charge):
        raise PrivateValueError(f"charged() takes a granted Charge, not {type(charge).__name__}")
    _no_operator_view("value", value)
    return Charged(value, charge.dataset, charge.number)


def public(value: Any, because: str = "declared public") -> Public:
    """Mark a value as independent of private data: settings, prices, a public schema, metrics on public data.

    Args:
        value: The value.
        because: Why it is public. Readers of the release see this text.

    Returns:
        The value with its reason.

    Raises:
        PrivateValueError: If ``value`` contains an operator view.

    Example:
        >>> public(0.01, because="chosen before the data were seen").value
        0.01
    """
    _no_operator_view("value", value)
    return Public(value, because)


class Release(Mapping[str, Any]):
    """A frozen mapping of charged and public values. Reading gives the bare values.

    Guarantee:
        It holds only values that somebody marked as charged or public; an operator view is refused even if marked.

    Args:
        values: By name, values marked with :func:`charged` or :func:`public`, or other releases.

    Raises:
        PrivateValueError: If a value is not marked, or is or contains an operator view.

    Example:
        >>> release = Release({"noise_multiplier": public(1.1)})
        >>> release["noise_multiplier"]
        1.1
        >>> Release({"loss": 0.3})
        Traceback (most recent call last):
        tacit.ledger.release.PrivateValueError: 'loss' is a bare float: ...
    """

    __slots__ = ("_values",)
    _values: dict[str, Charged | Public | Release]

    def __init__(self, values: Mapping[str, Charged | Public | Release]) -> None:
        checked: dict[str, Charged | Public | Release] = {}
        for key, value in values.items():
            if isinstance(value, Charged | Public):
                _no_operator_view(key, value.value)
            elif isinstance(value, OperatorView):
                raise PrivateValueError(f"{key!r} is an operator view, which never enters a release")
            elif not isinstance(value, Release):
                raise PrivateValueError(
                    f"{key!r} is a bare {type(value).__name__}: mark it as charged(value, charge) or public(value). "
                    "What was computed from private data without a charge belongs in an OperatorView"
                )
            checked[str(key)] = value
        object.__setattr__(self, "_values", checked)

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return value if isinstance(value, Release) else value.value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError("a release is frozen; make a new one with release | {...}")

    def __or__(self, other: Mapping[str, Any]) -> Release:
        return Release({**self._values, **(other._values if isinstance(other, Release) else other)})

    def __reduce__(self) -> tuple[Any, ...]:
        return Release, (self._values,)

    def source(self, key: str) -> str:
        """Why a value may be released.

        Args:
            key: The name of the value.

        Returns:
            ``charged to people (charge 3f…)``, ``public: reason``, or ``release`` for a release inside this one.
        """
        value = self._values[key]
        if isinstance(value, Release):
            return "release"
        if isinstance(value, Charged):
            return f"charged to {value.dataset} (charge {value.charge})"
        return f"public: {value.because}"

    def to_dict(self) -> dict[str, Any]:
        """The bare values, with inner releases unwrapped, for JSON and trackers."""
        return {key: v.to_dict() if isinstance(v := self[key], Release) else v for key in self}

    def to_json(self, indent: int | None = 2) -> str:
        """The release as JSON text. Infinities become the string ``"inf"``.

        Args:
            indent: Spaces for each level; None writes one line.

        Returns:
            The text.
        """
        return json.dumps(json_values(self.to_dict()), indent=indent, ensure_ascii=False, allow_nan=False)

    def __repr__(self) -> str:
        return f"Release({', '.join(f'{key}={self[key]!r}' for key in self)})"


class OperatorView:
    """Diagnostics computed from private data without noise, **for the operator only**.

    Values are attributes. It is neither a mapping nor a dataclass, so that a tracker or JSON encoder that takes
    anything does not take it. A pickle carries the names, not the values.

    Guarantee:
        None: these values are not covered by differential privacy. They never enter a :class:`Release`.

    Args:
        values: The values by name.

    Example:
        >>> view = OperatorView(loss=0.31, clipped_fraction=0.5)
        >>> view
        OperatorView(loss=0.31, clipped_fraction=0.5) [operator view: not covered by the guarantee]
        >>> view.loss
        0.31
    """

    __slots__ = ("_here", "_values")
    _here: bool
    _values: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_here", True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(
                f"this operator view has no {name!r}; it has {', '.join(self._values) or 'nothing'}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError("an operator view is frozen")

    def names(self) -> tuple[str, ...]:
        """The names of the values."""
        return tuple(self._values)

    def reveal(self) -> dict[str, Any]:
        """The values as a plain dictionary, without the mark. Keep it with the operator."""
        return dict(self._values)

    def __copy__(self) -> OperatorView:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> OperatorView:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _left_behind, (self.names(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperatorView) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not self._here:
            return f"OperatorView({', '.join(self._values)}: values left behind by pickling) [{MARK}]"
        return f"OperatorView({', '.join(f'{k}={v!r}' for k, v in self._values.items())}) [{MARK}]"


def _left_behind(names: tuple[str, ...]) -> OperatorView:
    view = OperatorView(**dict.fromkeys(names))
    object.__setattr__(view, "_here", False)
    return view


class OperatorLog:
    """A private log: JSON lines in a file that only its owner can read (mode 0600).

    An existing file that others can read, that belongs to somebody else, or that is a link is refused rather than
    repaired: others may have it open already.

    Args:
        path: The file, created if it does not exist. New lines are appended.

    Raises:
        PrivateValueError: If the file cannot be opened, or others can reach it.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "operator.jsonl")
        >>> OperatorLog(path).write(OperatorView(loss=0.31), step=5)
        >>> "not covered by the guarantee" in path.read_text()
        True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        os.close(self._open())

    def write(self, view: OperatorView, **context: Any) -> None:
        """Append one view, with the time.

        Args:
            view: What to write.
            context: Public values beside it, such as the step.

        Raises:
            PrivateValueError: If ``view`` is not an operator view, or others can reach the file by now.
        """
        if not isinstance(view, OperatorView):
            raise PrivateValueError(f"an operator log takes an OperatorView, not {type(view).__name__}")
        line = {"time": datetime.datetime.now(datetime.UTC).isoformat(), "note": MARK, **context, **view.reveal()}
        text = json.dumps(json_values(line), ensure_ascii=False, default=repr) + "\n"
        descriptor = self._open()
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(text)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            descriptor = os.open(self.path, flags, stat.S_IRUSR | stat.S_IWUSR)
        except OSError as error:
            raise PrivateValueError(f"cannot open the operator log {self.path}: {error.strerror}") from None
        status = os.fstat(descriptor)
        reason = ""
        if stat.S_IMODE(status.st_mode) & 0o077:
            reason = f"can be reached by other users (mode {stat.S_IMODE(status.st_mode):04o})"
        elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            reason = "belongs to another user"
        if reason:
            os.close(descriptor)
            raise PrivateValueError(
                f"the operator log {self.path} {reason}; choose another file, or chmod 600 it first"
            )
        return descriptor

    def __repr__(self) -> str:
        return f"OperatorLog({self.path!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class EvaluationData:
    """Data to evaluate on: declared public with a reason, or private with the name of its data set.

    Guarantee:
        A result on private data is charged or is an :class:`OperatorView`; only results on public data are public.

    Args:
        data: The rows, in any form.
        because: Why the data are public; None if they are private.
        dataset: The name of the private data set in the ledger; None if they are public.

    Raises:
        PrivateValueError: If both or neither of ``because`` and ``dataset`` are given.

    Example:
        >>> test = EvaluationData.declared_public([1, 2], because="published benchmark")
        >>> test.metric("accuracy", 0.9).value
        0.9
        >>> EvaluationData.private([1, 2], dataset="people").metric("accuracy", 0.9)
        OperatorView(accuracy=0.9) [operator view: not covered by the guarantee]
    """

    data: Any
    because: str | None = None
    dataset: str | None = None

    def __post_init__(self) -> None:
        if bool(self.because) == bool(self.dataset):
            raise PrivateValueError(
                "evaluation data are public or private: give because (the reason) or dataset (its name), one of the two"
            )

    @classmethod
    def declared_public(cls, data: Any, *, because: str) -> EvaluationData:
        """Data that need no protection: results on them may be released.

        Args:
            data: The rows.
            because: Why they are public.

        Returns:
            The data, marked as public.
        """
        return cls(data, because=because)

    @classmethod
    def private(cls, data: Any, *, dataset: str) -> EvaluationData:
        """Data of a registered data set: results on them are charged, or stay with the operator.

        Args:
            data: The rows.
            dataset: The name of the data set in the ledger.

        Returns:
            The data, marked as private.
        """
        return cls(data, dataset=dataset)

    def metric(self, name: str, value: Any, charge: Charge | None = None) -> Charged | Public | OperatorView:
        """Mark a result on these data as public, charged, or for the operator only.

        Args:
            name: The name of the metric.
            value: The result. With ``charge``, the output of the mechanism that it paid for.
            charge: The charge that paid for the result on private data; None if none did.

        Returns:
            A public value for public data; for private data a charged value, or without ``charge`` an operator view.

        Raises:
            PrivateValueError: If the charge is on another data set.
        """
        if self.because:
            return public(value, because=f"computed on public data ({self.because}) and released outputs")
        if charge is None:
            return OperatorView(**{name: value})
        if charge.dataset != self.dataset:
            raise PrivateValueError(
                f"the charge is on {charge.dataset!r}, but the evaluation data belong to {self.dataset!r}"
            )
        return charged(value, charge)

    def __repr__(self) -> str:
        kind = f"public: {self.because}" if self.because else f"private: {self.dataset}"
        return f"EvaluationData({type(self.data).__name__}, {kind})"


def _no_operator_view(key: str, value: Any, depth: int = 0) -> None:
    if isinstance(value, OperatorView):
        raise PrivateValueError(f"{key!r} contains an operator view, which never enters a release, marked or not")
    if depth > 20:
        return
    if isinstance(value, Mapping) and not isinstance(value, Release):
        for name, inner in value.items():
            _no_operator_view(f"{key}.{name}", inner, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _no_operator_view(key, inner, depth + 1)


def json_values(value: Any) -> Any:
    """Plain values for JSON: infinities as text, numpy's scalars and arrays as numbers and lists."""
    if isinstance(value, Mapping):
        return {str(k): json_values(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(v) for v in value]
    if hasattr(value, "tolist"):
        return json_values(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
