"""How good is a model, and who may know? Results on public rows are published; those on private rows stay here."""

from __future__ import annotations

from collections.abc import Iterator

import torch
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


def predict(model: nn.Module, x: Tensor, schema: Schema) -> Tensor:
    """Class numbers, or the target on its encoded scale."""
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        out = torch.cat([model(part.to(device)).cpu() for part in x.split(4096)])
    model.train()
    return out.argmax(1).float() if schema.classes else out.squeeze(1)


def _metric(predicted: Tensor, y: Tensor, schema: Schema) -> float:
    if schema.classes:
        return float((predicted == y).double().mean())
    assert isinstance(schema.target, Numeric)
    return float((predicted - y).double().square().mean().sqrt()) * schema.target.half_width


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
        value = _metric(predict(model, x, records.schema), y, records.schema)
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
            result = data.metric(metric, _metric(predicted[rows], y[rows], records.schema))
            found.append(Evaluation(metric, result, name, group, int(rows.sum()), "" if group else note))
    return found, []


def public_sources(settings: Settings, records: TableRecords) -> tuple[PublicSource, ...]:
    """The rows that results are stated for, and what is known of whether the protected are among them."""
    if records.test is None or not settings.public_because:
        return ()
    if settings.public_share is None:
        return (PublicSource(str(settings.evaluate), "evaluation", "unknown", settings.public_because),)
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
            "no" if named or unit == "record" else "unknown",
            note,
        ),
    )
