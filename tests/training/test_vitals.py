"""What a run keeps of itself is a function of its noisy gradients, and estimates what was there before the noise."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from tacit.sgd import Banded, DPAdam, Vitals, read_vitals
from tacit.sgd.training import vitals as vitals_file
from tests.training.common import data, finish, key, network, run


class Seen:
    """The gradients that an optimizer gets, and the weights before each step."""

    def __init__(self, training: Any) -> None:
        self.training, self.gradients, self.weights = training, [], []
        training.optimizer.register_step_pre_hook(self.keep)

    def keep(self, *_: Any) -> None:
        values = list(self.training.parameters.values())
        self.gradients.append(torch.cat([p.grad.flatten() for p in values]))
        self.weights.append(torch.cat([p.detach().flatten().clone() for p in values]))


def test_looks_are_a_function_of_noisy_gradients_weights_and_public_numbers():
    training = run(steps=8)
    seen, vitals = Seen(training), Vitals(training)
    finish(training)
    noise = sum(p.numel() for p in training.parameters.values()) * training.noise_at(0).variance
    assert [look.step for look in vitals.looks] == list(range(8))
    for step, look in enumerate(vitals.looks):
        g, w = seen.gradients[step], seen.weights[step]
        wanted = {"signal": float(g @ g) - noise, "distance": float((w - seen.weights[0]).norm())}
        if step:
            moved = w - seen.weights[step - 1]
            wanted |= {
                "turn": float(g @ seen.gradients[step - 1]),
                "slope": float(g @ moved),
                "moved": float(moved @ moved),
            }
        got = dataclasses.asdict(look)
        for name, value in wanted.items():
            assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
    assert vitals.looks[0].turn is None


def test_looks_estimate_the_signal_and_not_the_noise():
    """With noise far longer than the signal, the mean of 240 estimates is within six standard errors of the truth."""
    model = network()
    still = torch.optim.SGD(model.parameters(), lr=1e-12)  # the signal stays what it is
    training = run(model, optimizer=still, steps=240, batch_size=120, noise_multiplier=20.0)
    vitals = Vitals(training)
    exact = []
    for batch in training:
        if not exact:
            sums, _ = training.clipped_sums(batch, training.clip_at(0))
            exact.append(sum(float((s / training.divisor).square().sum()) for s in sums.values()))
        training.step(batch)
    d, v = vitals.facts.parameters, training.noise_at(0).variance
    error = math.sqrt(2 * d * v * v / len(vitals.looks)) + 2 * math.sqrt(v * exact[0] / len(vitals.looks))
    signal = sum(look.signal for look in vitals.looks) / len(vitals.looks)
    turn = sum(look.turn or 0.0 for look in vitals.looks) / (len(vitals.looks) - 1)
    assert abs(signal - exact[0]) < 6 * error
    assert abs(turn - exact[0]) < 6 * error
    assert d * v > 50 * error  # estimates that left the noise in would be far out


def test_a_long_run_is_looked_at_in_pairs_of_steps(monkeypatch):
    monkeypatch.setattr(vitals_file, "LOOKS", 20)
    training = run(steps=120)
    vitals = Vitals(training)
    finish(training)
    steps = [look.step for look in vitals.looks]
    assert steps[:4] == [0, 1, 7, 13]
    assert steps[-1] == training.plan.steps - 1
    assert len(steps) == 22
    assert all(look.slope is not None for look in vitals.looks[1:-1])


def test_a_run_that_goes_on_keeps_what_it_would_have_kept(tmp_path):
    whole = Vitals(run(steps=8), tmp_path / "whole.jsonl")
    finish(whole.training)
    settings = {"steps": 8, "checkpoint": tmp_path / "run.ckpt", "key": None, "key_file": tmp_path / "run.key"}
    path = tmp_path / "parts.jsonl"
    first = run(**settings)
    vitals = Vitals(first, path)
    for batch in first:
        first.step(batch)
        if first.steps_executed == 4:
            first.save()
        if first.steps_executed == 6:  # killed after two steps that no checkpoint has
            break
    lost = {look.step: look for look in vitals.looks}
    again = run(**settings)
    assert again.steps_executed == 4
    Vitals(again, path)
    finish(again)
    facts, looks = read_vitals(path)
    assert facts == read_vitals(tmp_path / "whole.jsonl")[0]
    assert [look.step for look in looks] == list(range(8))
    assert looks[:4] == [lost[step] for step in range(4)]
    assert looks[5].signal == pytest.approx(lost[5].signal)  # the same noise, made again
    assert looks[7].distance is None  # where the run began is not known any more


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    path = tmp_path / "vitals.jsonl"
    finish(Vitals(run(), path).training)
    path.write_text(path.read_text()[:-20])
    assert len(read_vitals(path)[1]) == 5
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="not what a run keeps"):
        read_vitals(path)


def test_steps_whose_noise_hangs_together_are_not_compared():
    vitals = Vitals(run(noise=Banded(bands=2)))
    finish(vitals.training)
    assert all(look.turn is None and look.slope is None for look in vitals.looks)


@pytest.mark.parametrize("kind", ["adam", "dpadam", "none"])
def test_watching_changes_nothing(kind):
    def made(watched: bool) -> Any:
        model = network()
        optimizers = {
            "adam": torch.optim.Adam,
            "dpadam": DPAdam,
            "none": torch.optim.SGD,
        }
        training = run(model, optimizer=optimizers[kind](model.parameters(), lr=0.1), source=data(), key=key(3))
        vitals = Vitals(training) if watched else None
        weights = finish(training)
        if vitals is not None:
            vitals.remove()
        return weights

    one, other = made(True), made(False)
    assert all(torch.equal(one[name], other[name]) for name in one)
