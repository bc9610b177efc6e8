"""Do teachers' votes keep their promises? Who moves how many votes, what noise they get, what is published of them."""

from __future__ import annotations

import dataclasses
import functools
import math
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from tacit import accounting as acc
from tacit.audit import bounds, statistics
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded
from tacit.ledger.release import PrivateValueError
from tacit.noise import Key
from tacit.pate import (
    NO_ANSWER,
    Aggregator,
    Answers,
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
    Teachers,
    VoteCounts,
)
from tacit.pate import partition as dealing
from tacit.selftest import tap
from tacit.selftest.scene import Scene, charged, ledger_of, refused

#: Rounding that a price may have.
SLACK = 1e-6
Counts = npt.NDArray[np.int64]


def votes_are_as_priced(seed: int) -> list[Finding]:
    """How often the check passes and the smaller side wins, against the stated noise; the price against its formula."""
    threshold, check, vote, high, low, many = 120.0, 30.0, 20.0, 110, 90, 6000
    teachers = ConfidentGNMax(threshold=threshold, check_noise=check, vote_noise=vote, classes=2)
    answers = teachers.answer([[high, low]] * many, queries=many, teachers=high + low)
    passed, won = int(answers.answered.sum()), int((answers.labels[answers.answered] == 0).sum())
    found = [
        Finding(
            "votes: check noise",
            statistics.frequency_p_value(passed, many, float(special.ndtr((high - threshold) / check))),
            f"{passed} of {many} queries passed the check",
        ),
        Finding(
            "votes: vote noise",
            statistics.frequency_p_value(won, passed, float(special.ndtr((high - low) / (math.sqrt(2) * vote)))),
            f"the larger side won {won} of {passed}",
        ),
    ]
    few, ledger = 40, ledger_of()
    mu = math.sqrt(few / check**2 + few * 2 / vote**2)
    exact = bounds.gaussian_epsilon(mu, 1e-5)
    priced = teachers.answer([[high, low]] * few, queries=few, teachers=high + low, ledger=ledger, dataset="people")
    claimed = priced.privacy.claim
    found.append(
        holds(
            "votes: price",
            claimed >= exact * (1 - SLACK),
            f"claimed ε = {claimed:.4f} for {few} queries, closed form {exact:.4f}",
        )
    )
    spent = charged(ledger, 1e-5)
    found.append(holds("votes: charged", spent >= exact * (1 - SLACK), f"charged {spent:.4f} of {exact:.4f}"))
    scale = 15.0
    laplace = LNMax(scale=scale, classes=2)
    right = int((laplace.answer([[high, low]] * many, queries=many, teachers=high + low).labels == 0).sum())
    gap = (high - low) / scale
    expected = 1 - math.exp(-gap) * (2 + gap) / 4  # the difference of two Laplace numbers
    pure = laplace.answer([[high, low]], queries=1, teachers=high + low).privacy.at(1e-9).upper
    return [
        *found,
        Finding("votes: Laplace", statistics.frequency_p_value(right, many, expected), f"right {right} of {many}"),
        holds(
            "votes: Laplace price", pure >= 2 / scale * (1 - 1e-3), f"claimed {pure:.4f} a query, pure {2 / scale:.4f}"
        ),
    ]


# -- what one teacher costs --------------------------------------------------------------------------------------------


def _tables(seed: int, queries: int = 8, teachers: int = 60) -> tuple[Counts, Counts]:
    """Votes of the same teachers, one of whom votes otherwise in every query."""
    rng = np.random.default_rng(seed)
    one = rng.multinomial(teachers - 1, [0.6, 0.3, 0.1], size=queries)
    first, other = one.copy(), one.copy()
    first[:, 0] += 1
    other[np.arange(queries), 1 + np.arange(queries) % 2] += 1
    return first, other


