"""What is publicly known about a whole table?

Its columns, its target and its unit of privacy. A schema is a frozen value: it can be compared, written to a file and
read back, and it never holds anything computed from data.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.schema import encoding, toml
from tacit.schema.columns import AnyColumn, Boolean, Categorical, Date, Numeric, SchemaError, Text, Unit, check_columns


@dataclass(frozen=True)
class Schema:
    """Public bounds and categories of a table, and its unit of privacy.

    Args:
        columns: The columns that are used: :class:`Numeric`, :class:`Date`, :class:`Categorical`, :class:`Boolean` or
            :class:`Text`. At most one of them is the target.
        unit: Whom the guarantee protects.
        name: Name of the table, for people.
        description: A note for people.

    Raises:
        SchemaError: If the columns contradict each other, or ``unit`` is not a :class:`Unit`.

    Example:
        >>> from tacit.schema import Categorical, Numeric, Schema, Unit
        >>> schema = Schema((Numeric("age", 17, 90), Categorical("sex", ["Female", "Male"])), Unit("person"))
        >>> schema.feature_names
        ('age', 'sex=Female', 'sex=Male', 'sex=other')
    """

    columns: tuple[AnyColumn, ...]
    unit: Unit
    name: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not isinstance(self.unit, Unit):
            raise SchemaError(f"the unit of privacy must be a Unit, for example Unit('person'), not {self.unit!r}")
        check_columns(self.columns, self.unit)

    @classmethod
    def from_toml(cls, path: str | Path) -> Schema:
        """Read a schema file.

        Args:
            path: A TOML file.

        Returns:
            The schema.

        Raises:
            SchemaError: If the file cannot be read or has a mistake; the message names the file and the column.
        """
        text = toml.read(path)
        try:
            return cls.parse_toml(text)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from error

    @classmethod
    def parse_toml(cls, text: str) -> Schema:
        """Read a schema from TOML text.

        Args:
            text: TOML with a table for the unit and one for each column.

        Returns:
            The schema.

        Example:
            >>> Schema.parse_toml('''
            ... [unit]
            ... name = "person"
            ... [columns.age]
            ... kind = "numeric"
            ... lower = 0
            ... ''')
            Traceback (most recent call last):
            tacit.schema.columns.SchemaError: column 'age' (numeric): upper is missing; add it to [columns.age]...
        """
        columns, unit, name, description = toml.parse(text)
        return cls(columns, unit, name, description)

    def to_toml(self) -> str:
        """The schema as TOML text, which reads back to an equal schema.

        Example:
            >>> from tacit.schema import Numeric, Schema, Unit
            >>> schema = Schema((Numeric("age", 0, 90),), Unit("person"))
            >>> Schema.parse_toml(schema.to_toml()) == schema
            True
        """
        return toml.write(self.columns, self.unit, self.name, self.description)

    def __getitem__(self, name: str) -> AnyColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"the schema has no column {name!r}; it has {', '.join(c.name for c in self.columns)}")

    @property
    def features(self) -> tuple[AnyColumn, ...]:
        """The columns that are not the target."""
        return tuple(column for column in self.columns if not column.target)

    @property
    def target(self) -> Numeric | Categorical | Boolean | None:
        """The target column, or None if the schema has none."""
        for column in self.columns:
            if column.target and not isinstance(column, Text):
                return column
        return None

    def predicting(self, target: str | None = None, without: Sequence[str] = ()) -> Schema:
        """The same table with another target, or with fewer features. The choice is public: no row is looked at.

        The former target becomes a feature, and every other column stays one. Leave out what would not be known when
        the model is used, or follows from the answer, such as the income of those whose employment is predicted.

        Args:
            target: The column to predict, any but text and arrays. Yes/no and categories make it a classification, a
                number a regression. None keeps the target.
            without: Columns that are left out.

        Returns:
            A schema that differs in its target and features only; columns keep their order.

        Raises:
            SchemaError: If there is no such column, if it cannot be a target, or if no feature is left.

        Example:
            >>> from tacit.schema import Boolean, Numeric, Schema, Unit
            >>> schema = Schema((Boolean("employed"), Numeric("income", 0, 100, target=True)), Unit("person"))
            >>> schema.predicting("employed").feature_names, schema.predicting("employed").classes
            (('income',), ('false', 'true'))
        """
        names = [column.name for column in self.columns]
        for name in [*([] if target is None else [target]), *without]:
            if name not in names:
                close = difflib.get_close_matches(name.lower(), names, 1)
                meant = f"; did you mean {close[0]!r}?" if close else ""
                raise SchemaError(f"the schema has no column {name!r}{meant}; {_could_be(self.columns)}")
        if target is not None and target in without:
            raise SchemaError(f"column {target!r} is the target and cannot be left out")
        if target is not None and not _can_be_target(self[target]):
            what = "text" if isinstance(self[target], Text) else "a column of arrays"
            raise SchemaError(f"column {target!r} is {what} and cannot be the target; {_could_be(self.columns)}")
        kept = [column for column in self.columns if column.name not in without]
        if target is not None:
            kept = [c if isinstance(c, Text) else replace(c, target=c.name == target) for c in kept]
        return replace(self, columns=tuple(kept))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of the encoded features, in order."""
        return tuple(name for column in self.features for name in column.feature_names)

    @property
    def classes(self) -> tuple[str, ...]:
        """Labels of a categorical or boolean target, in the order of the encoded class numbers; empty otherwise."""
        return self.target.labels if isinstance(self.target, (Categorical, Boolean)) else ()

    def encode(
        self, table: Any, *, dtype: type[np.floating[Any]] = np.float64, target: bool = True
    ) -> tuple[encoding.Encoded, encoding.EncodingDiagnostics]:
        """Turn a table into numbers in [-1, 1] by public bounds alone.

        Numbers are clipped to their bounds (infinities too), categories become one-hot vectors, booleans become -1 and
        +1. A numeric target is scaled like a feature; a categorical or boolean target becomes class numbers in the
        order of :attr:`classes`. A missing value becomes the column's public ``fill``, or is an error that names the
        column.

        Guarantee:
            Each row is encoded by itself, so neither the sensitivity nor the adjacency of what follows changes. The
            counts returned beside it are computed from the data without noise: they are for the operator only.

        Args:
            table: A mapping from column names to sequences, a polars or pandas data frame, or a structured numpy array.
                Columns that the schema does not name are ignored.
            dtype: Type of the encoded numbers.
            target: Whether to encode the target too. False is for prediction: target and ids may then be absent.

        Returns:
            The encoded table, and the operator's counts of what was clipped, unknown or filled.

        Raises:
            SchemaError: If a column is absent, or holds something that the schema does not allow.

        Example:
            >>> from tacit.schema import Numeric, Schema, Unit
            >>> schema = Schema((Numeric("age", 0, 100), Numeric("income", 0, 200, target=True)), Unit("person"))
            >>> encoded, operator_view = schema.encode({"age": [50, 100], "income": [0, 300]})
            >>> encoded.features[:, 0].tolist(), encoded.target.tolist()
            ([0.0, 1.0], [-1.0, 1.0])
        """
        return encoding.encode(self, table, dtype=dtype, with_target=target)

    def decode_target(self, values: ArrayLike) -> NDArray[np.float64]:
        """Bring values of a numeric target from [-1, 1] back to its own unit.

        Args:
            values: Numbers in [-1, 1], such as predictions.

        Returns:
            The same numbers in the unit of the target.

        Raises:
            SchemaError: If the schema has no numeric target.

        Example:
            >>> from tacit.schema import Numeric, Schema, Unit
            >>> schema = Schema((Numeric("age", 0, 90), Numeric("income", 0, 200_000, target=True)), Unit("person"))
            >>> schema.decode_target([-1.0, 0.0, 0.5])
            array([     0., 100000., 150000.])
        """
        if not isinstance(self.target, Numeric):
            kind = "no target" if self.target is None else f"the {self.target.kind} target {self.target.name!r}"
            raise SchemaError(f"only a numeric target can be decoded, and this schema has {kind}; see Schema.classes")
        return np.asarray(values, dtype=np.float64) * self.target.half_width + self.target.middle


def _can_be_target(column: AnyColumn) -> bool:
    return not isinstance(column, Text | Date) and not (isinstance(column, Numeric) and column.shape)


def _could_be(columns: Sequence[AnyColumn]) -> str:
    """Which columns can be a target, in words."""
    found = [column.name for column in columns if _can_be_target(column)]
    return f"a target can be {', '.join(found)}" if found else "no column of it can be a target"
