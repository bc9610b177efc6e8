"""Does a table match its public schema? What its operator should know before a fit, and nobody else.

Everything here is computed from private rows without noise, so it is an :class:`tacit.ledger.OperatorView`.
"""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tacit.ledger import OperatorView
from tacit.runs.read import read_table
from tacit.schema import Boolean, Categorical, Date, Numeric, Schema, Text
from tacit.schema.columns import canonical

#: Values that are named in one finding.
SHOWN = 5
#: Of bounds that hold all but the outer percents of the values in less than this part, it is said.
FILLED = 0.25
#: Texts longer than this on average are taken for free text.
LONG = 30
#: Fewer whole numbers than this may well differ from one another.
NUMBERED = 100
#: Of values that are clipped, it is said from this share on.
CLIPPED = 0.01


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """One thing about one column: ``refused`` where a fit would be."""

    column: str
    text: str
    refused: bool = False


def check(path: Path, schema: Schema) -> OperatorView:
    """What does not match between a table and its schema, and what costs accuracy.

    Guarantee: none. The result is computed from the rows without noise and stays with the operator.
    """
    table = read_table(path, texts=True)
    found: list[Mismatch] = []
    for column in schema.columns:
        if column.name not in table.columns:
            near = _nearest(column.name, table.columns)
            found.append(Mismatch(column.name, f"not in the table{near}", refused=True))
        elif isinstance(column, Numeric) and not column.shape:
            found += _numeric(column, table)
        elif isinstance(column, Categorical):
            found += _categories(column, _texts(table[column.name]))
        elif isinstance(column, Boolean):
            found += _truths(column, _texts(table[column.name]))
        elif isinstance(column, Text):
            found.append(Mismatch(column.name, "text has no encoding: a fit takes it only --without this column", True))
    found += _units(schema, table)
    found += _unnamed(schema, table)
    return OperatorView(rows=table.height, findings=found)


def _texts(values: pl.Series) -> pl.Series:
    """A column as the texts by which categories are told apart."""
    if values.dtype == pl.String:
        return values
    return pl.Series(values.name, [None if v is None else canonical(v) for v in values.to_list()], dtype=pl.String)


def _missing(column: Any, values: pl.Series) -> list[Mismatch]:
    absent = int(values.is_null().sum()) + int((values == "").fill_null(False).sum())
    if not absent:
        return []
    told = f"{absent:,} missing values"
    if column.fill is None:
        return [Mismatch(column.name, f"{told}, and no fill = … in the schema", refused=True)]
    return [Mismatch(column.name, f"{told} become {column.fill}")]


def _numeric(column: Numeric, table: pl.DataFrame) -> list[Mismatch]:
    texts = table[column.name].cast(pl.String, strict=False).str.strip_chars()
    found = _missing(column, texts)
    if isinstance(column, Date):
        days = texts.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
        wrong = texts.filter(days.is_null() & texts.is_not_null() & (texts != ""))
        if len(wrong):
            told = f"{len(wrong):,} values are no dates such as 2024-12-31: {_some(wrong)}"
            return [*found, Mismatch(column.name, told, refused=True)]
        return found + _inside(column, days.cast(pl.Int32).cast(pl.Float64))
    numbers = texts.cast(pl.Float64, strict=False).fill_nan(None)
    wrong = texts.filter(numbers.is_null() & texts.is_not_null() & (texts != ""))
    wrong = wrong.filter(~wrong.str.to_lowercase().is_in(["nan", "true", "false"]))
    if len(wrong):
        dates = _share_of_dates(wrong) > 0.9
        what = "dates; declare kind = 'date'" if dates else f"text, such as {_some(wrong)}"
        return [*found, Mismatch(column.name, f"{len(wrong):,} values are {what}", refused=True)]
    return found + _numbered(column, numbers.drop_nulls()) + _inside(column, numbers)


def _numbered(column: Numeric, numbers: pl.Series) -> list[Mismatch]:
    """Whole numbers of which half of those between the least and the greatest occur, each once, are no measurement."""
    rows = len(numbers)
    if rows < NUMBERED or numbers.n_unique() < rows or not (numbers == numbers.round()).all():
        return []
    if float(numbers.max()) - float(numbers.min()) > 2 * rows:  # type: ignore[arg-type]
        return []
    return [Mismatch(column.name, "a different whole number in every row: ids? They predict nothing; leave them out")]


def _inside(column: Numeric, numbers: pl.Series) -> list[Mismatch]:
    """How the values fill the bounds."""
    found: list[Mismatch] = []
    numbers = numbers.drop_nulls()
    if not len(numbers):
        return found
    for beyond, bound, word in (
        (numbers < column.lower, column.lower, "below"),
        (numbers > column.upper, column.upper, "above"),
    ):
        share = int(beyond.sum()) / len(numbers)
        if share >= CLIPPED:
            found.append(
                Mismatch(
                    column.name, f"{share:.1%} of the values lie {word} {column.shown(bound)} and are clipped to it"
                )
            )
    low, high = (float(numbers.quantile(q, "linear") or 0.0) for q in (0.01, 0.99))
    part = (min(high, column.upper) - max(low, column.lower)) / (column.upper - column.lower)
    if part < FILLED:
        found.append(
            Mismatch(
                column.name,
                f"98% of the values fill {max(part, 0):.1%} of the bounds ({column.shown(column.lower)} to "
                f"{column.shown(column.upper)}): noise is made for all of it",
            )
        )
    return found