def neighbours_cost_what_is_claimed(seed: int) -> list[Finding]:
    """One teacher who votes otherwise, along the same noisy outcomes: what it costs, and that labels follow from it."""
    first, other = _tables(seed)
    count, delta = len(first), 1e-5
    scores = np.full((count, 3), 1 / 3)
    always: dict[str, Any] = {"threshold": -1e6, "check_noise": 9.0, "vote_noise": 7.0, "classes": 3}
    cases: list[tuple[str, Aggregator, dict[str, Any]]] = [
        ("GNMax", GNMax(vote_noise=7.0, classes=3), {"queries": count}),
        ("Confident-GNMax", ConfidentGNMax(**always), {"queries": count}),
        ("Confident-GNMax, few", ConfidentGNMax(**always), {"queries": count, "answers": 3}),
        ("Interactive-GNMax", InteractiveGNMax(**always), {"queries": count, "scores": scores}),
        ("LNMax", LNMax(scale=11.0, classes=3), {"queries": count}),
        ("GNMax, filter", GNMax(vote_noise=7.0, classes=3), {"epsilon": 1.1}),
        ("Confident-GNMax, filter", ConfidentGNMax(**always), {"epsilon": 1.1}),
        ("LNMax, filter", LNMax(scale=11.0, classes=3), {"epsilon": 0.8}),
    ]
    found = []
    for name, aggregator, settings in cases:
        ledger = ledger_of()
        more = settings | {"delta": delta, "teachers": 60}
        try:
            one, heard = tap.listen(
                lambda a=aggregator, s=more, e=ledger: a.answer(first, ledger=e, dataset="people", **s)  # type: ignore[misc]
            )
            two, again = tap.listen(lambda a=aggregator, s=more: a.answer(other, **s), heard)  # type: ignore[misc]
        except tap.PathDiffers as error:
            found.append(holds(f"{name}: labels by noisy votes", False, str(error)))
            continue
        if isinstance(aggregator, ConfidentGNMax):  # checks of queries that were not asked any more are never seen
            heard, again = _asked(heard, len(one)), _asked(again, len(one))
        mu, pure = tap.gaussian_cost(heard, again), tap.laplace_cost(heard, again)
        cost = pure + (bounds.gaussian_epsilon(mu, delta) if mu else 0.0)
        claim = one.privacy.claim if not pure else one.privacy.at(1e-12).upper
        text = f"one teacher costs {cost:.5f}, claimed {claim:.5f}"
        asked = 0.0 < cost <= claim * (1 + 1e-3 if pure else 1 + SLACK)
        asked = asked and int(one.answered.sum()) <= settings.get("answers", count)
        budget = settings.get("epsilon", math.inf)
        found.append(holds(f"{name}: cost", asked and claim <= budget * (1 + SLACK), text))
        spent = charged(ledger, 1e-12 if pure else delta)
        found.append(holds(f"{name}: charged", spent >= cost * (1 - 1e-3), f"charged {spent:.5f} for {cost:.5f}"))
        same = bool(np.array_equal(one.labels, two.labels))
        found.append(
            holds(f"{name}: labels by noisy votes", same and len(one) > 0, "the same outcomes, the same labels")
        )
    return found


def _asked(draws: list[tap.Draw], count: int) -> list[tap.Draw]:
    first, *rest = draws
    return [dataclasses.replace(first, value=first.value[:count], outcome=first.outcome[:count]), *rest]


