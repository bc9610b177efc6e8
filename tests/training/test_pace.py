"""Which program runs a step by default, and is a step that is made again made by the same one?"""

import random

import pytest
import torch
from torch import nn

from tacit import sgd
from tacit.noise import Key
from tacit.sgd.training import pace
from tacit.sgd.training.canaries import AuditedTraining
from tacit.sgd.training.checkpoint import CheckpointError
from tacit.sgd.training.pace import Pace


def run_for(chooser, *, steps, seconds, uses=10):
    """The programs of a run whose steps take ``seconds[program]``, and what it took in all, programs included."""
    programs, total = [], 0.0
    for step in range(steps):
        program = chooser.program
        if programs and program not in programs and program in pace.COST:
            fixed, each = pace.COST[program]
            total += fixed + each * uses
        programs.append(program)
        total += seconds[program]
        chooser.took(seconds[program])
        if not chooser.settled:
            chooser.choose(steps - step - 1, uses)
    return programs, total


def test_a_faster_program_is_tried_and_kept():
    programs, _ = run_for(
        Pace(gpu=False), steps=200_000, seconds={"uncompiled": 0.02, "traced": 0.01, "compiled": 0.005}
    )
    assert programs[0] == "uncompiled"
    assert programs[-1] == "compiled"
    assert programs.index("traced") < programs.index("compiled")


def test_a_slower_program_is_given_up():
    programs, _ = run_for(Pace(gpu=False), steps=50_000, seconds={"uncompiled": 0.02, "traced": 0.03, "compiled": 0.01})
    assert programs[-1] == "uncompiled"
    assert 0 < programs.count("traced") < 100


def test_a_short_run_stays_as_it_began():
    programs, _ = run_for(Pace(gpu=False), steps=200, seconds={"uncompiled": 0.01, "traced": 0.001, "compiled": 0.001})
    assert set(programs) == {"uncompiled"}


@pytest.mark.parametrize("gains", [(1.0, 1.0), (1.5, 1.5), (0.5, 1.5), (0.97, 0.97), (0.99, 0.2)])
@pytest.mark.parametrize("steps", [100, 2_000, 20_000, 100_000])
def test_a_run_never_ends_much_later_than_without_trying(gains, steps):
    draw = random.Random(17)
    for _ in range(10):
        slow = draw.uniform(0.002, 0.2)
        seconds = {"uncompiled": slow, "traced": slow * gains[0], "compiled": slow * gains[0] * gains[1]}
        _, took = run_for(Pace(gpu=False), steps=steps, seconds=seconds, uses=draw.randint(1, 80))
        assert took <= 1.021 * steps * slow


def made(tmp_path=None, *, steps=200, **more):
    torch.manual_seed(0)
    x, y = torch.randn(200, 5), torch.randint(2, (200,))
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    if tmp_path is not None:
        more |= {"checkpoint": tmp_path / "run.pt", "key_file": tmp_path / "key", "checkpoint_every": 10}
    settings = {"batch_size": 20, "steps": steps, "noise_multiplier": 1.0, "delta": 1e-5} | more
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return sgd.Training(model, optimizer, nn.CrossEntropyLoss(reduction="none"), (x, y), **settings)


def go_to(training, step):
    for batch in training:
        training.step(batch)
        if training.steps_executed == step:
            return


class At:
    """A pace that changes after so many steps were made."""

    settled = False

    def __init__(self, step):
        self.step = step

    def took(self, seconds):
        pass

    def choose(self, left, uses):
        return "traced" if 200 - left >= self.step else "uncompiled"


def test_a_step_that_is_made_again_has_the_program_that_made_it(tmp_path):
    first = made(tmp_path)
    first._pace = At(24)
    go_to(first, 24)
    assert first.program == "traced"  # of step 24, which is not made yet: the checkpoint knows
    go_to(first, 29)
    kept = [p.detach().clone() for p in first.model.parameters()]
    del first
    again = made(tmp_path)
    assert (again.steps_executed, again.program) == (24, "traced")
    assert again._fixed_until == 30
    go_to(again, 29)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), kept, strict=True))


def test_a_resumed_run_does_not_change_where_steps_may_have_been_made_before(tmp_path):
    first = made(tmp_path)
    go_to(first, 5)  # the checkpoint is that of the beginning
    del first
    again = made(tmp_path)
    assert again.steps_executed == 0
    again._pace = At(3)
    go_to(again, 9)
    assert again.program == "uncompiled"
    go_to(again, 10)
    assert again.program == "traced"


def test_another_program_than_the_one_of_the_checkpoint_is_a_fork(tmp_path):
    go_to(made(tmp_path, compile="traced"), 10)
    with pytest.raises(CheckpointError, match="how the step is computed"):
        made(tmp_path, compile=False)
    assert made(tmp_path).program == "traced"  # nobody said which


def test_runs_that_somebody_may_want_to_repeat_bit_by_bit_do_not_change():
    assert made()._pace is not None
    assert made(key=Key.generate())._pace is None
    assert made(compile=False)._pace is None
    assert made(method="examples")._pace is None


def test_a_run_with_canaries_which_looks_into_every_step_does_not_change():
    x, y = torch.randn(200, 5), torch.randint(2, (200,))
    model = nn.Linear(5, 2)
    settings = {"batch_size": 20, "steps": 5, "noise_multiplier": 1.0, "delta": 1e-5}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss(reduction="none")
    assert AuditedTraining(model, optimizer, loss, (x, y), canaries=4, **settings)._pace is None


class Asks(nn.Module):
    """Looks at its data."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > -1e9 else self.layer(-x)


def of_a_model_that_asks():
    x, y = torch.randn(50, 5), torch.randint(2, (50,))
    model = Asks()
    settings = {"batch_size": 10, "steps": 200, "noise_multiplier": 1.0, "delta": 1e-5}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return sgd.Training(model, optimizer, nn.CrossEntropyLoss(reduction="none"), (x, y), **settings)


def test_a_model_that_cannot_be_traced_runs_on_without_a_word(recwarn):
    training = of_a_model_that_asks()
    training._pace = At(0)  # whatever is left
    training._pace.choose = lambda left, uses: "traced"
    go_to(training, 4)
    assert training.program == "traced"
    assert not [w for w in recwarn if issubclass(w.category, sgd.NotCompiled)]


def test_a_model_that_cannot_be_traced_is_not_tried():
    training = of_a_model_that_asks()
    training._pace = Pace(gpu=False)
    training._pace._times, training._pace._untimed = [1e9] * pace.TIMED, 0
    go_to(training, 1)
    assert (training.program, training._pace) == ("uncompiled", None)
