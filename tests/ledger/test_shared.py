"""A ledger is shared: the same data under two names are noticed, and every entry can be read by everybody."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from tests.accounting.catalogue import MECHANISMS
from typer.testing import CliRunner

from tacit import accounting as acc
from tacit.cli import build
from tacit.ledger import BudgetExceeded, FingerprintMismatch, Ledger, TermsError, UnreadableEntry, entries
from tacit.ledger.export import export, to_csv
from tacit.ledger.terms import check_readable

TABLE = np.arange(12.0).reshape(4, 3)


def test_a_second_budget_for_the_same_data_is_said_aloud(ledger, recwarn):
    ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=TABLE)
    ledger.register("others", epsilon=1.0, delta=0.0, fingerprint=TABLE + 1)
    ledger.register("unknown", epsilon=1.0, delta=0.0)
    ledger.register("unknown as well", epsilon=1.0, delta=0.0)
    ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=TABLE)  # the same once more
    assert not recwarn
    for _ in range(2):  # whoever registers them again is told again
        with pytest.warns(
            acc.PrivacyWarning, match=r"registered already, as 'people': .* no budget here covers the sum"
        ):
            ledger.register("people, March", epsilon=1.0, delta=0.0, fingerprint=TABLE)
    assert ledger.budget("people, March").left_epsilon == 1.0


def test_the_refusal_of_other_data_advises_no_second_registration(tmp_path):
    ledger = Ledger()
    (tmp_path / "people.csv").write_text("age\n34\n")
    (tmp_path / "people.tsv").write_text("age\r\n35\r\n")
    ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=tmp_path / "people.csv")
    with pytest.raises(FingerprintMismatch, match="their owner says so once") as told:
        ledger.check_data("people", tmp_path / "people.tsv")
    assert "egister other" not in str(told.value)
    assert "name of" not in str(told.value)


def test_the_command_warns_of_a_second_name(tmp_path):
    (tmp_path / "people.csv").write_text("age\n34\n")
    words = ["--epsilon", "1", "--delta", "0", "--data", str(tmp_path / "people.csv")]
    runner = CliRunner()
    assert "warning" not in runner.invoke(build(), ["ledger", "init", str(tmp_path / "a.db"), "one", *words]).output
    told = runner.invoke(build(), ["ledger", "init", str(tmp_path / "a.db"), "two", *words])
    assert told.exit_code == 0
    assert "tacit: warning: the data of 'two' are registered already, as 'one'" in told.output


# -- mechanisms that only one process knows --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, repr=False)
class Mine(acc.Mechanism):
    """A mechanism of the user's own."""

    noise: float = 9.0

    def pair(self, adjacency, direction, group=1):
        return acc.Gaussian(self.noise).pair(adjacency, direction, group)


class Gentle(acc.Gaussian):
    """A subclass of one that is built in, and cheaper than it."""

    def pair(self, adjacency, direction, group=1):
        return acc.Gaussian(1e6).pair(adjacency, direction, group)


class Chosen(acc.Composed):
    """A composition of the user's own."""

    def parts(self):
        return ()


Twin = type("Gaussian", (Gentle,), {"__module__": "__main__"})
OWN = {
    "own": Mine(),
    "repeated": Mine() * 3,
    "composed": acc.Gaussian(3.0) + Mine(),
    "subclass": Gentle(1.0),
    "sampled subclass": acc.PoissonSampled(Gentle(1.0), 0.1) * 5,
    "selected": acc.Selected(Gentle(1.0), gamma=0.2),
    "either": acc.Either(acc.Gaussian(1.0), Mine()),
    "of the same name": Twin(1.0),
    "a composition of one's own": Chosen(((acc.Gaussian(1.0), 1),)),
}


@pytest.mark.parametrize("mechanism", OWN.values(), ids=list(OWN))
def test_a_mechanism_of_ones_own_is_refused_before_it_is_charged(mechanism):
    ledger = Ledger()
    ledger.register("people", epsilon=1e6, delta=1e-5)
    with pytest.raises(TermsError, match=r"of your own.*acc\.ApproxDP"):
        ledger.charge("people", mechanism)
    with pytest.raises(TermsError, match="of your own"):
        ledger.quote("people", mechanism)
    assert ledger.history("people") == []
    assert type(acc.from_dict(acc.Gaussian(2.0).to_dict())) is acc.Gaussian


def test_everything_that_is_built_in_is_read_by_a_process_that_knows_only_the_ledger(tmp_path):
    from tacit.sgd.hooked.draws import Accumulated  # what a loop with gradient accumulation is priced as

    found = {**MECHANISMS, "Accumulated": Accumulated(acc.PoissonSampled(acc.Gaussian(1.0), 0.1), 2)}
    for mechanism in found.values():
        check_readable(mechanism * 3)
    (tmp_path / "all.json").write_text(json.dumps([mechanism.to_dict() for mechanism in found.values()]))
    read = "print(len([acc.from_dict(m) for m in json.load(sys.stdin)]))"
    code = f"import json, sys; from tacit.ledger.core import acc; {read}"
    with open(tmp_path / "all.json") as text:
        told = subprocess.run([sys.executable, "-c", code], stdin=text, capture_output=True, check=False)
    assert told.stdout.decode().strip() == str(len(found)), told.stderr.decode()


def test_an_entry_that_cannot_be_read_is_named_and_everything_else_goes_on():
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=1e-5)
    ledger.charge("people", acc.PureDP(0.25), delta=0.0, purpose="a count")
    # As an earlier version, which did not refuse it, would have written it.
    stored = ledger._store._rows["people"]
    entry = json.loads(stored[-1].body) | {
        "charge": "ab" * 16,
        "mechanism": {"version": 1, "kind": "Theirs", "noise": 9.0},
    }
    entry["totals"] |= {"epsilon": [0.5], "renyi": [[2 * x for x in total] for total in entry["totals"]["renyi"]]}
    entry["state"] |= {"charges": 2}
    stored.append(entries.chained("people", stored[-1], entry))

    known, unknown = ledger.history("people")
    assert known.mechanism == acc.PureDP(0.25)
    assert (unknown.words, unknown.price.epsilon, unknown.readable) == ("Theirs (cannot be read here)", 0.25, False)
    with pytest.raises(UnreadableEntry, match=r"entry 2 .*'Theirs'"):
        unknown.mechanism
    budget = ledger.budget("people")
    assert (budget.spent_epsilon, budget.composition) == (0.5, None)
    assert ledger.verify().ok
    assert any("entry 2 cannot be priced again" in p for p in ledger.verify(reprice=True).problems)
    assert "Theirs (cannot be read here)" in to_csv(export(ledger, "people"))
    ledger.charge("people", acc.PureDP(0.5), delta=0.0)  # the prices add up whoever can read them
    with pytest.raises(BudgetExceeded, match=r"left of the Rényi budget .*: 0.00%"):
        ledger.charge("people", acc.PureDP(0.1), delta=0.0)