def the_check_is_a_check(seed: int) -> list[Finding]:
    """Who fails the check gets no answer; a sure student keeps its own; the filter stops before the budget does."""
    clear = [[60, 0]] * 4 + [[30, 30]] * 4
    asked = ConfidentGNMax(threshold=50, check_noise=1.0, vote_noise=1.0, classes=2).answer(clear, queries=8)
    right = asked.answered.tolist() == [True] * 4 + [False] * 4 and (asked.labels[4:] == NO_ANSWER).all()
    sure = np.array([[0.99, 0.01]] * 4 + [[0.6, 0.4]] * 4)
    own = InteractiveGNMax(threshold=55, check_noise=1.0, vote_noise=1.0, classes=2)
    kept = own.answer(clear, queries=8, scores=sure)
    student = bool((kept.labels[:4] == 0).all() and not kept.answered.any() and (kept.labels[4:] == NO_ANSWER).all())
    x, labels, rest = asked.labelled(list(range(8)))
    votes = [[60, 0]] * 4000
    tight = ConfidentGNMax(threshold=10, check_noise=40.0, vote_noise=30.0, classes=2)
    filtered = tight.answer(votes, epsilon=2.0, delta=1e-5, teachers=60)
    mu = math.sqrt(len(filtered) / 40.0**2 + int(filtered.answered.sum()) * 2 / 30.0**2)
    cost = bounds.gaussian_epsilon(mu, 1e-5)
    one_more = bounds.gaussian_epsilon(math.sqrt(mu**2 + 1 / 40.0**2 + 2 / 30.0**2), 1e-5)
    return [
        holds("check: who fails gets no answer", bool(right), f"answered {asked.answered.tolist()}"),
        holds("check: a sure student", student, f"labels {kept.labels.tolist()}"),
        holds("labelled queries", x == [0, 1, 2, 3] and len(labels) == 4 and rest == [4, 5, 6, 7], "by their answers"),
        holds("filter", cost <= 2.0 * (1 + SLACK) < one_more * (1 + 1e-2), f"ε = {cost:.4f} of 2 was used"),
    ]


# -- who moves a vote --------------------------------------------------------------------------------------------------


def _majority(x: Any, y: Any) -> Callable[[Any], Any]:
    """A teacher that says its commonest label."""
    label = int(np.bincount(np.asarray(y)).argmax())
    return lambda queries: np.full(len(queries), label)


def _votes(people: list[int], labels: list[int], key: Key | None, **more: Any) -> Counts:
    x = np.array(people, dtype=np.float64)[:, None]
    teachers = Teachers(_majority, (x, np.array(labels)), 50, groups=people, key=key, seed=1, **more)
    return teachers.fit(progress=False).vote(np.zeros((7, 1))).counts


def people_move_one_vote(seed: int) -> list[Finding]:
    """Fifty teachers and few people: most teachers have nobody to learn from, and one person still moves one vote."""
    rng = np.random.default_rng(seed)
    moved: dict[str, int] = {"keyed": 0, "keyed, replaced": 0, "positions": 0, "classes unknown": 0}

    def apart(one: Counts, other: Counts) -> int:
        width = max(one.shape[1], other.shape[1])
        wide = [np.pad(c, ((0, 0), (0, width - c.shape[1]))) for c in (one, other)]
        return int(np.abs(wide[0] - wide[1]).sum(1).max()) // 2

    for _ in range(4):
        key = Key(rng.bytes(32), repeatable=True)
        labels = [0, 0, 0, 1, 1]
        people = [1, 1, 2, 3, 4]
        for extra in ([2], [2, 2, 1], [0]):
            base = _votes(people, labels, key, classes=3)
            more = _votes([9] * len(extra) + people, extra + labels, key, classes=3)
            moved["keyed"] = max(moved["keyed"], apart(base, more))
            other = _votes([8] * len(extra) + people, [1] * len(extra) + labels, key, classes=3)
            moved["keyed, replaced"] = max(moved["keyed, replaced"], apart(more, other))
            unknown = [_votes([9, *people], [label, *labels], key) for label in (0, 2)]
            moved["classes unknown"] = max(moved["classes unknown"], apart(*unknown))
        one = _votes([9, *people], [2, *labels], None, classes=3, partition="positions")
        two = _votes([7, *people], [0, *labels], None, classes=3, partition="positions")
        moved["positions"] = max(moved["positions"], apart(one, two))
    limits = {"keyed": 1, "keyed, replaced": 2, "positions": 1, "classes unknown": 1}
    rows = np.repeat(np.arange(40.0), 2)[:, None]
    taught: list[set[float]] = []

    def listening(x: Any, y: Any) -> Callable[[Any], Any]:
        taught.append(set(np.asarray(x).ravel().tolist()))
        return lambda queries: np.zeros(len(queries), int)

    Teachers(listening, (rows, np.zeros(80, int)), 6, groups=rows.ravel(), classes=2).fit(progress=False)
    shared = sum(len(a & b) for i, a in enumerate(taught) for b in taught[:i])
    plain = Teachers(listening, (rows, np.zeros(80, int)), 6, classes=2).fit(progress=False)
    return [
        *(holds(f"one person: {name}", moved[name] <= limits[name], f"{moved[name]} votes moved") for name in limits),
        holds("teachers are disjoint", shared == 0 and len(taught) > 6, f"{shared} people are with two teachers"),
        holds("equal records, one teacher", _together(taught[6:]), "copies of a record are with one teacher"),
        holds("unit of the votes", plain.vote(rows).unit == "record", "a record without ids, a person with them"),
    ]


