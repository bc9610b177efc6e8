"""No pair of neighbouring tables moves a release further than its stated sensitivity, and some pair comes close.

Rows are drawn from what the sensitivities assume: scalars in [-1, 1], one-hot blocks, the constant. Every attack is on
the sums as they are computed and handed to the noise, not on formulas.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tacit.linear_model import descent, functional, releases
from tacit.linear_model import rows as rows_of_people
from tacit.linear_model.bounds import features_of
from tacit.linear_model.moments import ROUNDING, SLACK, Moments, bounded_sum, clipped_sum, to_grid
from tacit.linear_model.rows import Rows, kept_rows, make_rows
from tacit.linear_model.sensitivity import Shape
from tacit.schema import Categorical, Numeric, Schema, Unit

ADJACENCIES = ("add-remove", "replace-one", "zero-out")
FEW = settings(max_examples=120, deadline=None)


@st.composite
def tables(draw):
    """A shape, a few rows that fit it, and two further rows."""
    scalars, blocks = draw(st.integers(0, 4)), draw(st.integers(0, 2))
    if scalars + blocks == 0:
        scalars = 1
    shape = Shape(scalars, blocks, draw(st.booleans()))
    entry = st.one_of(st.sampled_from([-1.0, 1.0, 0.0]), st.floats(-1, 1))

    def row():
        parts = [draw(entry) for _ in range(scalars)]
        for _ in range(blocks):
            hot = draw(st.integers(0, 2))
            parts += [float(i == hot) for i in range(3)]
        return [1.0] * shape.intercept + parts, draw(entry)

    rows = [row() for _ in range(draw(st.integers(2, 5)))]
    x = to_grid(np.array([r[0] for r in rows]))
    return shape, x, to_grid(np.array([r[1] for r in rows]))


def neighbours(x, y, adjacency):
    """The table without its first row, with its first row replaced by its second, with its first row blanked."""
    if adjacency == "replace-one":
        return (x[1:], y[1:]), (np.vstack([x[:1], x[2:]]), np.r_[y[:1], y[2:]])
    if adjacency == "zero-out":
        return (x, y), (np.vstack([0 * x[:1], x[1:]]), np.r_[0.0, y[1:]])
    return (x, y), (x[1:], y[1:])


def moments(x, y, shape):
    return releases.moments(Rows(x, y, shape), target=True)


@FEW
@given(tables(), st.sampled_from(ADJACENCIES), st.sampled_from([1.0, 2.0]))
def test_second_moments_move_no_further_than_stated(table, adjacency, factor):
    shape, x, y = table
    one, two = (moments(*side, shape) for side in neighbours(x, y, adjacency))
    size = x.shape[1]
    moved = one - two
    upper = np.abs(moved[:size, :size][np.triu_indices(size)]).sum()
    room = size * (size + 1) / 2 * ROUNDING
    assert upper <= shape.quadratic(adjacency) + room
    assert np.abs(moved[:size, :size]).sum() <= shape.quadratic(adjacency, triangle=False) + size**2 * ROUNDING
    linear = np.abs(2 * moved[:size, size]).sum()
    assert linear <= shape.linear(adjacency) + 2 * size * ROUNDING
    for scales in ((1.0, 1.0), (3.0, 0.2), (0.1, 4.0)):
        joint = shape.joint(adjacency, *scales)
        assert upper / scales[0] + linear / scales[1] <= joint + room / scales[0] + 2 * size * ROUNDING / scales[1]
    scaling = np.r_[np.ones(size), factor]
    frobenius = np.linalg.norm(moved * np.outer(scaling, scaling))
    stated = releases.GaussianMatrix(shape, size + 1, factor).sensitivity
    assert frobenius <= stated * (math.sqrt(2) if adjacency == "replace-one" else 1)
    smallest = [np.linalg.eigvalsh(side.T @ side)[0] for side, _ in neighbours(x, y, adjacency)]
    assert abs(smallest[0] - smallest[1]) <= shape.smallest_eigenvalue() * (1 + 2.0**-10)


@FEW
@given(tables(), st.sampled_from(ADJACENCIES), st.floats(0.01, 100), st.integers(0, 2**32))
def test_clipped_gradients_move_no_further_than_stated(table, adjacency, clip_norm, seed):
    shape, x, y = table
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=(x.shape[1], 1)) * 10
    whitening = generator.normal(size=(x.shape[1], x.shape[1]))
    sums = [
        descent._gradient(
            descent._whitened(Rows(*side, shape), whitening), theta, lambda v, t: v - t[:, None], clip_norm
        )
        for side in neighbours(x, y, adjacency)
    ]
    limit = shape.clipped_sum(clip_norm, adjacency) * SLACK
    assert np.linalg.norm(sums[0] - sums[1]) <= limit * (1 + 1e-12)


@FEW
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6), st.floats(0.01, 10), st.sampled_from(ADJACENCIES))
def test_bounded_sums_move_no_further_than_stated(values, high, adjacency):
    one, two = neighbours(np.zeros((len(values), 1)), np.array(values), adjacency)
    moved = bounded_sum(one[1], high) - bounded_sum(two[1], high)
    assert abs(moved) <= Shape(1).bounded_sum(high)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 14])
def test_the_exact_numbers_are_attained_so_that_a_smaller_constant_fails(d):
    shape = Shape(d)
    triangle = np.triu_indices(d + 1)

    def upper(x, other):
        return np.abs((np.outer(x, x) - np.outer(other, other))[triangle]).sum()

    ones = np.ones(d + 1)
    opposite = np.r_[1.0, np.full(d, -1 / (d + 1))]
    assert upper(ones, opposite) == pytest.approx(shape.quadratic("replace-one"))
    assert shape.quadratic("replace-one") == pytest.approx(d * (d + 2) ** 2 / (2 * (d + 1)))
    assert upper(ones, 0 * ones) == shape.quadratic("add-remove") == (d + 1) * (d + 2) / 2
    assert 2 * np.abs(ones + ones).sum() == shape.linear("replace-one") == 4 * (d + 1)
    # Half the entries turned round: the full matrix moves by D², not by the published 2D².
    half = (d + 1) // 2
    turned = np.r_[np.ones(d + 1 - half), -np.ones(half)]
    full = np.abs(np.outer(ones, ones) - np.outer(turned, turned)).sum()
    assert full <= shape.quadratic("replace-one", triangle=False) == (d + 1) ** 2
    assert full == (d + 1) ** 2 - (d + 1) % 2
    # The joint number is attained by the same kind of pair with y = y' or y = -y'.
    best = max(
        upper(ones, np.r_[1.0, np.full(d, -t)]) + 2 * max(d * (1 + t), 2 + d * (1 - t))
        for t in np.linspace(-1, 1, 4001)
    )
    assert best == pytest.approx(shape.joint("replace-one", 1.0, 1.0), rel=1e-5)


def test_frobenius_is_attained_by_orthogonal_rows():
    # z = (1, x, y) of length 2 with the constant: (1, 1, 1, 1) and (1, -1, 1, -1) are orthogonal.
    one, two = np.ones(4), np.array([1.0, -1.0, 1.0, -1.0])
    moved = np.linalg.norm(np.outer(one, one) - np.outer(two, two))
    assert moved == pytest.approx(Shape(2).frobenius("replace-one", target=1.0))
    assert np.linalg.norm(np.outer(one, one)) == Shape(2).frobenius("add-remove", target=1.0)


@pytest.mark.parametrize(("scalars", "blocks"), [(0, 1), (1, 1), (2, 1), (1, 2), (3, 2)])
def test_blocks_count_once_and_the_bound_is_nearly_attained(scalars, blocks):
    shape = Shape(scalars, blocks)
    signs = [np.array(s) for s in itertools.product([-1.0, 1.0], repeat=scalars)] or [np.zeros(0)]
    one = np.r_[1.0, np.ones(scalars), np.tile([1.0, 0.0], blocks)]
    best = 0.0
    for s in signs:
        other = np.r_[1.0, s, np.tile([0.0, 1.0], blocks)]
        moved = np.outer(one, one) - np.outer(other, other)
        best = max(best, np.abs(moved[np.triu_indices(len(one))]).sum())
    assert shape.quadratic("replace-one") - 0.5 <= best <= shape.quadratic("replace-one")


@pytest.mark.parametrize("bounds", [(0.0, 100.0), (-1.0, 50.0), (-100.0, 0.0), (7.0, 8.0)])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_bounds_that_are_not_symmetric_have_the_sensitivity_of_both_ends(bounds, adjacency):
    """A diagonal sensitivity from the lower bound twice is a fault found in a peer (declared ε .1, real 3.14)."""
    features = features_of(bounds, 2, None)
    plan = functional.plan(Shape(2), 3, 0.1, adjacency)
    worst = 0.0
    corners = [[a, b] for a in bounds for b in bounds]
    for one, two in itertools.product(corners, corners):
        for y, other in itertools.product((-1.0, 1.0), repeat=2):
            sides = []
            for values, target in ((one, y), (two, other)):
                x = np.column_stack([[1.0], features.encode(np.array([values]))])
                sides.append(moments(x, np.array([target]), Shape(2)))
            moved = sides[0] - (sides[1] if adjacency == "replace-one" else 0)
            upper = np.abs(moved[:3, :3][np.triu_indices(3)]).sum()
            worst = max(worst, upper / plan.scales[0] + 2 * np.abs(moved[:3, 3]).sum() / plan.scales[1])
    assert 0.08 < worst <= 0.1


# -- groups, weights, schemas ------------------------------------------------------------------------------------------


@FEW
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 3)), min_size=1, max_size=12
    ),
    st.integers(1, 3),
    st.booleans(),
)
@example([(0, 1.0, 1.0, 3.0), (1, 0.5, 0.5, 1.0)], 1, True)  # a weight above the maximum, in every run
@example([(0, 1.0, -1.0, 3.0), (0, -1.0, 1.0, 3.0), (1, 0.0, 0.0, 0.5)], 2, True)
def test_all_rows_of_a_person_together_move_sums_no_further_than_stated(rows, most, weighted):
    features = features_of((-1, 1), 1, None)
    owners = np.array([r[0] for r in rows])

    def sums(kept):
        part = np.array([rows[i] for i in kept]).reshape(-1, 4)
        made = make_rows(
            features.encode(part[:, 1:2]),
            to_grid(part[:, 2]),
            features,
            intercept=True,
            weights=part[:, 3] if weighted and part[:, 3].any() else (np.ones(len(part)) if weighted else None),
            max_weight=2.0,
            groups=part[:, 0].astype(int),
            max_rows=most,
        )
        return releases.moments(made, target=True), made.shape

    with pytest.MonkeyPatch.context() as patch:
        # of both tables the draw that keeps the same rows of everybody else
        patch.setattr(rows_of_people, "uniform", lambda key, step, n: np.arange(n))
        (everyone, shape), (without, _) = (
            sums(range(len(rows))),
            sums([i for i in range(len(rows)) if owners[i] != owners[0]]),
        )
    assert shape.rows == most
    assert not shape.whole
    moved = everyone - without
    if weighted and not any(r[3] for i, r in enumerate(rows) if owners[i] != owners[0]):
        return
    size = 2
    assert np.abs(moved[:size, :size][np.triu_indices(size)]).sum() <= shape.quadratic("add-remove") + 3 * ROUNDING
    assert 2 * np.abs(moved[:size, size]).sum() <= shape.linear("add-remove") + 4 * ROUNDING
    assert np.linalg.norm(moved) <= shape.frobenius("add-remove", 1.0) + 3 * ROUNDING
    # A person replaced by one with other rows (or fewer) moves them no further than stated for replace-one either.
    half = np.linalg.norm(moved[:size, :size])
    assert half <= shape.frobenius("replace-one")
    assert shape.quadratic("replace-one") >= shape.quadratic("add-remove")


def test_a_draw_that_no_row_decides_keeps_rows_of_each_person(monkeypatch):
    owners = np.array(["a", "b", "a", "c", "a", "b"], dtype=object)
    kept = [tuple(kept_rows(owners, 6, 2).tolist()) for _ in range(400)]
    # every pair of a's three rows, each 400 / 3 times: 10 standard deviations
    assert {k: abs(kept.count(k) - 400 / 3) < 95 for k in set(kept)} == {
        (0, 1, 2, 3, 5): True, (0, 1, 3, 4, 5): True, (1, 2, 3, 4, 5): True,
    }  # fmt: skip
    # the draw for one person is the same whoever else is there
    without_b = np.flatnonzero(owners != "b")
    for words in itertools.permutations(range(6)):
        monkeypatch.setattr(rows_of_people, "uniform", lambda key, step, n, words=words: np.array(words))
        all_of_a = set(kept_rows(owners, 6, 2).tolist()) & {0, 2, 4}
        some = np.array(words)[without_b]
        monkeypatch.setattr(rows_of_people, "uniform", lambda key, step, n, some=some: some)
        assert set(without_b[kept_rows(owners[without_b], 4, 2)].tolist()) - {3} == all_of_a
    monkeypatch.undo()
    # A number has one owner however it is typed; a number and a text may be one person or two, and are refused.
    assert len(kept_rows([17, 17.0, np.int64(17), np.float32(17), 18], 5, 2)) == 3
    with pytest.raises(ValueError, match=r"numbers and text.*Convert"):
        kept_rows([17, "17"], 2, 1)
    for ids in ([1, None], pd.Series([1, pd.NA], dtype="Int64"), pl.Series([1, None])):
        with pytest.raises(ValueError, match="missing ids"):
            kept_rows(ids, 2, 1)


def test_one_hot_columns_of_a_schema_are_blocks():
    schema = Schema((Numeric("age", 0, 100), Categorical("ward", ["n", "s"])), Unit("person"))
    features = features_of(schema, 0, None)
    assert (features.scalars, features.blocks) == (1, 1)
    x = features.encode({"age": [50, 120], "ward": ["n", "unheard"]})
    assert np.abs(x).sum(axis=1).max() <= Shape(features.scalars, features.blocks, intercept=False).size


# -- exact arithmetic ----------------------------------------------------------------------------------------------


@FEW
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**32), st.integers(1, 7))
def test_sums_do_not_depend_on_the_order_or_the_pieces(rows, width, seed, piece):
    generator = np.random.default_rng(seed)
    x = to_grid(generator.uniform(-1, 1, (rows, width)))
    whole, pieces = Moments(width), Moments(width)
    whole.add(x)
    shuffled = x[generator.permutation(rows)]
    for start in range(0, rows, piece):
        part = Moments(width)
        part.add(shuffled[start : start + piece])
        pieces.merge(part)
    assert (whole.total() == pieces.total()).all()
    vectors = generator.normal(size=(rows, width))
    assert (clipped_sum(vectors, 0.7) == clipped_sum(vectors[::-1], 0.7)).all()


def test_a_row_in_a_large_table_moves_the_exact_sum_by_exactly_itself():
    # 300,000 rows whose plain binary64 sums would have rounded: the difference is still the row to within the grid.
    generator = np.random.default_rng(1)
    x = to_grid(generator.uniform(0.5, 1, (300_000, 1)))
    whole, without = Moments(1), Moments(1)
    whole.add(x)
    without.add(x[1:])
    assert abs((whole.total() - without.total())[0, 0] - x[0, 0] ** 2) <= ROUNDING


@FEW
@given(st.floats(0.02, 20), st.sampled_from(ADJACENCIES), st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_scales_of_the_functional_mechanism_cost_what_was_asked(epsilon, adjacency, d, rows, whole):
    shape = dataclasses.replace(Shape(d), rows=rows, whole=whole and rows == 1)
    for sensitivity, split in (("exact", "variance"), ("textbook", "equal"), ("exact", (epsilon / 4, epsilon * 3 / 4))):
        plan = functional.plan(shape, d + 1, epsilon, adjacency, sensitivity=sensitivity, split=split)
        one, two = plan.scales
        alone = shape.quadratic(adjacency) / one + shape.linear(adjacency) / two
        joint = shape.joint(adjacency, one, two)
        assert min(alone, joint) <= (plan.replaced if adjacency == "replace-one" else plan.added) <= epsilon
