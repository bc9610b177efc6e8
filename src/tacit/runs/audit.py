"""Does this run keep its promise? The work of ``tacit audit``: what an attack finds goes into card and report."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tacit.audit import Audit, audit_implementation, audit_run, membership
from tacit.audit.attacks import Membership
from tacit.ledger import OperatorLog, Release, public
from tacit.report import read_card, write_card, write_page
from tacit.runs.models import build, loss_for
from tacit.runs.progress import Reporter
from tacit.runs.read import Form, read, schema_of
from tacit.runs.settings import CONFIG, Settings, SettingsError, saved
from tacit.runs.settings import read as read_settings
from tacit.runs.train import CANARIES, go_on
from tacit.sgd import fit
from tacit.sgd.training.canaries import Planted

#: Made-up records that stand for the data of a run.
MADE_UP = 512


@dataclasses.dataclass(frozen=True)
class Attack:
    """What is tried: ``canaries`` in a repeat on made-up records, the private rows (``members``), at a confidence."""

    canaries: int | None = None
    members: bool = False
    confidence: float = 0.95


@dataclasses.dataclass(frozen=True, eq=False)
class Audited:
    """What may be published, and what only the operator may see: of the run's own canaries, and of its rows."""

    found: Audit
    own: Audit | None
    rows: Membership | None

    @property
    def refuted(self) -> bool:
        """Whether the claim does not hold."""
        return self.found.verdict == "fail" or (self.own is not None and self.own.verdict == "fail")

    @property
    def for_the_operator(self) -> list[Audit | Membership]:
        """What was written to the operator's log."""
        return [one for one in (self.own, self.rows) if one is not None]


def audit(run: Path, attack: Attack, progress: Reporter, tell: Callable[[str], None] = lambda name: None) -> Audited:
    """Attack a run that has ended; write what may be published into its card and report, the rest into its log.

    Made-up records and canaries belong to nobody. What the run's own canaries prove beside private records, and
    attacks with private rows, hold the noise of the run or values of the data: they are returned for the operator.
    """
    chosen, card = saved(run), read_card(run / "privacy.json")
    own = _own_canaries(run, chosen, 1 - attack.confidence, progress)
    publishable = own is not None and not own.operator_only
    if publishable and attack.canaries is not None:
        raise ValueError("this run planted canaries whose result may be published: leave out --canaries")
    stand_in = _StandIn.of(chosen, card)
    found = audit_implementation(stand_in.model, stand_in.loss, stand_in.data, tell=tell, **stand_in.settings)
    attacked: Audit | None = None
    if publishable:
        attacked, own = own, None
    elif attack.canaries is not None:
        attacked = stand_in.repeat(attack.canaries, chosen.rate, 1 - attack.confidence, progress)
    if attacked is not None:
        found = dataclasses.replace(
            found,
            kind=f"{found.kind}, {attacked.kind}",
            evidence=attacked.evidence,
            scores=attacked.scores,
            member=attacked.member,
        )
    shown = _with_audit(card, found)
    write_card(shown, run / "privacy.json")
    write_page(shown, run / "report.html")
    audited = Audited(found, own, _attack_members(run, chosen, card) if attack.members else None)
    log = OperatorLog(run / "private" / "operator.jsonl")
    for one in audited.for_the_operator:
        log.write(one.view())
    return audited


def not_ended(run: Path) -> str:
    """How a run that has no card is brought to an end."""
    canaries = False
    with contextlib.suppress(SettingsError):
        canaries = read_settings(run / CONFIG).get("audit_canaries") is not None
    return go_on(run, canaries=canaries)