def _together(parts: list[set[float]]) -> bool:
    return sum(len(part) for part in parts) == len(set().union(*parts))


def teachers_are_prices(seed: int) -> list[Finding]:
    """What the partition allows is what is priced: two teachers for a replaced person, nothing for positions."""
    votes = {p: VoteCounts(np.array([[30, 30]] * 5), 60, p) for p in ("keyed", "positions", "any")}
    teacher = GNMax(vote_noise=20.0, classes=2)
    found = []
    for partition, adjacency, teachers in (
        ("keyed", "add-remove", 1),
        ("keyed", "replace-one", 2),
        ("positions", "replace-one", 1),
        ("any", "replace-one", 1),
    ):
        claim = teacher.answer(votes[partition], queries=5, adjacency=adjacency).privacy.claim
        exact = bounds.gaussian_epsilon(teachers * math.sqrt(5 * 2) / 20.0, 1e-5)
        text = f"claimed {claim:.4f}, closed form {exact:.4f}"
        found.append(holds(f"{partition} under {adjacency}", claim >= exact * (1 - SLACK), text))
    for kind in (acc.Votes, acc.VoteCheck, acc.LaplaceVotes, functools.partial(acc.SmoothRelease, 0.02)):
        asked = kind(20.0, partition="keyed") * 5
        pair = acc.epsilon(asked, 1e-5, adjacency="add-remove", group=2).upper
        claim = acc.epsilon(asked, 1e-5, adjacency="replace-one").upper
        text = f"{asked!r}: claimed {claim:.4f}, two people added or removed cost {pair:.4f}"
        found.append(holds("keyed: a replaced person is two", claim >= pair * (1 - SLACK), text))
    positions = refused(
        "positions",
        {
            "add-remove": (
                lambda: teacher.answer(votes["positions"], queries=5, adjacency="add-remove").privacy,
                acc.AdjacencyError,
            )
        },
    )
    usual = teacher.answer(votes["positions"], queries=5).privacy.interval.terms
    people = ["a", "b", "a", "c", "b", "d", "a", 7, 7.0]
    dealt = [dealing.positions(people, 3), dealing.keyed(people, 3, Key(bytes(32), repeatable=True))]
    one = [len({int(t) for p, t in zip(map(str, people), part, strict=True) if p[0] == "a"}) for part in dealt]
    same = [part[-1] == part[-2] for part in dealt]
    rows = dealing.contents([(1, "x"), (1.0, "x"), (2, "x"), (1, None), (1, b"x")], [0, 0, 0, 0, 0])
    apart = len(set(rows)) == 4 and rows[0] == rows[1]
    found.append(holds("partition: a person has one teacher", one == [1, 1] and all(same), f"{dealt}"))
    key, crowd = Key(bytes(32), repeatable=True), [f"person {k}" for k in range(60)]
    before = dict(zip(crowd, dealing.keyed(crowd, 7, key).tolist(), strict=True))
    for name, others in {"one less": crowd[1:], "in another order": crowd[::-1], "in each row": crowd + crowd}.items():
        after = dealing.keyed(others, 7, key).tolist()
        moved = sum(before[person] != part for person, part in zip(others, after, strict=True))
        found.append(holds(f"partition: the others stay, {name}", not moved, f"{moved} have another teacher"))
    found.append(holds("partition: contents", apart, "equal records are one, others are not"))
    return [*found, positions, holds("positions: usual terms", "replace" in usual, usual)]


# -- what depends on the votes -----------------------------------------------------------------------------------------


