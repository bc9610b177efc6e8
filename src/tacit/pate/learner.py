"""How does a torch student learn, step by step? FixMatch (Sohn et al. 2020) on a few labels and many rows without one.

A row without a label is changed a little and labelled by the student; where it is sure, it is trained to give that
label to the same row changed a lot. What labels, and what is kept, is the average of its weights over time. Several
students can learn side by side, each on a CUDA stream, with their steps captured as CUDA graphs: small networks
otherwise wait for the host.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.pate import augment

#: Steps that run before one is captured, so that libraries have chosen their algorithms and made their buffers.
WARM_UP = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentOptions:
    """How a student learns. ``ratio`` unlabelled rows go with a labelled one.

    The first share ``alone`` of the steps learns from the labels only: what is believed later should not be what a
    beginner believed. ``sure`` is the probability from which a row's own label is believed, by the average of the
    weights over time (decay ``average``), which is also what the student ends with. ``weak`` and ``strong`` change a
    batch a little and a lot. ``graph`` captures the steps as CUDA graphs. ``half`` computes in bfloat16 (weights and
    their averages stay float32): about twice as fast where the processor has instructions for it.
    """

    steps: int = 1500
    batch_size: int = 64
    ratio: int = 4
    learning_rate: float = 2e-3
    weight_decay: float = 5e-4
    alone: float = 0.15
    sure: float = 0.95
    average: float = 0.99
    weak: Callable[[Any], Any] = augment.weak
    strong: Callable[[Any], Any] = augment.strong
    graph: bool = False
    half: bool = False

    def rate(self, step: int) -> float:
        """A short rise, then half a cosine."""
        warm = min(1.0, (step + 1) / max(1, self.steps // 30))
        return self.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / self.steps))


class Learner:
    """One student on its way. ``target`` holds class numbers, or a row of probabilities for each row of ``known``.

    With ``everything`` (rows to label itself, those of ``known`` among them) it learns by FixMatch, without it from
    ``known`` alone.
    """

    def __init__(
        self, model: nn.Module, known: Tensor, target: Tensor, everything: Tensor | None, options: StudentOptions
    ):
        self.options, self.place = options, known.device
        self.model = model.to(self.place).train()
        if options.half:
            # torch's types leave memory_format out.
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.kept = copy.deepcopy(self.model).eval()
        # The model normalises batches that are changed a lot, so its statistics do not fit rows as they are. What
        # labels them goes by their own batch, and :meth:`finish` takes the statistics of all rows.
        for norm in _batch_norms(self.kept):
            norm.train()
        own = {id(buffer) for norm in _batch_norms(self.kept) for buffer in norm.buffers(recurse=False)}
        pairs = zip(self.kept.buffers(), self.model.buffers(), strict=True)
        self._buffers = [(mean, now) for mean, now in pairs if id(mean) not in own]
        self._known, self._target, self._everything = known, target, everything
        on_gpu = self.place.type == "cuda"
        if options.graph and not on_gpu:
            raise ValueError("graph=True captures CUDA graphs, and these rows are on the CPU: leave it out")
        # A captured step reads what changes from step to step from the device.
        self._rate: Tensor | None = None
        self._blend = torch.tensor(0.0, device=self.place)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=torch.tensor(options.learning_rate, device=self.place) if on_gpu else options.learning_rate,
            weight_decay=options.weight_decay,
            fused=on_gpu,
            capturable=on_gpu,
        )
        if on_gpu:
            self._rate = self._optimizer.param_groups[0]["lr"]
        self._stream = torch.cuda.Stream(self.place) if on_gpu else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.place))
        self._graphs: dict[bool, Any] = {}
        self._ran = {True: 0, False: 0}

    def step(self, number: int) -> None:
        """One update; ``number`` counts from 0."""
        options = self.options
        semi = self._everything is not None and number >= options.alone * options.steps
        with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
            self._set(number)
            if semi in self._graphs:
                self._graphs[semi].replay()
                return
            self._update(semi=semi)
            self._ran[semi] += 1
        if options.graph and self._ran[semi] == WARM_UP:
            self._graphs[semi] = self._captured(semi=semi)

    def finish(self) -> nn.Module:
        """The student with its average weights."""
        if self._stream is not None:
            torch.cuda.synchronize(self.place)
        self._graphs.clear()
        self.model.load_state_dict(self.kept.state_dict())
        return _settled(self.model, self._known if self._everything is None else self._everything)

    def _set(self, number: int) -> None:
        rate = self.options.rate(number)
        if self._rate is not None:
            self._rate.fill_(rate)
        else:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
        self._blend.fill_(1 - min(self.options.average, (1 + number) / (10 + number)))

    def _captured(self, *, semi: bool) -> Any:
        assert self._stream is not None
        torch.cuda.synchronize(self.place)
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):  # nothing runs yet: it is only written down
            self._update(semi=semi)
        return graph

    def _update(self, *, semi: bool) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._loss(semi=semi).backward()
        self._optimizer.step()
        with torch.no_grad():
            for mean, now in zip(self.kept.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, self._blend.to(mean.dtype))
            for kept, buffer in self._buffers:
                kept.copy_(buffer)

    def _loss(self, *, semi: bool) -> Tensor:
        options, size = self.options, self.options.batch_size
        chosen = torch.randint(len(self._known), (size,), device=self.place)
        if not semi:
            return functional.cross_entropy(self._logits(options.strong(self._known[chosen])), self._target[chosen])
        assert self._everything is not None
        rows = self._everything[torch.randint(len(self._everything), (options.ratio * size,), device=self.place)]
        with torch.no_grad():
            belief, guess = self._logits(options.weak(rows), self.kept).softmax(1).max(1)
        logits = self._logits(options.strong(torch.cat([self._known[chosen], rows])))
        first = functional.cross_entropy(logits[:size], self._target[chosen])
        second = functional.cross_entropy(logits[size:], guess, reduction="none")
        return first + (second * (belief >= options.sure)).mean()

    def _logits(self, rows: Tensor, model: nn.Module | None = None) -> Tensor:
        half = torch.autocast(self.place.type, torch.bfloat16, self.options.half, cache_enabled=False)
        with half:  # no cache: a captured step must cast the weights of its own time
            logits: Tensor = (model or self.model)(rows).float()
        return logits


def _batch_norms(model: nn.Module) -> list[Any]:
    kinds = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
    return [part for part in model.modules() if isinstance(part, kinds)]


def _settled(model: nn.Module, rows: Tensor, batch: int = 1000) -> nn.Module:
    """The model in evaluation mode, its batch normalisation with the statistics of these rows (which are public)."""
    norms = [norm for norm in _batch_norms(model) if norm.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    if norms:
        with torch.no_grad():
            for part in rows.split(batch):
                if len(part) > 1:
                    model(part)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()


def learn(learners: Sequence[Learner], seed: int) -> list[nn.Module]:
    """Train the learners side by side, with random numbers that depend on ``seed`` alone; returns their students.

    >>> rows, labels = torch.tensor([[1.0], [-1.0]] * 8), torch.tensor([0, 1] * 8)
    >>> options = StudentOptions(steps=60, batch_size=8, learning_rate=0.1, strong=lambda x: x)
    >>> (student,) = learn([Learner(nn.Linear(1, 2), rows, labels, None, options)], seed=0)
    >>> student(rows[:2]).argmax(1)
    tensor([0, 1])
    """
    place = learners[0].place
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        for number in range(max(learner.options.steps for learner in learners)):
            for learner in learners:
                if number < learner.options.steps:
                    learner.step(number)
        return [learner.finish() for learner in learners]


class Committee(nn.Module):
    """Several students as one: its outputs are logarithms of the mean of their probabilities."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """One row of log-probabilities for each row."""
        every = torch.stack([member(x).log_softmax(1) for member in self.members])
        return every.logsumexp(0) - math.log(len(self.members))


def probabilities(model: nn.Module, rows: Tensor, batch: int = 1000) -> Tensor:
    """What a student in evaluation mode says of many rows."""
    with torch.no_grad():
        return torch.cat([model(part).softmax(1) for part in rows.split(batch)])


def committee(
    make: Callable[[], nn.Module],
    known: Tensor,
    target: Tensor,
    everything: Tensor | None,
    options: StudentOptions,
    *,
    members: int,
    rounds: int,
    seed: int,
    crossed: bool = False,
) -> list[Committee]:
    """The committees of ``rounds`` rounds, the last one the best taught.

    In the first round every member learns from the labels (and by FixMatch from the rest). In each later one, of half
    as many steps, new members learn the previous committee's probabilities of all rows: its mean is righter than any
    member.

    ``crossed``: in the first round each member sees half of the labels, two by two the two halves. A row with a label
    is then judged by the members that did not see it, and the label counts as much as they do together: a wrong label
    that nobody would have guessed is not learned by heart.
    """
    found: list[Committee] = []
    rows = known if everything is None else everything
    halves = _halves(len(known), members, seed).to(known.device) if crossed else None
    for turn in range(rounds):
        students = [make() for _ in range(members)]
        if not found:
            parts = [slice(None)] * members if halves is None else list(halves)
            learners = [
                Learner(student, known[part], target[part], everything, options)
                for student, part in zip(students, parts, strict=True)
            ]
        else:
            soft = probabilities(found[-1], rows)
            if halves is not None and turn == 1:
                soft[: len(known)] = _judged(found[-1], known, target, halves)
            wide = dataclasses.replace(
                options, steps=(options.steps + 1) // 2, batch_size=options.batch_size * options.ratio
            )
            learners = [Learner(student, rows, soft, None, wide) for student in students]
        found.append(Committee(learn(learners, seed + turn)).eval())
    return found


def _halves(labels: int, members: int, seed: int) -> Tensor:
    """Which labels each member sees: random halves, each followed by its complement."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.zeros(members, labels, dtype=torch.bool)
    for first in range(0, members, 2):
        seen[first, torch.randperm(labels, generator=generator)[: (labels + 1) // 2]] = True
        if first + 1 < members:
            seen[first + 1] = ~seen[first]
    return seen


def _judged(judges: Committee, known: Tensor, target: Tensor, halves: Tensor) -> Tensor:
    """For rows with a label: the mean of the label and of the members that did not see it."""
    every = torch.stack([probabilities(member, known) for member in judges.members])
    unseen = (~halves)[:, :, None].to(every.dtype)
    others = (every * unseen).sum(0) / unseen.sum(0).clamp_min(1)
    return (others + functional.one_hot(target, every.shape[2])) / 2
