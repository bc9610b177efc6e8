"""How do a table, pictures or a known data set become records to train on? By the public schema, row by row."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.runs.settings import IN_MEMORY, Settings, SettingsError
from tacit.schema import Boolean, Categorical, Date, Encoded, Numeric, Schema, SchemaError, Text
from tacit.sgd.training.kept import lists_owners


class DataError(ValueError):
    """Data that cannot be read or trained on; the message shows no value of them."""


@dataclasses.dataclass(frozen=True)
class Form:
    """What a model must fit: how many numbers a record has, how many outputs there are, and the shape of pictures."""

    inputs: int
    outputs: int
    picture: tuple[int, ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> Form:
        """From the public schema: one output for each class, or one number."""
        features = schema.features
        pictures = len(features) == 1 and isinstance(features[0], Numeric)
        shape = features[0].shape if pictures and isinstance(features[0], Numeric) else ()
        return cls(sum(column.width for column in features), len(schema.classes) or 1, shape)


@dataclasses.dataclass(frozen=True, eq=False)
class TableRecords:
    """A table as tensors: the private rows, and rows to evaluate on."""

    schema: Schema
    x: Tensor
    y: Tensor
    units: NDArray[Any] | None
    test: tuple[Tensor, Tensor] | None
    #: What a fingerprint is taken of: a file, a table in memory, or None.
    source: Any
    name: str

    @property
    def form(self) -> Form:
        """What a model of these records must fit."""
        return Form.of(self.schema)

    @property
    def owners(self) -> NDArray[Any]:
        """Whose row each private row is; a schema without a column of ids says that each is another's."""
        return self.units if self.units is not None else np.arange(len(self.x))

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the schema says about rows and units, and nothing can check."""
        unit = self.schema.unit.name
        if self.units is not None or unit == "record":
            return ()
        return (
            f"Every row is a different {unit}: the schema says so by naming no column of ids. This was not checked.",
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """What is given from memory in place of files: a table with its schema, and rows to evaluate on."""

    data: Any = None
    schema: Schema | None = None
    evaluate: Any = None


def read_table(path: Path, schema: Schema | None = None, *, texts: bool = False) -> Any:
    """A CSV or Parquet file as a polars frame. Messages show nothing of what is in it.

    A CSV file does not say what its columns are. With a ``schema`` its numeric columns are read as numbers and all
    others as text, with ``texts`` all of them; types that are guessed from the rows would let one row decide how all
    the others are read.
    """
    import polars as pl

    if not path.exists():
        raise DataError(f"there is no file {path}, and no known data set of that name (tacit data list)")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            frame = pl.read_parquet(path)
        elif path.suffix.lower() == ".csv":
            frame = pl.read_csv(path, infer_schema_length=None, infer_schema=schema is None and not texts)
        else:
            raise DataError(f"{path}: a table is a .csv or .parquet file. {texts_go_to(str(path))}")
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError):
        how = "; save it as UTF-8, with a comma between values" if path.suffix.lower() == ".csv" else ""
        raise DataError(f"{path} cannot be read as a {path.suffix.lstrip('.')} file{how}") from None
    if frame.width == 1 and path.suffix.lower() == ".csv" and any(sign in frame.columns[0] for sign in ";\t"):
        raise DataError(f"{path} has one column: write a comma between values, not a semicolon or a tab")
    if frame.height == 0:
        raise DataError(f"{path} has no rows")
    return frame if schema is None or path.suffix.lower() != ".csv" else _with_numbers(frame, schema)


def _with_numbers(frame: Any, schema: Schema) -> Any:
    """The numeric columns of a table of texts as numbers, each value by itself."""
    import polars as pl

    for column in schema.columns:
        if not isinstance(column, Numeric) or isinstance(column, Date) or column.name not in frame.columns:
            continue
        text = frame[column.name].str.strip_chars().str.to_lowercase()
        words = text.replace_strict({"true": 1.0, "false": 0.0, "nan": float("nan")}, default=None)
        numbers = text.cast(pl.Float64, strict=False).fill_null(words.cast(pl.Float64))
        if (numbers.is_null() & text.is_not_null() & (text != "")).any():
            raise SchemaError(f"column {column.name!r} holds text that is no number; convert the column first")
        frame = frame.with_columns(numbers.alias(column.name))
    return frame


def schema_of(settings: Settings) -> Schema:
    """The public schema of the data, with the target that was chosen; no record is read."""
    return predicted(_declared(settings), settings)


def _declared(settings: Settings) -> Schema:
    """The schema as its file, or the catalogue, has it."""
    from tacit import datasets

    if is_known(settings.data):
        return datasets.schema(settings.data)
    if settings.schema is None:
        raise SettingsError(
            "schema: a table of your own needs a schema file: public bounds, categories, target and unit. "
            + texts_go_to(settings.data)
        )
    return Schema.from_toml(settings.schema)


def texts_go_to(data: str) -> str:
    """How texts are trained on, with the name of the file that was given.

    >>> texts_go_to("mails.txt")
    'Texts are trained on by: tacit prompt tune mails.csv --task generate --template "{text}" (first write mails.txt as
    a .csv or .parquet file with the column text, and one with the ids of the owners for --unit-column)'
    """
    table = Path(data).suffix.lower() in ("", ".csv", ".parquet", ".pq")
    named = data if table else str(Path(data).with_suffix(".csv"))
    first = "" if table else f"first write {data} as a .csv or .parquet file with "
    columns = f" ({first}the column text, and one with the ids of the owners for --unit-column)"
    return f'Texts are trained on by: tacit prompt tune {named} --task generate --template "{{text}}"{columns}'


def predicted(schema: Schema, settings: Settings) -> Schema:
    """The schema with the target and the features that the settings choose; no record is read."""
    if settings.target is None and not settings.without:
        return schema
    try:
        return schema.predicting(settings.target, settings.without)
    except SchemaError as error:
        raise SettingsError(f"{'target' if settings.target is not None else 'without'}: {error}") from None


def is_known(data: str) -> bool:
    """Whether this is the name of a known data set, and not a file."""
    from tacit import datasets

    return data in datasets.CATALOG and not Path(data).exists()


@dataclasses.dataclass(frozen=True, eq=False)
class _Source:
    """Rows that are not encoded yet: with their schema as it was declared, and a way to encode them by another."""

    schema: Schema
    rows: Callable[[Schema], Encoded]
    test: Callable[[Schema], Encoded] | None
    #: What a fingerprint is taken of.
    origin: Any

    def public_rows(self, share: float) -> NDArray[np.bool_]:
        """The side of each row. It does not depend on the target or on what is left out.

        Otherwise two runs of one table with different targets would each declare other rows public, and a row that one
        run protects would be evaluated on by the other.
        """
        texts = tuple(column.name for column in self.schema.columns if isinstance(column, Text))
        return self.rows(self.schema.predicting(without=texts) if texts else self.schema).public_rows(share)


def read(settings: Settings, given: Tables | None = None) -> TableRecords:
    """Read, encode by the public schema, and part the rows that are declared public from the private ones."""
    given = given or Tables()
    source = _known(settings) if is_known(settings.data) else _own(settings, given)
    schema = predicted(source.schema, settings)
    if schema.target is None:
        raise SchemaError(
            "the schema marks no column as the target (target = true) and none is named (--target): there is nothing "
            "to predict"
        )
    _refuse_texts(schema, settings.data)
    rows, test = source.rows(schema), source.test and source.test(schema)
    if settings.evaluate is not None and test is None:
        table = given.evaluate if given.evaluate is not None else read_table(Path(settings.evaluate), schema)
        test, _ = schema.encode(table, dtype=np.float32)
    x, y = torch.from_numpy(rows.features), _target(rows.target)
    units, pair = rows.units, None
    if settings.public_share is not None:
        if units is not None and lists_owners(units):
            raise SettingsError("public_share: rows with several owners cannot be parted by owner; give evaluate")
        chosen_before = settings.target is None and not settings.without
        named = rows if units is not None or chosen_before else source
        public_side = named.public_rows(settings.public_share)
        if public_side.all() or not public_side.any():
            raise SettingsError(f"public_share: {settings.public_share:g} leaves no row on one of the two sides")
        units = None if units is None else units[~public_side]
        chosen = torch.from_numpy(public_side)
        x, y, pair = x[~chosen], y[~chosen], (x[chosen], y[chosen])
    elif test is not None:
        pair = torch.from_numpy(test.features), _target(test.target)
    _check_groups(schema, settings.by)
    stem = "table" if settings.data == IN_MEMORY else Path(settings.data).stem
    return TableRecords(schema, x, y, units, pair, source.origin, schema.name or stem)


def _refuse_texts(schema: Schema, data: str) -> None:
    """Refuse a column of texts among the features, and say what trains on it."""
    if text := next((column.name for column in schema.features if isinstance(column, Text)), None):
        raise SettingsError(
            f"column {text!r} is text, which public bounds cannot encode. Adapt a language model to it: tacit prompt "
            f"tune {data}; or embed it with a model that was not trained on these data, or leave it out (--without)"
        )


def _known(settings: Settings) -> _Source:
    """A known data set, with its split to evaluate on, and its file where it has one."""
    from tacit import datasets

    dataset = datasets.load(settings.data, settings.data_dir)

    def encoded(split: str | None, schema: Schema) -> Encoded:
        return dataclasses.replace(dataset, schema=schema).encode(split, dtype=np.float32)[0]

    evaluated = settings.evaluate is not None and settings.evaluate in dataset.splits
    return _Source(
        dataset.schema,
        functools.partial(encoded, None),
        functools.partial(encoded, settings.evaluate) if evaluated else None,
        dataset.files[0] if len(dataset.files) == 1 else None,
    )


def _own(settings: Settings, given: Tables) -> _Source:
    """A table of the user's, in a file or in memory."""
    if given.data is None and settings.data == IN_MEMORY:
        raise SettingsError(
            "data: the rows of this run were given from memory: give them again, as in "
            "tacit.run(table, schema=schema, resume=folder)"
        )
    declared = given.schema if given.schema is not None else _declared(settings)
    origin = Path(settings.data) if given.data is None else given.data

    def encoded(schema: Schema) -> Encoded:
        table = read_table(origin, schema) if given.data is None else origin
        return schema.encode(table, dtype=np.float32)[0]

    return _Source(declared, encoded, None, origin)


def _target(values: Any) -> Tensor:
    array = np.asarray(values)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iub" else array.astype(np.float32))


def _check_groups(schema: Schema, by: tuple[str, ...]) -> None:
    for name in by:
        column = next((c for c in schema.features if c.name == name), None)
        if not isinstance(column, Boolean | Categorical):
            fit = [c.name for c in schema.features if isinstance(c, Boolean | Categorical)]
            raise SettingsError(f"by: {name!r} is no feature with categories; there are {', '.join(fit) or 'none'}")