def _true_renyi(high: int, low: int, sigma: float, order: float) -> tuple[float, float]:
    """The divergence of the label of two classes from that of the worse neighbour, and the other way round."""

    def law(a: int, b: int) -> npt.NDArray[np.float64]:
        z = (a - b) / (math.sqrt(2) * sigma)
        return np.array([special.ndtr(z), special.ndtr(-z)])

    here, away, back = law(high, low), 0.0, 0.0
    for step in (-1, 1) if low else (-1,):
        there = law(high + step, low - step)
        away = max(away, math.log(float((here**order * there ** (1 - order)).sum())) / (order - 1))
        back = max(back, math.log(float((there**order * here ** (1 - order)).sum())) / (order - 1))
    return away, back


def data_dependent_accounts_hold(seed: int) -> list[Finding]:
    """Divergences computed from the votes are at least those of the labels, and at most those of any votes."""
    worst: dict[str, float] = {"exact": math.inf, "theorem 6": math.inf}
    for sigma in (8.0, 20.0):
        for high in (31, 40, 55, 60):
            answers = GNMax(vote_noise=sigma, classes=2).answer([[high, 60 - high]], queries=1, teachers=60)
            for order in (2.0, 8.0, 20.0):
                true = _true_renyi(high, 60 - high, sigma, order)
                for way in worst:
                    stated = answers.accounts.renyi([order], way).divergences[:, 0]  # theorem 6 is about one direction
                    for one, exact in zip(stated.tolist(), true, strict=False):
                        worst[way] = min(worst[way], one / exact, order / sigma**2 / one)
    many = [[58, 2]] * 30 + [[35, 25]] * 3
    settings: dict[str, Any] = {"threshold": 45, "check_noise": 12.0, "vote_noise": 10.0, "classes": 2}
    answers = ConfidentGNMax(**settings).answer(many, queries=33, teachers=60)
    accounts = answers.accounts
    assert accounts.exact is not None
    three = [float(accounts.exact), float(accounts.theorem6), answers.privacy.claim]
    interactive = InteractiveGNMax(**settings).answer(many, queries=33, teachers=60, scores=np.full((33, 2), 0.5))
    laplace = LNMax(scale=20.0, classes=2).answer(many, queries=33, teachers=60)
    return [
        *(
            holds(f"{way} at least the truth", ratio >= 1 - 1e-9, f"stated over true, at least {ratio:.6f}")
            for way, ratio in worst.items()
        ),
        holds("accounts in order", three[0] <= three[1] * (1 + SLACK) and three[1] <= three[2] * 1.05, f"{three}"),
        holds(
            "accounts: interactive",
            float(interactive.accounts.theorem6) > 0 and interactive.accounts.exact is not None,
            repr(interactive.accounts.exact),
        ),
        holds(
            "accounts: Laplace",
            laplace.accounts.exact is None and float(laplace.accounts.theorem6) <= laplace.privacy.claim * 1.05,
            repr(laplace.accounts.theorem6),
        ),
    ]


