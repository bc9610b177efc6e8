"""Old noise is used again for the same gradients only: what decides them is in the stamp of a run."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate

from tacit import accounting as acc
from tacit.integrations.run import PrivateRun
from tacit.sgd.hooked.draws import PrivateBatches
from tacit.sgd.training.checkpoint import CheckpointError
from tacit.sgd.training.sampling import Poisson


class Read(Dataset):
    """Pictures read by number, with black borders, and shifted at random by ``noise``."""

    def __init__(self, noise=0.0):
        self.noise = noise

    def __len__(self):
        return 40

    def __getitem__(self, k):
        picture = torch.zeros(40, 40)
        picture[10:30, 10:30] = k + self.noise * torch.rand(20, 20)
        return picture, k % 2


def stamp(data, collate=default_collate, activation=None, **more):
    run = PrivateRun(noise_multiplier=1.0, target_epsilon=None, target_delta=1e-5, max_grad_norm=1.0)
    run.batches = PrivateBatches(Poisson(len(data), 8), None, len(data))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), activation or torch.nn.Tanh())
    torch.manual_seed(0)  # as whoever seeds each life of a run does
    return run.stamp(model, data, collate, **more)


def test_any_record_in_memory_is_in_the_stamp():
    x = torch.arange(3000.0).reshape(1000, 3)
    other = x.clone()
    other[123, 1] = -1
    assert stamp(TensorDataset(x)) == stamp(TensorDataset(x.clone())) != stamp(TensorDataset(other))
    assert stamp(x.tolist()) == stamp(x.tolist()) != stamp(other.tolist())


@pytest.mark.parametrize("where", ["records", "batches"])
def test_data_that_are_read_at_random_fit_no_other_run(where):
    def masked(records):
        pictures, labels = default_collate(records)
        return pictures * (torch.rand(pictures.shape) > 0.1), labels

    made = {"data": Read(noise=1.0)} if where == "records" else {"data": Read(), "collate": masked}
    assert stamp(Read()) == stamp(Read())
    assert stamp(**made) != stamp(**made)


def test_what_computes_is_in_the_stamp():
    def loss(weight):
        return lambda model, batch: weight * model(batch[0]).sum(1)

    assert stamp(Read()) != stamp(Read(), activation=torch.nn.ReLU())
    assert stamp(Read(), loss=loss(1.0)) == stamp(Read(), loss=loss(1.0)) != stamp(Read(), loss=loss(2.0))


def test_a_checkpoint_does_not_tell_whether_a_guess_of_the_records_is_right(tmp_path):
    run = PrivateRun(
        noise_multiplier=1.0, target_epsilon=None, target_delta=1e-5, max_grad_norm=1.0, key_file=tmp_path / "run.key"
    )
    run.batches = PrivateBatches(Poisson(40, 8), None, 40)
    model = torch.nn.Linear(2, 2)
    made = run.stamp(model, Read(), default_collate)
    run.take_key(made)
    run.begin(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    names = {name.hex() for _, name in run._parts.values()}
    told = repr(run.state())
    assert made not in told
    assert not any(name[:32] in told for name in names)
    run.leave()


def test_looking_leaves_the_generator_alone():
    torch.manual_seed(0)
    wanted = torch.rand(3)
    stamp(Read(noise=1.0))
    assert torch.equal(torch.rand(3), wanted)


def test_a_trainer_whose_warm_up_changed_takes_a_new_key(tmp_path):
    for package in ("transformers", "peft", "accelerate"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'tacit[transformers]'")
    from tests.integrations.trainer_run import trainer

    from tacit.accounting.errors import PrivacyWarning

    def made(warm_up):
        found = trainer(tmp_path, steps=3, target_epsilon=None, noise_multiplier=1.0)
        found.args.eval_strategy, found.args.warmup_steps = "no", warm_up
        found.args.save_steps = found.state.save_steps = 2
        return found

    first = made(0)
    step = first.privacy_callback.step

    def cut(*args):
        if first.state.global_step == 2:
            raise KeyboardInterrupt
        return step(*args)

    first.privacy_callback.step = cut
    with pytest.raises(KeyboardInterrupt):
        first.train()
    secret = (tmp_path / "run.key").read_bytes()
    again, keys = made(3), []
    plain = again.privacy_callback.step

    def look(*args):
        keys.append({path.read_bytes() for path in tmp_path.glob("run*.key")})
        return plain(*args)

    again.privacy_callback.step = look
    with pytest.warns(PrivacyWarning, match="not the run that was saved"):
        again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert again.state.global_step == 3
    # The new key ended with the run; the old one stays for whoever resumes the run as it was.
    assert len(keys[0]) == 2
    assert [path.read_bytes() for path in tmp_path.glob("run*.key")] == [secret]
    with pytest.raises(CheckpointError, match="name another key_file="):
        made(0).train()


def test_a_unit_without_ids_is_refused():
    with pytest.raises(acc.UnitError, match="'patient' is only a word"):
        PrivateRun(noise_multiplier=1.0, target_epsilon=None, target_delta=1e-5, max_grad_norm=1.0, unit="patient")
