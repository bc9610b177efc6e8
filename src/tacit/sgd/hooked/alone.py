"""How does one example fare by itself, through the calls of the model that its batch went through?

The loop's loss is not seen, only what arrived at the outputs of each call. An example by itself must have the outputs
that it has in the batch, and with what arrived there its gradient is the one that it has by itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.sgd.errors import BatchMixing, ClippingError, UncoveredUse
from tacit.sgd.gradients import company, fallback, probe, verify
from tacit.sgd.gradients.bounds import Clipping, Gradients
from tacit.sgd.gradients.outside import Attributes, Pass, as_written
from tacit.sgd.gradients.randomness import Draws, NotRepeated, remember
from tacit.sgd.hooked.calls import MIXES, Call

if TYPE_CHECKING:
    from tacit.sgd.hooked.watch import Watch


class Alone:
    """Single examples of a batch, which went through the model in these calls."""

    def __init__(self, watch: Watch, calls: list[Call]) -> None:
        self.watch, self.calls, self.rows = watch, [call for call in calls if call.cotangents], calls[0].rows
        self._draws: dict[int, Draws] = {}

    @contextlib.contextmanager
    def passes(self) -> Iterator[None]:
        """Inside, the model runs unwatched and leaves no trace; what the batch drew at random is known."""
        engine = self.watch.engine
        after, state = remember(engine.device), Attributes(engine.model)
        plainly = as_written(compiled=engine.state.compiled)
        try:
            with self.watch.off(), engine.protected_buffers(), plainly, torch.enable_grad():
                for k, call in enumerate(self.calls):
                    if call.random:
                        self._draws[k] = Draws(engine.device)
                        call.rewind()
                        with self._draws[k].noted():
                            call.outputs(call.leaves)
                yield
        finally:
            self._draws.clear()
            after()
            state.restore()

    def value(self, example: int) -> tuple[Tensor, bool]:
        """A number with the gradient of the example's loss; whether its outputs are those of its place in the batch."""
        total, same = torch.zeros((), device=self.watch.engine.device), True
        for k, call in enumerate(self.calls):
            leaves = call.picked(torch.tensor([example]), square=False)
            if leaves is None:
                raise UncoveredUse(NO_EXAMPLES)
            with self._draws[k].of(example, self.rows) if k in self._draws else contextlib.nullcontext():
                outs = call.outputs(leaves)
            for j, cotangent in call.cotangents.items():
                dim = self.watch.place_of(call, j, self.rows)
                assert dim is not None
                weight = cotangent.narrow(dim, example, 1)
                among = call.outs[j].detach().narrow(dim, example, 1)
                if outs[j].shape != among.shape:
                    raise UncoveredUse("an example by itself has outputs of another shape than in its batch")
                total = total + (outs[j] * weight.conj()).real.sum()
                same = same and near(among, outs[j].detach(), weight, self.watch.tolerance(call))
        return total, same

    def among(self, example: int, others: Tensor) -> tuple[Tensor, bool]:
        """As :meth:`value`, in a batch of these examples, in which the example stays in its place.

        The same size and the same draws: here outputs stay the same to the last digits.
        """
        total, same = torch.zeros((), device=self.watch.engine.device), True
        for call in self.calls:
            leaves = call.picked(others, square=False)
            if leaves is None:
                raise UncoveredUse(NO_EXAMPLES)
            call.rewind()
            outs = call.outputs(leaves)
            for j, cotangent in call.cotangents.items():
                dim = self.watch.place_of(call, j, self.rows)
                assert dim is not None
                one, two, weight = (t.narrow(dim, example, 1) for t in (call.outs[j].detach(), outs[j], cotangent))
                total = total + (two * weight.conj()).real.sum()
                same = same and near(one, two.detach(), weight, company.UNMOVED)
        return total, same

    def unmoved(self, example: int) -> bool:
        """Whether the example keeps its outputs with every other one replaced by itself."""
        return self.among(example, torch.full((self.rows,), example))[1]


NO_EXAMPLES = "the inputs of the model have no dimension for the examples of the batch"


def near(one: Tensor, two: Tensor, weight: Tensor, tolerance: float) -> bool:
    """Whether outputs are the same but for rounding, as far as the loss looks at them."""
    wide = torch.promote_types(one.dtype, torch.float64)
    one, two = one.to(wide) * weight, two.to(wide) * weight
    if not bool(torch.isfinite(one).all() & torch.isfinite(two).all()):
        return bool(torch.isfinite(one).all() == torch.isfinite(two).all())
    return bool((one - two).norm() <= tolerance * one.norm() + 1e-12)


def completed(watch: Watch, calls: list[Call], whole: Gradients) -> Gradients:
    """Gradients of a batch with those of the parameters apart, by a pass of each example by itself."""
    engine, rows, began = watch.engine, whole.batch, time.perf_counter()
    if rows > fallback.at_a_time(engine):
        raise UncoveredUse(
            f"{next(iter(engine.apart.values()))}; single gradients of so many examples do not fit: run fewer at a "
            f"time (BatchMemoryManager with max_physical_batch_size={fallback.at_a_time(engine)})"
        )
    alone, other = Alone(watch, calls), []

    def single(example: int) -> Tensor:
        value, same = alone.value(example)
        if not same:
            other.append(example)
        return value

    try:
        with alone.passes():
            found = fallback.filled(engine, whole, range(rows), single)
            if rows > 1 and not all(alone.unmoved(example) for example in other):
                raise BatchMixing(MIXES.format(type(calls[0].module).__name__))
    except NotRepeated as error:
        raise fallback.not_repeated(engine, error) from error
    except company.REFUSED as error:
        if isinstance(error, ClippingError | torch.OutOfMemoryError):
            raise
        raise fallback.alone_refused(engine, error) from error
    fallback.say(engine, rows, time.perf_counter() - began)
    return found


def probed(watch: Watch, calls: list[Call], norms: Tensor, clipping: Clipping, example: int) -> str | None:
    """As :func:`tacit.sgd.gradients.probe.of_step`, for the calls of a loop and the norms that clipping used."""
    engine, alone = watch.engine, Alone(watch, calls)
    names, parameters = list(engine.parameters), list(engine.parameters.values())
    tolerance = max((watch.tolerance(call) for call in alone.calls), default=0.0)

    def wrong(value: Tensor, allowed: Callable[[int], float] = lambda _: 0.0) -> str | None:
        own = torch.autograd.grad(value, parameters, allow_unused=True)
        return probe.other_group(norms[example], own, names, clipping, tolerance, allowed)

    def rounding(k: int) -> float:
        passes = [(Pass(call.uses, torch.ones(1), 1), call.grads or []) for call in alone.calls]
        return sum(verify.rounding(run, k, grads, squared=True) for run, grads in passes)

    if not alone.calls:
        return None
    with alone.passes():
        try:
            value, same = alone.value(example)
            if same and wrong(value) is None:
                return None
        except (NotRepeated, *company.REFUSED) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
        try:
            value, same = alone.among(example, torch.arange(alone.rows))
            found = wrong(value, rounding)
            return found if found is not None else None if same and alone.unmoved(example) else "loss"
        except company.REFUSED as error:
            # Rows cannot be exchanged at all: where the examples are was found in this very batch.
            if isinstance(error, ClippingError) and not isinstance(error, UncoveredUse):
                raise
            return None