def _converted(order: float, divergence: float, delta: float) -> float:
    """ε of a Rényi divergence (Canonne, Kamath & Steinke 2020, proposition 12)."""
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def sanitised_releases_are_smooth(seed: int) -> list[Finding]:
    """Noise of a sanitised release: as large as one vote moves it, and changing by at most e^β between neighbours."""
    delta, beta, multiplier, order = 1e-5, 0.05, 3.0, 6.0
    chain: dict[int, tuple[float, float]] = {}
    for moved in range(40):
        # From nearly unanimous to nearly split, vote by vote.
        votes = [[150 - moved, moved], [140, 10], [148 - moved, 2 + moved]]
        aggregator = ConfidentGNMax(threshold=60, check_noise=10.0, vote_noise=14.0, classes=2)
        answers = aggregator.answer(votes, queries=3, teachers=150, delta=delta)
        if not answers.answered.all():  # which of them pass is part of the outcome: compare like with like
            continue
        _, heard = tap.listen(
            lambda a=answers: a.accounts.sanitise(order=order, beta=beta, noise=multiplier)  # type: ignore[misc]
        )
        chain[moved] = float(heard[-1].value), heard[-1].scale / multiplier
    steps = [(one, chain[moved + 1]) for moved, one in chain.items() if moved + 1 in chain]
    # Two of the three queries move, as if one teacher had voted otherwise in both.
    local = max(abs(a[0] - b[0]) / min(a[1], b[1]) for a, b in steps)
    ratio = max(abs(math.log(a[1] / b[1])) for a, b in steps)
    ledger = ledger_of()
    answers = GNMax(vote_noise=10.0, classes=2).answer(
        [[140, 10]] * 20, queries=20, teachers=150, ledger=ledger, dataset="people"
    )
    before = answers.privacy.claim
    estimate, heard = tap.listen(lambda: answers.accounts.sanitise())
    after, spent = answers.privacy.claim, charged(ledger, delta)
    shown = answers.release().to_dict()
    priced = acc.SmoothRelease(beta, multiplier)
    found = acc.renyi(priced, [order])[0]
    return [
        holds("sanitised: local", len(steps) > 10 and local <= 1 + SLACK, f"one vote moves {local:.4f} sensitivities"),
        holds(
            "sanitised: smooth", ratio <= beta * (1 + SLACK), f"the log of the noise moves by {ratio:.4f}, β = {beta}"
        ),
        holds("sanitised: priced", found >= _unequal(order, beta, multiplier) * (1 - 1e-9), f"divergence {found:.5f}"),
        holds(
            "sanitised: states its own cost",
            estimate.epsilon >= _converted(estimate.order, estimate.renyi + estimate.cost, estimate.delta) * (1 - 1e-9)
            and estimate.cost > 0,
            f"{estimate}",
        ),
        holds("sanitised: noise", len(heard) == 1 and heard[0].scale > 0, "the published number has noise"),
        holds(
            "sanitised: paid",
            before < after <= spent * (1 + 1e-3) and ledger.budget("people").charges == 2,
            f"claimed {before:.4f} before and {after:.4f} after; charged {spent:.4f}",
        ),
        holds(
            "release of votes",
            "not publishable" in str(shown["theorem6"]) and float(shown["epsilon"]) >= after * (1 - SLACK),
            "data-dependent prices are not in it",
        ),
        refused(
            "sanitised: refusals",
            {
                "twice": (answers.accounts.sanitise, ValueError),
                "Laplace votes": (
                    lambda: LNMax(scale=9.0, classes=2).answer([[9, 1]], queries=1).accounts.sanitise(),
                    ValueError,
                ),
                "an interactive check": (
                    lambda: (
                        InteractiveGNMax(threshold=-99, check_noise=9.0, vote_noise=9.0, classes=2)
                        .answer([[9, 1]], queries=1, scores=[[0.5, 0.5]])
                        .accounts.sanitise()
                    ),
                    ValueError,
                ),
                "an order of 1": (lambda: _fresh().accounts.sanitise(order=1.0), ValueError),
                "a wide β": (lambda: _fresh().accounts.sanitise(order=50.0, beta=1.0), ValueError),
            },
        ),
        holds("an estimate", estimate.epsilon > 0 and "estimate" in repr(estimate), repr(estimate)),
    ]


def _fresh() -> Answers:
    return GNMax(vote_noise=10.0, classes=2).answer([[140, 10]] * 3, queries=3, teachers=150)


def _unequal(order: float, beta: float, noise: float) -> float:
    """The Rényi divergence of two normal laws one smooth step apart, the larger of both directions, by integration."""
    worst = 0.0
    for wide, narrow in ((1.0, math.exp(-beta)), (math.exp(-beta), 1.0)):
        shift = min(wide, narrow)
        a, b = wide * noise, narrow * noise
        x = np.linspace(-60 * noise, 60 * noise, 400_001)
        log_p = -((x - shift) ** 2) / (2 * a * a) - math.log(a)
        log_q = -(x**2) / (2 * b * b) - math.log(b)
        density = np.exp(order * log_p + (1 - order) * log_q) / math.sqrt(2 * math.pi)
        worst = max(worst, math.log(float(np.trapezoid(density, x))) / (order - 1))
    return worst


