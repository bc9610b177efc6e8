"""Does this run keep its promise? The work of ``tacit audit``: what an attack finds goes into card and report."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from tacit import accounting as acc
from tacit.audit import Audit, Finding, audit_implementation, audit_run, membership
from tacit.audit.attacks import Membership
from tacit.audit.findings import SCORES_ALARM, Power
from tacit.ledger import OperatorLog, Release, public
from tacit.report import read_card, write_card, write_page
from tacit.runs.claims import AGREES, NOT_BOUND, Claim, check_claims, check_files, contradicted, mechanism_on
from tacit.runs.models import build, loss_for
from tacit.runs.progress import Reporter
from tacit.runs.publish import CANARIES
from tacit.runs.read import Form, read, schema_of
from tacit.runs.settings import CONFIG, Settings, SettingsError, saved
from tacit.runs.settings import read as read_settings
from tacit.runs.train import go_on
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
    ledger: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Audited:
    """What came of an audit: claim by claim, what may be published, and what only the operator may see.

    ``found`` is None where the files contradict each other: such a folder is not attacked, and nothing is written.
    """

    claims: tuple[Claim, ...]
    found: Audit | None = None
    own: Audit | None = None
    rows: Membership | None = None

    @property
    def contradictions(self) -> list[Claim]:
        """The claims that do not hold."""
        return contradicted(self.claims)

    @property
    def refuted(self) -> bool:
        """Whether the claim does not hold."""
        return bool(self.contradictions) or "fail" in (one.verdict for one in (self.found, self.own) if one is not None)

    @property
    def verdict(self) -> str:
        """``fail``, ``underpowered`` or ``pass``, of everything together."""
        if self.refuted:
            return "fail"
        # Of the run's own canaries only a refutation counts here: what they could show is among the powers.
        return "underpowered" if self.found is None else self.found.verdict

    @property
    def bound(self) -> bool:
        """Whether the release is the one in the ledger."""
        return any(claim.name == "release" and claim.result == AGREES for claim in self.claims)

    @property
    def false_alarm(self) -> float:
        """An upper bound on the probability that a run which keeps its claim is refuted."""
        parts = [one for one in (self.found, self.own) if one is not None]
        return sum(one.significance + (SCORES_ALARM if one.evidence is not None else 0.0) for one in parts)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        wrong = self.contradictions
        if self.found is None:
            told = "; ".join(f"{claim.name}: {claim.detail}" for claim in wrong)
            return f"fail: the files of this run contradict its claim, and nothing was written into its card: {told}"
        verdict, _, rest = self.found.sentence.partition(": ")
        if verdict != self.verdict:
            rest += "; the run's own canaries refute its claim, and nothing was written into its card"
        bound = "the release is the one in the ledger" if self.bound else "the release is not bound to a ledger"
        return (
            f"{self.verdict}: {rest}; {bound}; a run that keeps its claim fails with probability {self.false_alarm:.2g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values of what may be published."""
        found = self.found.to_dict() if self.found is not None else {}
        claims = [claim.to_dict() for claim in self.claims]
        return found | {"verdict": self.verdict, "sentence": self.sentence, "bound": self.bound, "claims": claims}

    @property
    def for_the_operator(self) -> list[Audit | Membership]:
        """What was written to the operator's log."""
        return [one for one in (self.own, self.rows) if one is not None]


