"""The host hears whether a step holds, from the step it asks about and from no other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from tacit import sgd
from tacit.sgd.compile.answers import Answer, tell


def nothing() -> None:
    pass


@pytest.mark.parametrize("value", [True, False])
def test_an_answer_is_the_value_that_was_sent(value):
    answer = Answer(pin=False)
    answer.expect(nothing)
    with answer.awaited():
        factors = tell(torch.tensor(value), torch.tensor([0.5, 2.0]))
    assert factors.tolist() == [0.5, 2.0]
    assert answer.read(torch.tensor(not value), lambda: False) is value
    tell(torch.tensor(not value), factors)  # nobody awaits it
    assert answer.read(torch.tensor(not value), lambda: False) is value


def test_what_is_computed_from_the_factors_comes_after_the_answer_in_a_compiled_program():
    """A compiler orders operations as it likes; sums that do not wait for the answer would be made first."""
    order: list[str] = []

    @torch.library.custom_op("tacit_tests::large", mutates_args=())
    def large(x: torch.Tensor) -> torch.Tensor:
        order.append("sum")
        return x.clone()

    @large.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Watched(Answer):
        def send(self, value: torch.Tensor) -> None:
            order.append("answer")
            super().send(value)

    @torch.library.custom_op("tacit_tests::look", mutates_args=())
    def look(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.abs().clamp(max=1.0), torch.isfinite(x).all()

    @look.register_fake
    def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x), x.new_empty((), dtype=torch.bool)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factors, fine = look(x)  # nothing in here is left for a C++ compiler, which would take ten seconds
        return large(tell(fine, factors)), fine

    run = torch.compile(step)
    answer = Watched(pin=False)
    with answer.awaited():
        run(torch.randn(5))
    assert order == ["answer", "sum"]


@pytest.mark.parametrize("value", [True, False])
def test_where_no_answer_came_though_all_is_done_the_value_itself_is_read(value):
    answer = Answer(pin=False)
    answer.expect(nothing)
    looks = iter([False, False, True])
    assert answer.read(torch.tensor(value), lambda: next(looks)) is value


def test_two_runs_in_two_threads_get_their_own_answers():
    answers, met = [Answer(pin=False), Answer(pin=False)], threading.Barrier(2)

    def run(k: int) -> int:
        answers[k].expect(nothing)
        with answers[k].awaited():
            met.wait(60)  # both await now
            tell(torch.tensor(k == 0), torch.ones(1))
            met.wait(60)
        return int(answers[k].byte[0])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [1, 0]


def test_an_answer_that_nobody_read_is_waited_for_before_the_next_is_expected():
    answer = Answer(pin=False)
    settled = []

    def arrives() -> None:
        answer.send(torch.tensor(True))  # the late answer of the step before
        settled.append(True)

    answer.expect(nothing)
    answer.expect(arrives)
    assert settled
    answer.send(torch.tensor(False))
    assert answer.read(torch.tensor(False), lambda: False) is False
    answer.expect(lambda: settled.append(False))
    assert settled == [True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_batch_that_does_not_hold_is_found_out_in_every_step_of_a_recorded_program():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)), nn.Linear(64, 3)).cuda()
    loss = nn.CrossEntropyLoss(reduction="none")
    for step in range(12):
        x, y = torch.randn(32, 64, device="cuda"), torch.randint(3, (32,), device="cuda")
        if step in (5, 8, 9):
            x[step] = float("nan") if step == 8 else 1e38
        found = sgd.clipped_grad(model, loss, (x, y), 0.1, compile=True)
        wanted = sgd.clipped_grad(model, loss, (x, y), 0.1)
        assert all(torch.isfinite(total).all() for total in found.sums.values()), step
        for name, total in wanted.sums.items():
            assert (found.sums[name] - total).norm() <= 1e-4 * (total.norm() + 0.1), (step, name)
