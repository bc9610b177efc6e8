"""Runs inside other people's trainers are charged to the ledger: whole, before the first step, and once."""

from __future__ import annotations

import pytest
import torch

from tacit import accounting as acc
from tacit.integrations.run import PrivateRun
from tacit.ledger import BudgetExceeded, Ledger, TermsError
from tacit.sgd.hooked.draws import PrivateBatches
from tacit.sgd.training.checkpoint import CheckpointError
from tacit.sgd.training.sampling import Poisson

DELTA = 1e-5


def book(where=None, epsilon=4.0, **terms):
    ledger = Ledger(where)
    ledger.register("people", epsilon=epsilon, delta=2 * DELTA, **terms)
    return ledger


def looks(ledger, loop_of):
    """How many charges stand, and how many steps were released, at every step."""
    seen = []

    def look():
        seen.append((len(ledger.history("people")), len(loop_of().spent)))

    return seen, look


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def hugging_face(folder, ledger, steps=4, **options):
    for package in ("transformers", "peft", "accelerate"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'tacit[transformers]'")
    from tests.integrations.trainer_run import trainer

    made = trainer(folder, steps=steps, ledger=ledger, dataset="people", **options)
    made.args.eval_strategy, made.args.save_steps = "no", 2
    made.state.save_steps = 2
    return made


def test_a_trainer_charges_its_plan_once_and_resumes_under_the_same_charge(tmp_path):
    ledger, given = book(), {"target_epsilon": None, "noise_multiplier": 1.0}
    made = hugging_face(tmp_path, ledger, **given)
    callback = made.privacy_callback
    seen, look = looks(ledger, lambda: made.private_run.loop)
    step = callback.step

    def watched(*args):
        look()
        if made.state.global_step == 3:
            raise KeyboardInterrupt
        return step(*args)

    callback.step = watched
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert seen[0] == (1, 0)  # charged when no step was made
    (record,) = ledger.history("people")
    assert not record.confirmed
    again = hugging_face(tmp_path, ledger, **given)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert again.state.global_step == 4
    (record,) = ledger.history("people")
    assert record.confirmed
    assert record.price.epsilon >= again.privacy.claim
    assert ledger.verify("people").ok


@pytest.mark.slow
def test_a_trainer_over_budget_steps_nothing(tmp_path):
    made = hugging_face(tmp_path, book(epsilon=1.0), target_epsilon=None, noise_multiplier=1.0)
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    with pytest.raises(BudgetExceeded, match="Still fits"):
        made.train()
    assert all(torch.equal(p, before[n]) for n, p in made.model.named_parameters())
    assert made.state.global_step == 0
    assert not (tmp_path / "run.key").exists()


# -- Lightning ---------------------------------------------------------------------------------------------------------


def lightning(folder, ledger, *, look=None, stop=None, **options):
    pl = pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install 'tacit[lightning]'")
    from tests.integrations.lightning_run import fit

    class Watch(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if look is not None:
                look(trainer)

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step == stop:
                trainer.save_checkpoint(folder / "saved.ckpt")
                raise KeyboardInterrupt

    private = {"ledger": ledger, "dataset": "people", **options.pop("private", {})}
    return fit(folder, private=private, callbacks=[Watch()], limit_val_batches=0, **options)


def test_lightning_charges_its_plan_once_and_anew_where_the_key_is_gone(tmp_path):
    ledger, seen = book(epsilon=12.0), []
    with pytest.raises(SystemExit):
        lightning(tmp_path, ledger, stop=3, look=lambda t: seen.append((len(ledger.history("people")), t.global_step)))
    assert seen == [(1, 0), (1, 1), (1, 2)]
    _, private, _ = lightning(tmp_path, ledger, checkpoint=tmp_path / "saved.ckpt")
    (record,) = ledger.history("people")
    assert record.confirmed
    assert record.price.epsilon >= private.privacy.claim
    assert len(private.run.loop.spent) == 20
    # The key ended with the run: from the checkpoint again is other noise, and 17 steps that nobody has paid for.
    _, private, _ = lightning(tmp_path, ledger, checkpoint=tmp_path / "saved.ckpt")
    first, second = ledger.history("people")
    assert second.price.epsilon < first.price.epsilon
    assert [max(dict(record.mechanism.parts()).values()) for record in (first, second)] == [20, 17]
    # Both are claimed: the first life may have gone on after the checkpoint, and here it did.
    both = acc.PoissonSampled(acc.Gaussian(1.0), 0.1) * 37
    assert private.privacy.claim == pytest.approx(acc.epsilon(both, DELTA).upper, rel=1e-6)
    with pytest.raises(CheckpointError, match="pass ledger= and dataset="):
        lightning(tmp_path, None, private={"dataset": None}, checkpoint=tmp_path / "saved.ckpt")


def test_lightning_over_budget_steps_nothing(tmp_path):
    seen = []
    with pytest.raises(BudgetExceeded, match="Still fits"):
        lightning(tmp_path, book(epsilon=1.0), look=lambda t: seen.append(t.global_step))
    assert seen == []
    assert not (tmp_path / "run.key").exists()
    with pytest.raises(TermsError, match="one person"):
        lightning(tmp_path, book(unit="person"))


def test_a_key_is_not_used_again_with_other_noise():
    # The same noise at two scales on the same sum would give the sum away.
    stamps = set()
    for noise in (1.0, 2.0):
        run = PrivateRun(noise_multiplier=noise, target_epsilon=None, target_delta=DELTA, max_grad_norm=1.0)
        run.batches = PrivateBatches(Poisson(10, 5), None, 10)
        stamps |= {run.stamp(torch.nn.Linear(2, 2), list(range(10)), steps=steps) for steps in (3, 4)}
    assert len(stamps) == 4
