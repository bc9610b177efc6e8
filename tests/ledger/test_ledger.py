"""Charges, refusals and terms, on every kind of ledger."""

from __future__ import annotations

import pytest

from tacit import accounting as acc
from tacit.ledger import (
    BudgetExceeded,
    ChargeError,
    DatasetExists,
    FingerprintMismatch,
    Ledger,
    TermsError,
    UnknownDataset,
)

STEP = acc.PoissonSampled(acc.Gaussian(1.1), 256 / 60000)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However busy the machine is, a suggestion is looked for until it is found."""
    monkeypatch.setattr("tacit.ledger.advice.PATIENCE", 60.0)


def test_a_charge_in_a_block_is_confirmed_at_its_end(ledger):
    ledger.register("people", epsilon=1.0, delta=1e-5)
    with ledger.charge("people", acc.Laplace(10.0), purpose="one count") as charge:
        assert [r.confirmed for r in ledger.history("people")] == [False]
    (record,) = ledger.history("people")
    assert record.confirmed
    assert (record.charge, record.mechanism, record.purpose) == (charge.number, acc.Laplace(10.0), "one count")
    assert charge.head == ledger.head("people")


def test_a_charge_whose_block_raises_stays_spent(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0)
    with pytest.raises(RuntimeError), ledger.charge("people", acc.PureDP(0.75)):
        raise RuntimeError("the disk of the model broke")
    budget = ledger.budget("people")
    assert (budget.spent_epsilon, budget.unconfirmed) == (0.75, 1)
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.PureDP(0.5))


def test_a_charge_counts_from_the_moment_it_is_made_even_without_a_block(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.charge("people", acc.PureDP(0.75))
    assert ledger.budget("people").left_epsilon == 0.25


def test_a_charge_pays_for_one_release(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0)
    charge = ledger.reserve("people", acc.PureDP(0.1))
    charge.confirm()
    with pytest.raises(ChargeError, match="confirmed before"):
        charge.confirm()
    with pytest.raises(ChargeError, match="another release needs its own charge"), charge:
        pass


def test_a_reserved_charge_is_resumed_without_paying_again(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0)
    number = ledger.charge("people", acc.PureDP(0.75)).number
    with ledger.resume("people", number) as charge:
        assert charge.mechanism == acc.PureDP(0.75)
    budget = ledger.budget("people")
    assert (budget.spent_epsilon, budget.charges, budget.unconfirmed) == (0.75, 1, 0)
    with pytest.raises(ChargeError, match="Make a new charge"):
        ledger.resume("people", number)
    with pytest.raises(ChargeError, match="no charge"):
        ledger.resume("people", "0" * 32)
    ledger.verify(reprice=True).require()


def test_a_charge_whose_number_was_kept_beforehand_is_made_once(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0)
    number = "5" * 32
    for _ in range(3):  # killed after the charge, twice
        charge = ledger.charge("people", acc.PureDP(0.75), number=number)
        assert (charge.number, charge.confirmed) == (number, False)
    charge.confirm()
    after = ledger.charge("people", acc.PureDP(0.75), number=number)
    assert (after.confirmed, after.head) == (True, ledger.head("people"))
    assert ledger.budget("people").spent_epsilon == pytest.approx(0.75)
    with pytest.raises(ChargeError, match="something else"):
        ledger.charge("people", acc.PureDP(0.25), number=number)
    ledger.verify("people", reprice=True).require()


def test_a_refused_charge_leaves_no_trace(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0)
    head = ledger.head("people")
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.PureDP(1.5))
    assert ledger.head("people") == head
    assert ledger.quote("people", acc.PureDP(1.0)).epsilon == 1.0
    with pytest.raises(BudgetExceeded):
        ledger.quote("people", acc.PureDP(1.5))
    assert ledger.head("people") == head


@pytest.mark.parametrize("rule", ["sum", "renyi"])
def test_a_refusal_says_what_would_still_fit_and_it_does(rule):
    ledger = Ledger()
    ledger.register("people", epsilon=2.0, delta=1e-5, rule=rule)
    ledger.charge("people", STEP * 2000)
    with pytest.raises(BudgetExceeded) as refused:
        ledger.charge("people", STEP * 20_000)
    advice = refused.value.advice
    noisier = f"noise {advice.noise:g} for all 20000 that were asked for"
    assert f"{advice.repeats} more steps at this noise, or {noisier}" in str(refused.value)
    ledger.quote("people", STEP * advice.repeats)
    with pytest.raises(BudgetExceeded):
        ledger.quote("people", STEP * (advice.repeats + 1))
    noisier = acc.PoissonSampled(acc.Gaussian(advice.noise), STEP.rate) * 20_000
    less = acc.PoissonSampled(acc.Gaussian(advice.noise * 0.98), STEP.rate) * 20_000
    ledger.quote("people", noisier)
    with pytest.raises(BudgetExceeded):
        ledger.quote("people", less)


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (acc.Laplace(0.5) * 8, "noise "),
        (acc.Votes(0.4), "noise "),
        (acc.DiscreteGaussian(0.5), "noise "),
        (acc.Gaussian(0.5) * 4 + acc.Laplace(0.5), "all noise times "),
        (acc.PureDP(0.3) * 8, "3 more steps at this noise"),
        (acc.Shuffled(acc.Gaussian(0.5)), "noise "),
    ],
)
def test_every_kind_of_noise_gets_advice(mechanism, words):
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=1e-5, adjacency="zero-out")
    with pytest.raises(BudgetExceeded, match=f"Still fits: .*{words}"):
        ledger.charge("people", mechanism)


def test_where_nothing_fits_nothing_is_promised():
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.charge("people", acc.PureDP(1.0))
    with pytest.raises(BudgetExceeded) as refused:
        ledger.charge("people", acc.PureDP(0.5))
    assert "Still fits" not in str(refused.value)
    assert refused.value.advice.left_epsilon == 0.0


def test_a_missing_data_set_is_named_with_those_there_are(ledger):
    with pytest.raises(UnknownDataset, match=r"no data set 'people'.*none is registered yet|no such file"):
        ledger.charge("people", acc.PureDP(0.1))
    ledger.register("patients", epsilon=1.0, delta=0.0)
    ledger.register("visits", epsilon=1.0, delta=0.0)
    for ask in (ledger.budget, ledger.history, ledger.head, ledger.dataset, ledger.verify):
        with pytest.raises(UnknownDataset, match=r"no data set 'people'.*known: patients, visits"):
            ask("people")
    with pytest.raises(UnknownDataset, match="known: patients, visits"):
        ledger.charge("people", acc.PureDP(0.1))


def test_terms_are_fixed_when_a_data_set_is_registered(ledger):
    first = ledger.register("people", epsilon=1.0, delta=1e-5, unit="person")
    assert ledger.register("people", epsilon=1.0, delta=1e-5, unit="person") == first
    with pytest.raises(DatasetExists, match=r"other terms.*epsilon"):
        ledger.register("people", epsilon=2.0, delta=1e-5, unit="person")
    assert ledger.dataset("people") == first
    assert ledger.datasets() == ["people"]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"epsilon": 0.0}, "positive"),
        ({"epsilon": float("nan")}, "positive"),
        ({"epsilon": float("inf")}, "positive"),
        ({"delta": 1.0}, r"\[0, 1\)"),
        ({"delta": -1e-9}, r"\[0, 1\)"),
        ({"adjacency": "swap"}, "unknown adjacency"),
        ({"unit": ""}, "unit of privacy"),
        ({"charges": 0}, "positive whole number"),
        ({"adjacency": "replace-one", "size_public": False}, "same size"),
        ({"name": " people"}, "printable"),
        ({"name": "a\nb"}, "printable"),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms, message):
    with pytest.raises(TermsError, match=message):
        Ledger().register(**({"name": "people", "epsilon": 1.0, "delta": 1e-5} | terms))


def test_a_mechanism_must_fit_the_terms_of_its_data_set():
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=1e-5, unit="person", size_public=False)
    with pytest.raises(TermsError, match="protects one record, but 'people' is registered for one person"):
        ledger.charge("people", acc.Gaussian(10.0))
    with pytest.raises(TermsError, match="registered for add-remove"):
        ledger.charge("people", acc.Shuffled(acc.Gaussian(10.0, unit="person")))
    with pytest.raises(TermsError, match="contains the number of records"):
        ledger.charge("people", acc.FixedSizeSampled(acc.Gaussian(10.0, unit="person"), 10, 1000))
    # nor inside what is made of it: a search over training runs, a draw of one of several
    cut = acc.TruncatedPoissonSampled(acc.Gaussian(10.0, unit="person"), 0.01, 1000, 40)
    for hidden in (acc.Selected(cut * 5), acc.Either(acc.Gaussian(10.0, unit="person"), acc.Selected(cut))):
        with pytest.raises(TermsError, match="contains the number of records"):
            ledger.charge("people", hidden)
    with pytest.raises(TermsError, match="is a mechanism"):
        ledger.charge("people", 0.5)
    with pytest.raises(TermsError, match="no pure guarantee"):
        ledger.charge("people", acc.Gaussian(10.0, unit="person"), delta=0.0)
    assert ledger.history("people") == []


def test_a_charge_is_priced_under_the_adjacency_of_its_data_set():
    ledger = Ledger()
    ledger.register("swapped", epsilon=1.0, delta=0.0, adjacency="replace-one")
    assert ledger.charge("swapped", acc.Laplace(4.0)).epsilon == 0.5


def test_the_fingerprint_recognises_the_data_and_tells_nobody_else(ledger, tmp_path):
    import numpy as np

    table = np.arange(12.0).reshape(4, 3)
    file = tmp_path / "people.csv"
    file.write_text("age\n34\n")
    terms = ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=table)
    assert ledger.fingerprint(table.copy()) == terms.fingerprint
    assert ledger.fingerprint(table.reshape(3, 4)) != terms.fingerprint
    assert ledger.fingerprint(table.astype("f4")) == terms.fingerprint  # the same numbers
    assert ledger.fingerprint(file) != ledger.fingerprint(file.read_bytes())
    names = np.array(["a", "b", None], dtype=object)
    assert ledger.fingerprint(names) == ledger.fingerprint(np.array(["a", "b", None], dtype=object))
    ledger.check_data("people", table)
    with pytest.raises(FingerprintMismatch, match="not the data registered"):
        ledger.check_data("people", table + 1)
    # Another ledger has another secret: the printed fingerprint cannot be checked against a guess.
    assert Ledger().fingerprint(table) != terms.fingerprint


def test_threads_share_one_budget(ledger):
    from concurrent.futures import ThreadPoolExecutor

    ledger.register("people", epsilon=1.0, delta=0.0)

    def granted(_):
        try:
            ledger.charge("people", acc.PureDP(0.1))
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(granted, range(20))) == 10
    ledger.verify().require()


def test_two_data_sets_have_two_budgets(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.register("visits", epsilon=1.0, delta=0.0)
    ledger.charge("people", acc.PureDP(1.0))
    ledger.charge("visits", acc.PureDP(1.0))
    assert ledger.head("people") != ledger.head("visits")
    ledger.verify().require()
