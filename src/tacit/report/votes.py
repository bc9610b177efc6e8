"""What do I show of answers by teachers' noisy votes? The card and the pages of a PATE run.

The card claims the data-independent ε. A data-dependent ε may not be published, and the card says so in its place. If
a sanitised estimate was released, the card shows it as a charged value. Margins of the votes, and the data-dependent
prices themselves, are on the operator's page only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit import accounting as acc
from tacit.ledger import OperatorView, Release, charged, public
from tacit.pate import Answers
from tacit.pate.accounts import NOT_PUBLISHABLE
from tacit.report import plots
from tacit.report.elements import NOT_COVERED, entry, figure, marked, numbers
from tacit.report.files import write_whole
from tacit.report.operator import make_operator_page
from tacit.report.page import make_page, over_steps
from tacit.report.plots import Axis, Line
from tacit.report.run import Evaluation, Run
from tacit.report.words import number, rounded

SANITISED = "data-dependent ε, sanitised (a noisy estimate, not a bound)"
_MARGINS = ("margin_edges", "margin_counts", "margin_answered")


def describe_answers(answers: Answers, name: str, **rest: Any) -> Run:
    """The run of some :class:`tacit.pate.Answers`, with ``rest`` for what only the user knows.

    >>> from tacit.pate import GNMax
    >>> run = describe_answers(GNMax(vote_noise=40, classes=2).answer([[90, 10]] * 9, queries=9), "labels")
    >>> run.steps_planned, run.mechanism
    (9, Votes(40) * 9)
    """
    privacy, accounts, kind = answers.privacy, answers.accounts, answers.aggregator
    table = answers.votes
    given = answers.answered.cumsum()
    planned = sum(times for part, times in privacy.mechanism.parts() if isinstance(part, type(kind.vote_mechanism())))

    def after(count: int) -> acc.Bound:
        """The data-independent price of the first queries: as planned, or under a filter as they were answered."""
        most = min(count, planned) if planned else int(given[count - 1])
        ran = kind.plan(count, most, partition=table.partition, unit=table.unit)
        return acc.epsilon(ran, privacy.delta, adjacency=privacy.adjacency)

    evaluations = list(rest.pop("evaluations", ()))
    if accounts.sanitised is not None:
        order, paid = accounts.sanitised.order, accounts.release_charge
        note = f"at Rényi order {order:g}, with what its release cost; the guarantee is the ε at the top"
        kept = (
            charged(accounts.sanitised.epsilon, paid)
            if paid is not None
            else public(
                accounts.sanitised.epsilon, "output of the sanitised release; priced here, charged to no ledger"
            )
        )
        evaluations.append(Evaluation(SANITISED, kept, model="release", note=note))
    parameters = {
        "aggregator": type(kind).__name__,
        **{k: v for k, v in vars(kind).items()},
        "teachers": table.teachers,
        "partition": table.partition,
        "answered": privacy.details["answered"],
        "data-dependent ε by theorem 6": NOT_PUBLISHABLE,
        "exact ε of the votes": NOT_PUBLISHABLE,
    }
    usual: dict[str, Any] = {
        "adjacency": privacy.adjacency,
        "epsilon": privacy.interval,
        "after": after if len(answers) > 1 else None,
        "method": "PATE: teachers on disjoint people label public queries by noisy votes (Papernot et al. 2018)",
        "purpose": "labels by teachers' noisy votes",
        "parameters": parameters,
        "sampler": "none: every teacher votes on every query",
        "steps_planned": len(answers),
        "steps_executed": len(answers),
        "basis": "every query that was asked, answered or not",
        "generator": privacy.details["noise"],
        "records_public": False,  # nothing on the card follows from their number
        "covered": ("the labels, which queries have none, and every student trained on them",),
        "evaluations": tuple(evaluations),
    }
    if answers.charge is not None:
        usual |= {
            "ledger": answers.charge.ledger,
            "dataset": answers.charge.dataset,
            "charge": answers.charge.number,
        }
    return Run(name, privacy.mechanism, delta=privacy.delta, **(usual | rest))


def make_votes_page(card: Release) -> str:
    """The report of a PATE card: the usual page, and ε against queries with the sanitised estimate beside it."""
    return make_page(card).replace(over_steps(card), _against_queries(card), 1) if _has_curve(card) else make_page(card)


def _has_curve(card: Release) -> bool:
    return entry(card, "guarantee.over_steps") is not None


def write_votes_page(card: Release, path: str | os.PathLike[str]) -> Path:
    """Write ``report.html``, whole or not at all."""
    return write_whole(path, make_votes_page(card))


def _against_queries(card: Release) -> str:
    curve = entry(card, "guarantee.over_steps")
    queries, upper = curve["steps"], curve["upper"]
    results = card["evaluation"]
    estimate = next((results[k]["value"] for k in results if results[k]["metric"] == SANITISED), None)
    delta = number(entry(card, "guarantee.delta"))
    last = number(rounded(upper[-1]))
    words = f"The data-independent ε of the answers reaches {last} after {queries[-1]} queries."
    lines = [Line(queries, upper)]
    mark = (queries[-1], upper[-1], f"data-independent: ε = {last}")
    if estimate is not None:
        words += f" The sanitised data-dependent estimate is {number(rounded(estimate))}."
        mark = (queries[-1], estimate, f"sanitised: ε ≈ {number(rounded(estimate))}")
    drawing = plots.chart(
        "queries",
        "ε against queries",
        words,
        Axis("queries put to the teachers", 0, queries[-1]),
        Axis(f"ε at δ = {delta}", 0, max([*upper, estimate or 0.0]) * 1.12),
        lines,
        area=lines[0],
        mark=mark,
    )
    caption = (
        "The line: what the answers cost whatever the votes were, without the release of an estimate. If it was "
        "released, the mark: the sanitised estimate of what they cost, given how clearly the teachers agreed. Other "
        "data-dependent values may not be published: they are computed from private votes."
    )
    heads = ("queries", "ε at least", "ε at most")
    path = "guarantee.over_steps"
    return figure(path, drawing, caption, numbers(curve, "steps", heads, path))


def votes_view(answers: Answers) -> OperatorView:
    """What the operator may look at: margins, answers by margin, and the data-dependent prices."""
    values = answers.diagnostics().reveal()
    values["epsilon_theorem6"] = float(answers.accounts.theorem6)
    if answers.accounts.exact is not None:
        values["epsilon_exact"] = float(answers.accounts.exact)
    return OperatorView(**values)


def make_votes_operator_page(card: Release, views: Sequence[OperatorView]) -> str:
    """The operator's page of a PATE run: the usual one, and histograms of the votes' margins."""
    plain = [OperatorView(**{k: v for k, v in view.reveal().items() if k not in _MARGINS}) for view in views]
    text = make_operator_page(card, plain)
    drawn = "".join(_margins(view.reveal()) for view in views if "margin_edges" in view.names())
    return text.replace("<h2>Diagnostics</h2>", "<h2>Diagnostics</h2>" + drawn, 1)


def write_votes_operator_page(card: Release, views: Sequence[OperatorView], path: str | os.PathLike[str]) -> Path:
    """Write the operator's page so that only its owner can read it."""
    return write_whole(path, make_votes_operator_page(card, views), 0o600)


def _margins(values: dict[str, Any]) -> str:
    edges, every, given = (values[name] for name in _MARGINS)
    if not sum(every):
        return ""
    across = Axis("margin: largest count less the second, as a share of the teachers", 0, 1, percent=True)
    bars = [(edges[i], edges[i + 1], float(c)) for i, c in enumerate(every)]
    clear = sum(c for (left, _, c) in bars if left >= 0.5) / sum(every)
    histogram = plots.chart(
        "margins",
        f"Margins of the votes ({NOT_COVERED})",
        f"{clear:.0%} of the queries have a margin of half of the teachers or more.",
        across,
        Axis("queries", 0, max(every) * 1.1),
        [],
        bars=bars,
    )
    shares = [(edges[i], edges[i + 1], g / c) for i, (c, g) in enumerate(zip(every, given, strict=True)) if c]
    answered = plots.chart(
        "answered",
        f"Answered by margin ({NOT_COVERED})",
        f"{sum(given)} of {sum(every)} queries were answered.",
        across,
        Axis("answered", 0, 1, percent=True),
        [],
        bars=shares,
    )
    return marked(histogram, "Margins of the votes") + marked(answered, "Answered and abstained by margin")
