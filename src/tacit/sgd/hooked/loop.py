"""How does somebody else's training loop become a private one? The half that clips, adds up, adds noise and counts.

:class:`Loop` joins a :class:`~tacit.sgd.hooked.watch.Watch` at the model's border, the batches that a data loader
handed out (:class:`~tacit.sgd.hooked.draws.PrivateBatches`) and an optimizer. When the optimizer is about to step, what
arrived since the last step is clipped and summed, noise is added, and ``p.grad`` is set; what that cost is noted in the
same place.

Every batch belongs to one draw, and a draw serves one step. Calls of the model on the same batch before a step are one
function of each example: their gradients are added before clipping. Batches of several draws before a step are clipped
each for itself and priced as what that is (:class:`~tacit.accounting.sampling.Accumulated`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import OperatorView
from tacit.noise.keys import Key
from tacit.noise.process import OneProcess
from tacit.sgd import release
from tacit.sgd.errors import ProbeFailed
from tacit.sgd.gradients import probe
from tacit.sgd.gradients.bounds import Clipping, Gradients, clip, exact_products, warn_once
from tacit.sgd.gradients.contributions import wide
from tacit.sgd.gradients.engine import Engine
from tacit.sgd.hooked import alone
from tacit.sgd.hooked.calls import Call
from tacit.sgd.hooked.draws import Piece, PrivateBatches, Spent
from tacit.sgd.hooked.prepaid import Asked, Prepaid
from tacit.sgd.hooked.watch import Watch
from tacit.sgd.release import AdaptiveClipping, EarlierNoise
from tacit.sgd.training.probes import EVERY, Probes
from tacit.sgd.training.sampling import Poisson
from tacit.sgd.training.validation import check_parameters


class Loop(OneProcess):
    """The private half of a loop: ``noise_multiplier`` and ``clip_norm`` may change between steps.

    Guarantee: with the sampler of ``batches``, everything computed from the weights after any number of steps is
    (ε, δ)-DP with the ε of ``spent.price(δ)``, for adding or removing one record (zero-out where batches come from
    shuffled passes), provided the number of steps does not depend on what was seen of the data. Each release is a sum
    of L2 sensitivity ``sensitivity`` for each draw in it, with noise of standard deviation noise multiplier times that.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: PrivateBatches,
        *,
        noise_multiplier: float,
        clip_norm: float | Sequence[float],
        clipping: str | Mapping[str, float] = "flat",
        adaptive: AdaptiveClipping | None = None,
        clip_range: tuple[float | None, float | None] = (None, None),
        mean: bool = True,
        summed: bool = False,
        batch_dim: int = 0,
        key: Key | None = None,
        check: bool = True,
        earlier: EarlierNoise | None = None,
    ) -> None:
        self.parameters = check_parameters(model, optimizer)
        #: which noise of earlier steps a step takes back; then noise and clip norm stay what they are
        self.earlier, self._first = earlier, (float(noise_multiplier), clip_norm)
        self.batches = batches
        self.noise_multiplier, self.clip_norm, self.clipping = noise_multiplier, clip_norm, clipping
        self.optimizer, self.adaptive, self.mean = optimizer, adaptive, mean
        #: where an adaptive clip norm stays
        self.clip_range = (0.0, math.inf)
        if adaptive is not None and isinstance(clip_norm, int | float):
            self.clip_range = release.clip_range(clip_norm, *clip_range)
        key = key or Key.generate()
        self._noise_key, self._probe_key = key.derive("noise"), key.derive("probes")
        #: how often an example is compared with itself alone, and how many batches were taken
        self.probes = Probes(EVERY, batches.sampler.divisor) if check else None
        self._pieces = 0
        self._stopped: ProbeFailed | None = None
        if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
            raise ValueError(f"noise_multiplier must be finite and not negative, not {noise_multiplier!r}")
        self.spec()
        self._elements = sum(p.numel() * (1 + p.is_complex()) for p in self.parameters.values())
        self.spent = Spent(batches.sampler, self._elements + (adaptive is not None), batches.unit)
        #: where a ledger pays: asked before each release
        self.paid: Prepaid | None = None
        #: the ε that was asked for, where one was
        self.asked: Asked | None = None
        self.steps = 0
        # With ``summed`` the loop's losses are sums over the batch and the release is still divided by its size.
        averaged = mean and not summed
        self.watch = Watch(model, Engine.of(model), piece=self.piece, mean=averaged, batch_dim=batch_dim, check=check)
        self.current: Piece | None = None
        self.by_loader = False
        self._closed = -1
        # The pass over the loader, that of the last release, and the empty draws of it that the loop left out.
        self._pass = self._pass_of_release = self._left_out = 0
        self._said: set[str] = set()
        self._forget()
        self._last: tuple[Tensor, Tensor] | None = None
        self._released: tuple[Sequence[Tensor], float] | None = None
        #: the fraction of gradients inside the clip norm by the noisy count, which ε includes (adaptive clipping)
        self.inside_fraction: float | None = None

    def _forget(self) -> None:
        self._sums: dict[str, Tensor] | None = None
        #: exact, of the draw at hand: how many examples lie inside the bound; it leaves with noise only
        self.inside: Tensor | float = 0.0
        self._draws: set[int] = set()
        self._norms: list[tuple[Tensor, Tensor]] = []
        self._sensitivity = 0.0
        self._unfinished = False
        self.hold = False

    # -- batches ----------------------------------------------------------------------------------------------------

    def hand_out(self) -> None:
        """The data loader is about to give the next batch to the loop."""
        self.by_loader = True
        self.settle()
        if self._pass == self.batches.passes:
            self.leave_behind()
        else:
            self._pass, self._left_out = self.batches.passes, 0
        self.current = self.batches.handed.popleft() if self.batches.handed else None

    def leave_behind(self) -> None:
        """The batch in hand is done with. An empty draw that no step was made of counts as one.

        That a draw was empty is private, and a loop that leaves it out behaves by it. What is left out in a pass that
        trains nothing (an evaluation over the loader) costs nothing.
        """
        piece, self.current = self.current, None
        if piece is None or piece.taken or piece.real or piece.draw <= self._closed:
            return
        self._left_out += 1
        if self._pass_of_release == self._pass:
            self._count_left_out()

    def _count_left_out(self) -> None:
        for _ in range(self._left_out):
            if self.paid is not None:
                self.paid.take(float(self.noise_multiplier))
            if self.asked is not None:
                self.asked.take(float(self.noise_multiplier), 1, ())
            self.spent.add(float(self.noise_multiplier))
        if self._left_out:
            warnings.warn(
                "an empty batch was left out: that it was empty is private, and the stated ε holds for a loop that "
                "makes a step of it (noise alone). It is counted as a step; call backward and step on every batch, "
                "also on one without rows",
                PrivacyWarning,
                stacklevel=4,
            )
        self._left_out = 0

    def piece(self) -> Piece | None:
        """The batch that the loop has in hand."""
        if not self.by_loader and (self.current is None or self.current.taken) and self.batches.handed:
            # Somebody wrapped the data loader: batches arrive in the order in which they were drawn.
            self.settle()
            self.current = self.batches.handed.popleft()
        if self.current is not None and self.current.draw <= self._closed:
            return None
        return self.current

    # -- sums -------------------------------------------------------------------------------------------------------

    def spec(self) -> Clipping:
        """The clipping now in force."""
        names = list(self.parameters)
        if isinstance(self.clip_norm, int | float):
            return Clipping.of(self.clipping, float(self.clip_norm), names)
        bounds = tuple(float(c) for c in self.clip_norm)
        if len(bounds) != len(names):
            raise ValueError(f"max_grad_norm has {len(bounds)} values for {len(names)} trainable parameters")
        if not all(math.isfinite(c) and c > 0 for c in bounds):
            raise ValueError("every bound must be positive and finite")
        return Clipping("per_parameter", tuple((name,) for name in names), bounds)

    def settle(self) -> None:
        """Clip and add up what arrived in backward passes since the last time."""
        if self._stopped is not None:  # a run that a probe stopped stays stopped
            raise self._stopped
        while self.watch.pending:
            calls = [c for c in self.watch.pending if c.piece is self.watch.pending[0].piece]
            self.watch.pending[:] = [c for c in self.watch.pending if c.piece is not calls[0].piece]
            self._take(calls)

    def _take(self, calls: list[Call]) -> None:
        piece: Piece = calls[0].piece
        if piece.taken or piece.draw <= self._closed:
            raise RuntimeError(
                "a batch was used again after its gradients were clipped: call backward once for each batch, before "
                "the next batch is taken and before optimizer.step(). See: tacit explain private-steps"
            )
        piece.taken = True
        if piece.rows:
            with torch.enable_grad():
                gradients, good = self.watch.gradients(calls)
            if piece.real < piece.rows:
                good = torch.zeros_like(good)
            norms = self.add(gradients, good)
            self._compare(calls, norms, piece)
        for call in calls:
            call.uses, call.outs, call.grads, call.cotangents, call.leaves = [], [], [], {}, []
        self.took(piece)

    def took(self, piece: Piece) -> None:
        """Note that a batch is in the sum."""
        piece.taken = True
        sampler = self.batches.sampler
        if not isinstance(sampler, Poisson) and self._draws:
            each = sampler.pass_length
            if {draw // each for draw in self._draws} != {piece.draw // each}:
                raise RuntimeError(
                    "gradients of two passes over the data were accumulated in one step, in which a record may be "
                    "twice: call optimizer.step() before a pass ends"
                )
        self._draws.add(piece.draw)
        self._unfinished = not piece.last

    def _compare(self, calls: list[Call], norms: Tensor, piece: Piece) -> None:
        """At keyed random times, stop if an example of the batch is not what it is by itself."""
        number, self._pieces = self._pieces, self._pieces + 1
        drawn = self.probes.at(self._probe_key, number) if self.probes is not None else None
        if drawn is None or piece.real < piece.rows:
            return
        wrong = alone.probed(self.watch, calls, norms, self.spec(), drawn[0] % piece.rows)
        if wrong is not None:
            self._stopped = ProbeFailed(probe.failed(self.steps, wrong))
            raise self._stopped

    def add(self, gradients: Gradients, good: Tensor, mask: Tensor | None = None) -> Tensor:
        """Clip these per-example gradients and add them to the sum; their norms, by example and group."""
        spec = self.spec()
        names = list(self.parameters)
        with torch.no_grad(), torch.autocast(good.device.type, enabled=False), exact_products(good.device):
            found = clip(gradients, names, spec, good, mask, together=True)
            found, sums, why = found.settled(early=True)
            self.add_sums(sums, found.norms, spec, mask)
        warn_once(why, self._said)
        return found.norms

    def add_sums(self, sums: dict[str, Tensor], norms: Tensor, spec: Clipping, mask: Tensor | None) -> None:
        """Add sums that are clipped already."""
        norms = norms if norms.dim() == 1 else norms.square().sum(1).sqrt()
        bound = spec.sensitivity
        self._sensitivity = max(self._sensitivity, bound)
        if self._sums is None:
            self._sums = sums
        else:
            for name, value in sums.items():
                self._sums[name] = self._sums[name] + value
        self.inside = self.inside + release.count_inside(norms, bound, mask)
        if mask is not None:  # picking rows by a mask waits for the GPU
            norms = norms[mask.bool()]
        self._norms.append((norms, norms > bound))

    @property
    def accumulated(self) -> int:
        """How many draws are in the sum that the next step will release."""
        return max(1, len(self._draws))

    # -- the release ------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Forget backward passes that no step was made of (``zero_grad``); pieces of an unfinished batch are kept."""
        for call in self.watch.pending:
            # A batch in hand may go through the model again (to make adversarial examples of it, say).
            call.piece.taken = not self.by_loader
        self.watch.pending.clear()
        if not (self._unfinished or self.hold):
            self._forget()

    def finished(self) -> bool:
        """Clip and add up; whether the batch is complete, so that a step may be made of it."""
        self.settle()
        return not self._unfinished

    def release(self) -> None:
        """Noise on the sum, divided by the expected batch size, into ``p.grad``; and the note of what it cost."""
        self.check_process()
        self.settle()
        if not self._draws:
            self._empty()
        spec, draws = self.spec(), max(1, len(self._draws))
        sensitivity = max(self._sensitivity, spec.sensitivity if self._sums is None else 0.0)
        noise = float(self.noise_multiplier)
        own = self.adaptive.gradient_noise(noise) if self.adaptive is not None else noise
        if self.earlier is not None:
            self._check_in_turn(self.earlier)
        each = self.batches.sampler.pass_length
        passes = {draw // each for draw in self._draws}
        if self.paid is not None:
            self.paid.take(noise, draws, passes)
        if self.asked is not None:
            self.asked.take(noise, draws, passes)
        if self._pass_of_release != self._pass:
            self._pass_of_release = self._pass
            self._count_left_out()
        sums = self._sums or {
            n: torch.zeros(p.shape, dtype=wide(p.dtype), device=p.device) for n, p in self.parameters.items()
        }
        step = self.steps
        self.reduce(sums)
        # Noted before anything leaves: what is interrupted here was paid for.
        self.spent.add(noise, draws, passes=passes)
        self.steps += 1
        self._closed = max([self._closed, *self._draws])
        expected = self.batches.sampler.divisor * draws
        growth = 1.0 if self.earlier is None else self.earlier.growth[step]
        told = release.ReleaseNoise(own * sensitivity, expected if self.mean else 1.0, growth=growth)
        gradients = release.noisy_gradients(sums, self.parameters, self._noise_key, step, told, earlier=self.earlier)
        self._released = release.norms_of(list(gradients.values())), told.variance
        release.hand_over(gradients, self.parameters, self.optimizer, told)
        if self.adaptive is not None:
            assert isinstance(self.clip_norm, int | float)
            self.clip_norm, self.inside_fraction = release.adapted(
                self.adaptive,
                self.clip_norm,
                self.inside,
                self._noise_key,
                step,
                divisor=expected,
                within=self.clip_range,
                noisy=noise > 0,
            )
        if self._norms:
            self._last = torch.cat([n for n, _ in self._norms]), torch.cat([c for _, c in self._norms])
        self._forget()
        if self.paid is not None:
            self.paid.released()

    def _check_in_turn(self, earlier: EarlierNoise) -> None:
        """Refuse what the price of correlated noise does not cover: its steps have one draw each, in turn, alike."""
        if (float(self.noise_multiplier), self.clip_norm) != self._first or self.adaptive is not None:
            raise ValueError("correlated noise needs one noise multiplier and one clip norm for all steps")
        if self._draws != {self.steps} or self.steps >= len(earlier.growth):
            raise RuntimeError(
                f"step {self.steps} of {len(earlier.growth)} was made of draw {sorted(self._draws)}: with correlated "
                "noise every step has the draw of its own number, because groups of records take turns. Do not leave "
                "batches out, end passes early or go on after the planned steps; or leave noise= out"
            )

    def reduce(self, sums: dict[str, Tensor]) -> None:
        """Add up over processes, where there are several."""

    def _empty(self) -> None:
        """A step for which no gradient arrived: right where the batch in hand is empty, an error otherwise."""
        piece = self.piece()
        if piece is None or piece.real or piece.taken:
            raise RuntimeError(
                "optimizer.step() without a backward pass since the last one: there is nothing to release. Call "
                "loss.backward() on a batch of the private data loader first. See: tacit explain private-steps"
            )
        self.took(piece)

    def signal_to_noise(self) -> float | None:
        """An estimate of |clipped sum| / |noise| from what the last step released alone."""
        if self._released is None:
            return None
        return release.signal_to_noise(self._released[0], self._elements, self._released[1])

    def diagnostics(self) -> OperatorView:
        """Clipped fraction and median norm of the last step: for the operator, not covered by the guarantee."""
        if self._last is None:
            return OperatorView(step=self.steps, records=0)
        return release.diagnostics(self.steps, *self._last)

    def close(self) -> None:
        """Leave the model alone from now on."""
        self.watch.close()
        self._noise_key.destroy()
        self._probe_key.destroy()


def warn_about_noise(noise_multiplier: float, level: int = 3) -> None:
    """Say aloud that there is none."""
    if noise_multiplier == 0:
        warnings.warn(
            "noise_multiplier is 0: ε=inf, this run has NO privacy guarantee at all", PrivacyWarning, stacklevel=level
        )