# -- from votes to a student -------------------------------------------------------------------------------------------


def students_see_answers_only(seed: int) -> list[Finding]:
    """Teachers of every kind vote; the counts stay with the operator; a student learns from answers and public rows."""
    import torch
    from sklearn.linear_model import LogisticRegression
    from torch import nn

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, 1, 8, 8)).astype(np.float32)
    y = (x[:, 0, 0, 0] > 0).astype(np.int64)

    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    flat = x.reshape(120, -1)
    dealt: dict[str, Any] = {"classes": 2, "seed": seed, "key": Key(rng.bytes(32), repeatable=True)}
    by_torch, again = (Teachers(network, (x, y), 4, **dealt).fit(steps=4, average=0.5, progress=False) for _ in "ab")
    by_sklearn = Teachers(LogisticRegression(), (flat, y), 4, classes=[0, 1]).fit(progress=False)

    def fails(x: Any, y: Any) -> Any:
        if len(x) % 2:
            raise RuntimeError("no")
        return _majority(x, y)

    by_hand = Teachers(fails, (flat[:101], y[:101]), 7, classes=2).fit(progress=False)
    votes = by_torch.vote(x[:20])
    counts = [votes.counts, by_sklearn.vote(flat[:20]).counts, by_hand.vote(flat[:20]).counts]
    whole = all((c.sum(1) == n).all() for c, n in zip(counts, (4, 4, 7), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "votes.npz"
        votes.save(path)
        same = np.array_equal(VoteCounts.load(path).counts, votes.counts)
        closed = path.stat().st_mode & 0o077 == 0
        other = Path(folder) / "other.npz"
        np.savez(other, a=1)
        files = refused(
            "votes: files",
            {
                "over another": (lambda: votes.save(path), OSError),
                "no votes": (lambda: VoteCounts.load(other), ValueError),
                "no file": (lambda: VoteCounts.load(Path(folder) / "none"), ValueError),
            },
        )
    answers = GNMax(vote_noise=1.0, classes=2).answer(votes, queries=12)
    rows = torch.as_tensor(x[:20])
    options: dict[str, Any] = {"steps": 3, "batch_size": 8, "device": "cpu"}
    students = [
        answers.fit(network(), rows, **options),
        answers.fit(network(), rows, method="supervised", **options),
        answers.fit(network, rows, method="committee", members=2, **options),
        answers.fit(network, rows, method="committee", members=2, crossed=True, **options),
        answers.fit(LogisticRegression(), flat[:20], sure=0.5),
    ]
    shown = f"{votes!r} {by_torch!r} {answers!r} {answers.diagnostics()!r} {by_torch.diagnostics(x[:9], y[:9])!r}"
    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "votes that are pickled": (lambda: pickle.dumps(votes), PrivateValueError),
        "queries by their votes": (lambda: votes[[0, 2]], TypeError),  # type: ignore[index]
        "votes that are fractions": (lambda: VoteCounts(np.array([[0.5, 1]]), 2), ValueError),
        "votes below 0": (lambda: VoteCounts(np.array([[-1, 1]]), 2), ValueError),
        "more votes than teachers": (lambda: VoteCounts(np.array([[2, 1]]), 2), ValueError),
        "one class": (lambda: GNMax(vote_noise=1.0, classes=1), ValueError),
        "no noise": (lambda: GNMax(vote_noise=0.0, classes=2), ValueError),
        "no threshold": (
            lambda: ConfidentGNMax(threshold=math.nan, check_noise=1.0, vote_noise=1.0, classes=2),
            ValueError,
        ),
        "neither a number nor a budget": (lambda: GNMax(vote_noise=1.0, classes=2).answer(votes), ValueError),
        "more queries than votes": (lambda: GNMax(vote_noise=1.0, classes=2).answer(votes, queries=99), ValueError),
        "half a query": (lambda: GNMax(vote_noise=1.0, classes=2).answer(votes, queries=0.5), ValueError),  # type: ignore[arg-type]
        "answers without a check": (
            lambda: GNMax(vote_noise=1.0, classes=2).answer(votes, queries=2, answers=1),
            ValueError,
        ),
        "a ledger without a data set": (
            lambda: GNMax(vote_noise=1.0, classes=2).answer(votes, queries=2, ledger=ledger_of()),
            ValueError,
        ),
        "more than is left": (
            lambda: GNMax(vote_noise=1.0, classes=2).answer(
                votes, queries=2, ledger=ledger_of(0.01, 1e-6), dataset="people"
            ),
            BudgetExceeded,
        ),
        "δ of 1": (lambda: GNMax(vote_noise=1.0, classes=2).answer(votes, queries=2, delta=1.0), ValueError),
        "other classes": (lambda: GNMax(vote_noise=1.0, classes=3).answer(votes, queries=2), ValueError),
        "scores where none are used": (
            lambda: GNMax(vote_noise=1.0, classes=2).answer(votes, queries=2, scores=[[1, 0]] * 20),
            ValueError,
        ),
        "no scores": (
            lambda: InteractiveGNMax(threshold=1, check_noise=1.0, vote_noise=1.0, classes=2).answer(votes, queries=2),
            ValueError,
        ),
        "a budget below 0": (lambda: GNMax(vote_noise=1.0, classes=2).answer(votes, epsilon=-1.0), ValueError),
        "no teachers": (lambda: Teachers(network, (x, y), 0), ValueError),
        "an unknown partition": (lambda: Teachers(network, (x, y), 3, partition="random"), ValueError),
        "people without ids": (lambda: Teachers(network, (x, y), 3, unit="person"), ValueError),
        "ids of another length": (lambda: Teachers(network, (x, y), 3, groups=[1]), ValueError),
        "no records": (lambda: Teachers(network, (x[:0], y[:0]), 3), ValueError),
        "labels of another length": (lambda: Teachers(network, (x, y[:4]), 3), ValueError),
        "labels that are not public": (lambda: Teachers(network, (x, y), 3, classes=["a", "b"]), ValueError),
        "labels above the classes": (lambda: Teachers(network, (x, y + 5), 3, classes=2), ValueError),
        "a model that is none": (lambda: Teachers(7, (x, y), 3), TypeError),
        "a vote before training": (lambda: Teachers(network, (x, y), 3).vote(x), RuntimeError),
        "teachers that all fail": (
            lambda: Teachers(lambda x, y: 1 / 0, (flat, y), 3).fit(progress=False),
            RuntimeError,
        ),
        "a student without answers": (
            lambda: (
                ConfidentGNMax(threshold=1e6, check_noise=1.0, vote_noise=1.0, classes=2)
                .answer(votes, queries=2)
                .fit(network(), rows)
            ),
            ValueError,
        ),
        "queries that are missing": (lambda: answers.fit(network(), rows[:3]), ValueError),
        "a student that is none": (lambda: answers.fit(lambda: 3, rows), TypeError),
        "an unknown method": (lambda: answers.fit(network(), rows, method="magic"), ValueError),
    }
    repeated = np.array_equal(votes.counts, again.vote(x[:20]).counts)
    return [
        holds("every teacher votes once", whole, "counts add up to the number of teachers"),
        holds("teachers by their seed", repeated, "trained again, they vote the same"),
        holds("votes in a file", same and closed, "read back, and closed to others"),
        holds("students", all(s is not None for s in students), f"{len(students)} kinds"),
        holds("operator views", shown.count("[") >= 4 and "private" in shown, "they say that they are not for others"),
        files,
        refused("votes: refusals", cases),
    ]


SCENES = (
    Scene("votes", "pate", votes_are_as_priced),
    Scene("votes: neighbours", "pate", neighbours_cost_what_is_claimed),
    Scene("votes: check and filter", "pate", the_check_is_a_check),
    Scene("votes: people", "pate", people_move_one_vote),
    Scene("votes: partitions", "pate", teachers_are_prices),
    Scene("votes: accounts", "pate", data_dependent_accounts_hold),
    Scene("votes: sanitised", "pate", sanitised_releases_are_smooth, long=True),
    Scene("votes: students", "pate", students_see_answers_only),
)