def _categories(column: Categorical, values: pl.Series) -> list[Mismatch]:
    found = _missing(column, values)
    counts = values.drop_nulls().value_counts(sort=True)
    known, unknown = set(column.categories), []
    for value, count in counts.iter_rows():
        if value not in known and value != "":
            unknown.append((value, int(count)))
    for value, count in unknown[:SHOWN]:
        near = _nearest(value, column.categories)
        where = "go to 'other'" if column.other else "are refused"
        found.append(Mismatch(column.name, f"{count:,} rows say {value!r}{near}; they {where}", not column.other))
    what = _kind(values.drop_nulls())
    if len(unknown) > SHOWN and what:
        found.append(Mismatch(column.name, f"declared with categories, and looks like {what}"))
    if len(unknown) > SHOWN:
        rest = sum(count for _, count in unknown[SHOWN:])
        found.append(
            Mismatch(column.name, f"{len(unknown) - SHOWN:,} more unknown values in {rest:,} rows", not column.other)
        )
    absent = [one for one in column.categories if one not in set(counts[values.name].to_list())]
    if absent:
        more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
        found.append(Mismatch(column.name, f"no row has {', '.join(map(repr, absent[:SHOWN]))}{more}"))
    return found


def _truths(column: Boolean, values: pl.Series) -> list[Mismatch]:
    found, words = _missing(column, values), {word.lower() for word in column.words()}
    strange = values.drop_nulls()
    strange = strange.filter(~strange.str.to_lowercase().is_in([*words, "1.0", "0.0", ""]))
    if len(strange):
        told = f"{len(strange):,} rows are neither {column.true!r} nor {column.false!r}, such as {_some(strange)}"
        found.append(Mismatch(column.name, told, refused=column.fill is None))
    return found


def _units(schema: Schema, table: pl.DataFrame) -> list[Mismatch]:
    """Rows per unit, where the schema names ids; else columns that look as if they held them."""
    unit, ids = schema.unit.name, schema.unit.column
    if ids is not None:
        if ids not in table.columns:
            return [Mismatch(ids, f"the ids of each {unit} are not in the table{_nearest(ids, table.columns)}", True)]
        absent = int(_texts(table[ids]).fill_null("").is_in(["", "NaN"]).sum())
        if absent:
            return [Mismatch(ids, f"{absent:,} rows have no id of a {unit}: every row needs its owner", True)]
        counts = table[ids].value_counts()["count"]
        typical, most = int(np.median(counts.to_numpy())), int(counts.to_numpy().max())
        lost = 1 - counts.clip(upper_bound=1).sum() / table.height
        told = f"{len(counts):,} different ids of a {unit}: a median of {typical} rows each, {most} at most"
        more = f"; with --max-rows 1 {lost:.0%} of the rows are left out" if most > 1 else ""
        return [Mismatch(ids, told + more)]
    used = {column.name for column in schema.columns}
    found = []
    for name in table.columns:
        distinct = table[name].n_unique()
        named = name.lower().endswith("id") or name.lower() == unit.lower()
        if name not in used and named and 1 < distinct < table.height:
            found.append(
                Mismatch(
                    name,
                    f"looks like ids that repeat ({distinct:,} in {table.height:,} rows), and the schema says that "
                    f"each row is a different {unit}: if it is one {unit} with several rows, name it as unit.column",
                )
            )
    return found


def _unnamed(schema: Schema, table: pl.DataFrame) -> list[Mismatch]:
    """What columns are that the schema leaves out."""
    used = {column.name for column in schema.columns} | {schema.unit.column}
    found = []
    for name in table.columns:
        if name in used:
            continue
        what = _kind(table[name].cast(pl.String, strict=False).drop_nulls())
        found.append(Mismatch(name, f"not in the schema: {what or 'ignored'}"))
    return found


def _kind(values: pl.Series) -> str:
    """What texts look like, in words, if it is no categories."""
    if len(values) and _share_of_dates(values) > 0.9:
        return "dates; with kind = 'date' they could be used"
    if len(values) > 1 and values.n_unique() == len(values):
        return "a different value in every row: ids, or free text"
    if len(values) and int(values.str.len_chars().sum()) > LONG * len(values):
        return "free text"
    return ""


def _share_of_dates(values: pl.Series) -> float:
    best = 0.0
    for pattern in ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y/%m/%d"):
        days = values.str.slice(0, 10).str.to_date(pattern, strict=False)
        best = max(best, int(days.is_not_null().sum()) / len(values))
    return best


def _nearest(word: str, among: Any) -> str:
    """The nearest spelling, in words; a difference in case or spaces first."""
    plain = {str(one).strip().lower(): str(one) for one in among}
    near = difflib.get_close_matches(word.strip().lower(), list(plain), 1, 0.7)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""


def _some(values: pl.Series) -> str:
    return ", ".join(repr(value) for value in values.unique(maintain_order=True).head(3).to_list())