def audit(run: Path, attack: Attack, progress: Reporter, tell: Callable[[str], None] = lambda name: None) -> Audited:
    """Check what a run claims, attack it, and write what may be published into its card and report.

    Made-up records and canaries belong to nobody. What the run's own canaries prove beside private records, and
    attacks with private rows, hold the noise of the run or values of the data: they are returned for the operator.
    Where anything refutes the claim, nothing is written into the card.

    Guarantee:
        A run that keeps its claim is refuted with probability at most 1 in 200. What is written into the card does not
        depend on the run's noise or data, except that nothing is written where the run's own canaries refute it.
    """
    # Another ledger than the settings name is a copy of it, or the same under its new address.
    check_files(run)
    chosen, card = saved(run), read_card(run / "privacy.json")
    tell("the files")
    claims = tuple(check_claims(run, card, chosen, attack.ledger))
    if contradicted(claims):
        return Audited(claims)
    own = _own_canaries(run, card, 1 - attack.confidence, progress)
    publishable = own is not None and not own.operator_only
    if publishable and attack.canaries is not None:
        raise ValueError("this run planted canaries whose result may be published: leave out --canaries")
    stand_in = _StandIn.of(chosen, card)
    found = audit_implementation(stand_in.model, stand_in.loss, stand_in.data, tell=tell, **stand_in.settings)
    attacked: Audit | None = None
    if publishable:
        attacked, own = own, None
    elif attack.canaries is not None:
        tell("canaries")
        attacked = stand_in.repeat(attack.canaries, chosen.rate, 1 - attack.confidence, progress)
    guarantee = card["guarantee"]
    found = dataclasses.replace(
        found, claimed=float(guarantee["epsilon"]["upper"]), terms=guarantee["neighbours"], powers=_powers(claims, own)
    )
    if attacked is not None:
        found = dataclasses.replace(
            found,
            kind=f"{found.kind}, {attacked.kind}",
            evidence=attacked.evidence,
            scores=attacked.scores,
            member=attacked.member,
            findings=(*found.findings, *(_of_the_repeat(f) for f in attacked.findings)),
            significance=found.significance + attacked.significance,
        )
    rows = _attack_members(run, chosen, card) if attack.members else None
    audited = Audited(claims, found, own, rows)
    if not audited.refuted:
        shown = _with_audit(card, audited)
        write_card(shown, run / "privacy.json")
        write_page(shown, run / "report.html")
    for one in audited.for_the_operator:
        OperatorLog(run / "private" / "operator.jsonl").write(one.view())
    return audited


def _of_the_repeat(finding: Finding) -> Finding:
    return dataclasses.replace(finding, check=f"repeat: {finding.check}")


def _powers(claims: Iterable[Claim], own: Audit | None) -> tuple[Power, ...]:
    """With which probability lies about this run would have been found: by its files, its ledger and its canaries.

    They follow from what is there, not from what was seen.
    """
    bound = any(claim.name == "release" and claim.result == AGREES for claim in claims)
    seen = any(claim.name == "weights of this run" for claim in claims)
    by = "the hashes in the ledger" if bound else "the weights that the canaries saw" if seen else NOT_BOUND
    other = Power("the model of another run", float(bound or seen), by)
    read = any(claim.name == "data" and claim.result == AGREES for claim in claims)
    whose = "their fingerprint in the ledger" if read else "nothing: no ledger at hand names the data that were read"
    data = Power("other data than were charged", float(read), whose)
    forged = Power("a smaller ε on the card", 1.0, "pricing the mechanism again")
    if own is not None and own.powers:
        return (*own.powers, other, data, forged)
    nothing = "nothing: the run kept no record of gradient canaries (tacit train --audit-canaries 200)"
    lies = ("half the noise", "no noise", "shuffled batches", "twice the steps")
    return (*(Power(lie, 0.0, nothing, needed=True) for lie in lies), other, data, forged)


def not_ended(run: Path) -> str:
    """How a run that has no card is brought to an end."""
    canaries = False
    with contextlib.suppress(SettingsError):
        canaries = read_settings(run / CONFIG).get("audit_canaries") is not None
    return go_on(run, canaries=canaries)


def _own_canaries(run: Path, card: Release, significance: float, progress: Reporter) -> Audit | None:
    """What the canaries prove that the run itself held, where they were kept."""
    kept = run / "private" / CANARIES
    if not kept.exists():
        return None
    guarantee = card["guarantee"]
    upper = float(guarantee["epsilon"]["upper"])
    claim = acc.Bound(upper, upper, given=guarantee["delta"], adjacency=guarantee["adjacency"], unit=guarantee["unit"])
    return audit_run(Planted.load(kept), significance, mechanism=mechanism_on(card), claimed=claim)


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
        settings["adjacency"] = card["guarantee"]["adjacency"]  # a size that was counted is not one that was given
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
    return found


def _with_audit(card: Release, audited: Audited) -> Release:
    """The card with the audit in place of what it said before."""
    because = "computed on made-up records and canaries, which belong to nobody, and from what is published"
    return card | Release({"checks": card["checks"] | Release({"audit": public(audited.to_dict(), because)})})


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
