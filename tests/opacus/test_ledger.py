"""A loop of one's own is charged to the ledger: before its first step, once, and for at least what it spends."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import data, net
from torch.utils.data import DataLoader

from tacit.ledger import BudgetExceeded, ChargeError, Ledger, TermsError
from tacit.opacus import PrivacyEngine
from tacit.sgd import PrivacyWarning
from tacit.sgd.training.checkpoint import CheckpointError

DELTA = 1e-5


def book(epsilon=20.0, **terms):
    ledger = Ledger()
    ledger.register("people", epsilon=epsilon, delta=2 * DELTA, **terms)
    return ledger


class Run:
    """A private run of two epochs of six steps unless told otherwise."""

    def __init__(self, ledger, *, engine=None, noise=1.0, batch_size=8, shuffle=True, **options):
        self.engine = engine or PrivacyEngine(ledger=ledger, dataset="people", purpose="a test")
        self.model = net()
        plain = torch.optim.SGD(self.model.parameters(), lr=0.1)
        shared = {"module": self.model, "optimizer": plain, "max_grad_norm": 1.0}
        loader = DataLoader(data(48), batch_size=batch_size, shuffle=shuffle)
        if "target_epsilon" in options:
            made = self.engine.make_private_with_epsilon(**shared, data_loader=loader, **options)
        else:
            options = {"epochs": 2, "target_delta": DELTA, **options}
            made = self.engine.make_private(**shared, data_loader=loader, noise_multiplier=noise, **options)
        _, self.optimizer, self.loader = made

    @property
    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def train(self, epochs=1, limit=None):
        for _ in range(epochs):
            for k, (x, y) in enumerate(self.loader):
                if k == limit:
                    break
                F.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()

    def save(self, path):
        self.engine.save_checkpoint(path=path, module=self.model, optimizer=self.optimizer)

    def load(self, path):
        self.engine.load_checkpoint(path=path, module=self.model, optimizer=self.optimizer)


def unmoved(run, before):
    return all(torch.equal(a, b) for a, b in zip(run.weights, before, strict=True))


def test_the_whole_run_is_charged_before_the_first_step():
    ledger = book()
    run = Run(ledger)
    assert not ledger.history("people")
    seen, spent = [], run.optimizer.loop.spent
    note = spent.add  # called for every release before its noise is drawn

    def look(*args, **options):
        seen.append((len(ledger.history("people")), len(spent)))
        note(*args, **options)

    spent.add = look
    run.train(2)
    assert seen == [(1, k) for k in range(12)]
    (record,) = ledger.history("people")
    assert record.confirmed
    assert record.purpose == "a test"
    assert record.price.delta == DELTA
    assert record.price.epsilon >= run.engine.get_epsilon(DELTA) * (1 - 1e-12)
    assert record.price.epsilon == pytest.approx(run.engine.get_epsilon(DELTA), rel=1e-6)
    before = run.weights
    with pytest.raises(ChargeError, match="12 steps that were charged to 'people' are made"):
        run.train()
    assert unmoved(run, before)
    assert len(run.engine.accountant) == 12


def test_a_target_is_charged_whole_and_fits_a_budget_of_the_same_size():
    ledger = book(epsilon=2.0)
    run = Run(ledger, target_epsilon=2.0, target_delta=DELTA, epochs=3)
    run.train(limit=1)
    (record,) = ledger.history("people")
    assert 1.99 < record.price.epsilon <= 2.0
    assert not record.confirmed
    assert run.engine.get_epsilon(DELTA) < record.price.epsilon


def test_over_budget_nothing_is_stepped_and_the_error_says_what_fits():
    ledger = book(epsilon=6.0)
    with pytest.raises(BudgetExceeded, match="more steps at this noise"):
        Run(ledger, epochs=20)
    # Somebody else spends between make_private and the first step.
    run, other = Run(ledger), Run(ledger)
    other.train(limit=1)
    before = run.weights
    with pytest.raises(BudgetExceeded, match="Still fits"):
        run.train(limit=1)
    assert unmoved(run, before)
    assert all(p.grad is None for p in run.model.parameters())
    assert len(run.engine.accountant) == 0
    assert len(ledger.history("people")) == 1


def test_steps_that_the_charge_does_not_cover_are_refused():
    ledger = book()
    run = Run(ledger)
    run.train(limit=1)
    run.optimizer.noise_multiplier = 2.0
    run.train(limit=1)
    run.optimizer.noise_multiplier = 0.9
    before = run.weights
    with pytest.raises(ChargeError, match=r"noise multiplier 0\.9"):
        run.train(limit=1)
    run.optimizer.noise_multiplier = 1.0
    run.optimizer.zero_grad()
    for k, (x, y) in zip(range(2), run.loader, strict=False):
        F.cross_entropy(run.model(x), y).backward()
        if k == 1:
            with pytest.raises(ChargeError, match="2 draws"):
                run.optimizer.step()
    assert unmoved(run, before)


def test_a_resumed_run_is_charged_once_and_only_one_run_goes_on_from_a_checkpoint(tmp_path):
    # 12 steps cost 4.6 and six 3.5: the budget does not hold the run twice.
    ledger, path = book(epsilon=8.5), tmp_path / "c.pt"
    first = Run(ledger)
    first.train()
    first.save(path)
    resumed = Run(ledger)
    resumed.load(path)
    resumed.train()
    assert len(resumed.engine.accountant) == 12
    (record,) = ledger.history("people")
    assert record.confirmed
    assert record.price.epsilon >= resumed.engine.get_epsilon(DELTA) * (1 - 1e-12)
    with pytest.raises(ChargeError, match="are made"):
        resumed.train(limit=1)
    # From the same checkpoint again: other noise on steps that were released already, so they are paid for again.
    again = Run(ledger)
    with pytest.warns(PrivacyWarning, match="charged anew"):
        again.load(path)
    again.train()
    charges = ledger.history("people")
    assert len(charges) == 2
    assert charges[1].price.epsilon < charges[0].price.epsilon
    with pytest.raises(ChargeError):
        again.train(limit=1)
    assert ledger.verify("people").ok


def test_a_run_that_went_on_after_its_checkpoint_leaves_nothing_to_those_who_load_it(tmp_path):
    ledger, path = book(epsilon=40.0), tmp_path / "c.pt"
    killed = Run(ledger)
    killed.train()
    killed.save(path)
    killed.train(limit=1)
    # In the same process nothing is in doubt: what was taken stays taken.
    killed.load(path)
    assert killed.optimizer.loop.paid.left == 5
    resumed = Run(ledger)
    with pytest.warns(PrivacyWarning, match="went on after it was saved"):
        resumed.load(path)
    resumed.train()
    assert len(ledger.history("people")) == 2


def test_checkpoints_keep_to_their_ledger(tmp_path):
    ledger, path = book(), tmp_path / "c.pt"
    run = Run(ledger)
    run.train(limit=1)
    run.save(path)
    without = Run(None, engine=PrivacyEngine(), epochs=None, target_delta=None)
    with pytest.raises(CheckpointError, match="pass ledger= and dataset="):
        without.load(path)
    with pytest.raises(CheckpointError, match="has no charge"):
        Run(book()).load(path)
    without.train(limit=1)
    without.save(path)
    with pytest.raises(CheckpointError, match="not charged"):
        Run(ledger).load(path)


@pytest.mark.parametrize("shuffle", [False, True])
def test_passes_are_charged_by_the_pass(shuffle):
    """In a fixed order on a ledger for zero-out, in random bins on one for add/remove."""
    ledger = book(adjacency="add-remove" if shuffle else "zero-out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(ledger, noise=4.0, poisson_sampling=False, shuffle=shuffle)
    run.train()
    run.train(limit=1)
    assert ledger.history("people")[0].price.epsilon >= run.engine.get_epsilon(DELTA) * (1 - 1e-12)
    with pytest.raises(ChargeError, match="are made"):
        run.train(limit=1)  # a third pass, of which one step is as much as all


@pytest.mark.parametrize(
    ("terms", "match"),
    [({"unit": "person"}, "one person"), ({"adjacency": "zero-out"}, "zero-out"), ({"size_public": False}, "private")],
)
def test_a_ledger_on_other_terms_is_refused(terms, match):
    with pytest.raises(TermsError, match=match):
        Run(book(**terms))


def test_a_ledger_needs_a_name_and_a_length():
    with pytest.raises(ValueError, match="together"):
        PrivacyEngine(ledger=book())
    with pytest.raises(ValueError, match="epochs= or steps="):
        Run(book(), epochs=None)
    with pytest.raises(ValueError, match="give ledger="):
        Run(None, engine=PrivacyEngine())
