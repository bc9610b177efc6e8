"""How good is a model, and who may know? Results on public rows are published; those on private rows stay here."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from tacit.ledger import EvaluationData, OperatorView
from tacit.report import Evaluation, PublicSource
from tacit.runs.models import build, squared_error
from tacit.runs.read import TableRecords
from tacit.runs.settings import Settings
from tacit.schema import Boolean, Categorical, Numeric, Schema
from tacit.schema.encoding import PUBLIC_KEY

#: Folds of the cross-fitted reference on public rows.
FOLDS = 5
#: Passes of the reference over its rows.
PASSES = 30
#: The normal quantile of a 95% interval.
QUANTILE = 1.959964


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        out = torch.cat([model(part.to(device)).cpu() for part in x.split(4096)])
    model.train()
    return out


def predict(model: nn.Module, x: Tensor, schema: Schema) -> Tensor:
    """Class numbers, or the target on its encoded scale."""
    out = _outputs(model, x)
    return out.argmax(1).float() if schema.classes else out.squeeze(1)


def share_interval(share: float, rows: int) -> tuple[float, float]:
    """The 95% interval of a share that was counted on independent rows (Wilson 1927).

    >>> [round(end, 3) for end in share_interval(0.8, 100)]
    [0.711, 0.867]
    """
    squared = QUANTILE**2
    middle = (share + squared / (2 * rows)) / (1 + squared / rows)
    half = QUANTILE / (1 + squared / rows) * math.sqrt(share * (1 - share) / rows + squared / (4 * rows**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _mean_interval(values: Tensor) -> tuple[float, float]:
    """The 95% interval of a mean over independent rows; with one row there is none."""
    if len(values) < 2:
        return -math.inf, math.inf
    mean, half = float(values.mean()), QUANTILE * float(values.std()) / math.sqrt(len(values))
    return mean - half, mean + half


def _metric(predicted: Tensor, y: Tensor, schema: Schema) -> tuple[float, str]:
    """The metric and its interval in words. The interval is about these rows: another training run is not in it."""
    if schema.classes:
        share = float((predicted == y).double().mean())
        low, high = share_interval(share, len(y))
        return share, f"95% interval {low:.1%} to {high:.1%}"
    assert isinstance(schema.target, Numeric)
    squares, unit = (predicted - y).double().square(), schema.target.half_width
    low, high = (math.sqrt(max(end, 0.0)) * unit for end in _mean_interval(squares))
    return math.sqrt(float(squares.mean())) * unit, f"95% interval {low:,.4g} to {high:,.4g}"


def _shares(records: TableRecords, model: nn.Module, data: EvaluationData) -> list[Evaluation]:
    """How many say yes, by the model and in truth, where the target is yes or no: a share of all rows, no other rate.

    That of the model is its mean probability: where few rows are surely yes, a count of its answers would say none.
    """
    assert records.test is not None
    target, (x, y) = records.schema.target, records.test
    if not isinstance(target, Boolean):
        return []
    metric, rows = f"share of {target.name} = {target.true}", len(y)
    chances = _outputs(model, x).double().softmax(1)[:, 1]
    # Of the share itself no interval is given: the rows do not know what noise and clipping did to the model. How far
    # this model is off is known from them.
    true = float((y == 1).double().mean())
    off = float(chances.mean()) - true
    low, high = _mean_interval(chances - (y == 1).double())
    least, most = share_interval(true, rows)
    among = f"of all {rows:,} public rows"
    return [
        Evaluation(
            metric,
            data.metric("share", float(chances.mean())),
            "private",
            "",
            rows,
            f"the model's mean probability, {among}; off by {100 * off:+.1f} points, 95% interval {100 * low:+.1f} to "
            f"{100 * high:+.1f}",
        ),
        Evaluation(
            metric,
            data.metric("share", true),
            "truth",
            "",
            rows,
            f"counted, {among}; 95% interval {least:.1%} to {most:.1%}",
        ),
    ]


#: Bins of the model's probabilities in which they are compared with what happened.
BINS = 10


def _quality(records: TableRecords, model: nn.Module, data: EvaluationData) -> list[Evaluation]:
    """How well a yes/no model ranks, finds and knows its own chances: AUC, recall and calibration on public rows."""
    assert records.test is not None
    (x, y), target = records.test, records.schema.target
    if not isinstance(target, Boolean) or not 0 < int((y == 1).sum()) < len(y):
        return []
    chances, yes = _outputs(model, x).double().softmax(1)[:, 1], y == 1
    bins = (chances * BINS).long().clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.double).index_add(0, bins, chances - yes.double())
    found = int((chances[yes] > 0.5).sum())
    least, most = share_interval(found / int(yes.sum()), int(yes.sum()))
    ranked = float(roc_auc_score(yes.numpy(), chances.numpy()))
    values = {
        "AUC": (ranked, "chance that a yes is ranked above a no; 0.5 is a guess"),
        f"recall of {target.name} = {target.true}": (
            found / int(yes.sum()),
            f"of the {int(yes.sum()):,} rows that are yes, those found; 95% interval {least:.1%} to {most:.1%}",
        ),
        "calibration error": (
            float(gaps.abs().sum()) / len(y),
            f"mean distance of the model's probability from what happened, in {BINS} bins; 0 is best",
        ),
    }
    return [Evaluation(n, data.metric(n, v), "private", "", len(y), note) for n, (v, note) in values.items()]


def _fit_plainly(settings: Settings, records: TableRecords, x: Tensor, y: Tensor) -> nn.Module:
    """The same model without clipping and noise, on rows that are public."""
    model = build(settings.model, records.form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, PASSES)
    for _ in range(PASSES):
        for index in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            if records.schema.classes:
                loss = nn.functional.cross_entropy(model(x[index]), y[index])
            else:
                loss = squared_error(model, (x[index], y[index])).mean()
            loss.backward()
            optimizer.step()
        schedule.step()
    return model


def _reference(settings: Settings, records: TableRecords) -> tuple[Tensor, Tensor]:
    """Predictions for every public row by a model, and by the commonest answer, of the other public rows."""
    assert records.test is not None
    x, y = records.test
    fold = torch.arange(len(x)) % FOLDS
    found, common = torch.zeros(len(x)), torch.zeros(len(x))
    for k in range(FOLDS):
        inside, outside = fold == k, fold != k
        model = _fit_plainly(settings, records, x[outside], y[outside])
        found[inside] = predict(model, x[inside], records.schema)
        other = y[outside]
        common[inside] = float(other.mode().values) if records.schema.classes else float(other.mean())
    return found, common


def _groups(records: TableRecords, by: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    """The public rows of each subgroup, from the encoded features."""
    assert records.test is not None
    x, place = records.test[0], 0
    for column in records.schema.features:
        block = x[:, place : place + column.width]
        place += column.width
        if column.name not in by:
            continue
        if isinstance(column, Boolean):
            for label, sign in zip(column.labels, (-1, 1), strict=True):
                yield f"{column.name} = {label}", block[:, 0] == sign
        elif isinstance(column, Categorical):
            for i, label in enumerate(column.labels):
                yield f"{column.name} = {label}", block[:, i] == 1


def evaluate(
    settings: Settings, records: TableRecords, model: nn.Module
) -> tuple[list[Evaluation], list[OperatorView]]:
    """What may be shown, and what only the operator may see."""
    if records.test is None:
        return [], []
    x, y = records.test
    metric = "accuracy" if records.schema.classes else "root mean squared error"
    if not settings.public_because:
        dataset = settings.dataset or records.name
        value, _ = _metric(predict(model, x, records.schema), y, records.schema)
        view = EvaluationData.private((x, y), dataset=dataset).metric(metric.replace(" ", "_"), value)
        assert isinstance(view, OperatorView)
        return [], [view]
    data = EvaluationData.declared_public((x, y), because=settings.public_because)
    answers = {"private": (predict(model, x, records.schema), "")}
    if settings.reference:
        plain, common = _reference(settings, records)
        note = f"without noise, trained on the other {FOLDS - 1} of {FOLDS} parts of the public rows"
        answers["non-private reference"] = plain, note
        answers["majority" if records.schema.classes else "mean"] = common, "the most common answer in the public rows"
    everyone = torch.ones(len(y), dtype=torch.bool)
    found = []
    for group, rows in [("", everyone), *_groups(records, settings.by)]:
        if not bool(rows.any()):
            continue
        for name, (predicted, note) in answers.items():
            value, interval = _metric(predicted[rows], y[rows], records.schema)
            said = interval if group or not note else f"{note}; {interval}"
            found.append(Evaluation(metric, data.metric(metric, value), name, group, int(rows.sum()), said))
    return found + _quality(records, model, data) + _shares(records, model, data), []


def public_sources(settings: Settings, records: TableRecords) -> tuple[PublicSource, ...]:
    """The rows that results are stated for, and what is known of whether the protected are among them."""
    if records.test is None or not settings.public_because:
        return ()
    if settings.public_share is None:
        return (PublicSource(str(settings.evaluate), "evaluation", settings.public_overlap, settings.public_because),)
    unit, named = records.schema.unit.name, records.units is not None
    by = f"the id of its {unit}" if named else "what it contains"
    note = (
        f"{settings.public_because.rstrip('.')}. The guarantee covers the rows on the private side only. The side of a "
        f"row depends on {by} alone, so adding or removing one {unit} leaves the other side as it was. A row that is "
        "replaced by one of the other side changes both sides, which the price for replace-one does not cover."
    )
    if not named and unit != "record":
        note += f" Without ids a {unit} with two different rows may be on both sides."
    return (
        PublicSource(
            f"{records.name}: a share of {settings.public_share:g}, each row by a hash of {by} under the public key "
            f"{PUBLIC_KEY!r}",
            "evaluation",
            "no" if named or unit == "record" else settings.public_overlap,
            note,
        ),
    )