def _own_canaries(run: Path, chosen: Settings, significance: float, progress: Reporter) -> Audit | None:
    """What the canaries prove that the run itself held, where they were kept."""
    kept = run / "private" / CANARIES
    if kept.exists():
        return audit_run(Planted.load(kept), significance)
    if chosen.audit_canaries is not None:
        progress.note(f"the run held {chosen.audit_canaries:,} canaries, but {kept} is gone")
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class _StandIn:
    """The run's model, loss and mechanism, and made-up records of the shape that the public schema says."""

    model: Any
    loss: Any
    data: Any
    settings: dict[str, Any]

    @classmethod
    def of(cls, chosen: Settings, card: Release) -> _StandIn:
        """From settings, schema and card; no record is read."""
        try:
            schema = schema_of(chosen)
        except SettingsError:
            raise ValueError("the run names no schema, from which the shape of a record could be known") from None
        form, generator = Form.of(schema), torch.Generator().manual_seed(0)
        x = torch.rand(MADE_UP, form.inputs, generator=generator) * 2 - 1
        if schema.classes:
            y = torch.randint(form.outputs, (MADE_UP,), generator=generator)
        else:
            y = torch.rand(MADE_UP, generator=generator) * 2 - 1
        size = int(card["mechanism"]["parameters"]["sampler"]["size"])
        settings = _training_settings(chosen, size) | {"unit": schema.unit.name, "groups": range(MADE_UP)}
        return cls(build(chosen.model, form), loss_for(schema), (x, y), settings)

    def repeat(self, canaries: int, rate: float, significance: float, progress: Reporter) -> Audit:
        """The run again on made-up records with canaries, and what these prove."""
        model = self.model
        most = sum(p.numel() for p in model.parameters() if p.requires_grad)
        if canaries > most:
            progress.note(f"this model has room for {most} gradient canaries, not {canaries}")
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        # As many made-up records as are worth their time: rate and divisor are those of the announced size.
        done = fit(model, optimizer, self.loss, self.data, audit_canaries=min(canaries, most), **self.settings)
        return audit_run(done, significance, made_up=True)


def _training_settings(chosen: Settings, size: int) -> dict[str, Any]:
    """What of the run's settings decides its mechanism."""
    found: dict[str, Any] = {
        "batch_size": chosen.batch,
        "delta": chosen.delta,
        "clip_norm": chosen.clip_norm,
        "sampler": chosen.sampler,
        "size": size,
    }
    if chosen.epsilon is not None:
        found["epsilon"] = chosen.epsilon
    else:
        found["noise_multiplier"] = chosen.noise
    if chosen.epochs is not None:
        found["epochs"] = chosen.epochs
    else:
        found["steps"] = chosen.steps
    if chosen.adjacency is not None:
        found["adjacency"] = chosen.adjacency
    return found


def _with_audit(card: Release, found: Audit) -> Release:
    """The card with the audit in place of what it said before."""
    because = "computed on made-up records and canaries, which belong to nobody"
    checks = card["checks"] | Release({"audit": public(found.to_dict(), because)})
    return card | Release({"checks": checks})


def _attack_members(run: Path, chosen: Settings, card: Release) -> Membership:
    """Loss-threshold attack with private rows against rows that the model never saw: for the operator's log."""
    records = read(chosen)
    if records.test is None or not records.schema.classes:
        raise ValueError("--members needs rows that the model never saw (--evaluate, --public-share) and classes")
    model = build(chosen.model, records.form)
    model.load_state_dict(torch.load(run / "model.pt", weights_only=True))
    model.eval()
    x = torch.cat([records.x, records.test[0]])
    y = torch.cat([records.y, records.test[1]])
    with torch.no_grad():
        given = torch.cat([torch.softmax(model(part), 1) for part in x.split(4096)])
    right = given[torch.arange(len(y)), y].double().numpy()
    member = torch.arange(len(y)) < len(records.y)
    epsilon = card["guarantee"]["epsilon"]["upper"]
    claimed = float(epsilon) if not isinstance(epsilon, str) else None
    return membership(right, member.numpy(), epsilon=claimed, delta=card["guarantee"]["delta"])["loss threshold"]
