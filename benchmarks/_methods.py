"""How is one step made by each method? Plain SGD, tacit, and the peers that can be imported."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._workloads import Workload, per_example

#: How a private step is made, by the method that stands for it.
COMPILE = {"tacit": False, "tacit-traced": "traced", "tacit-compiled": True}
METHODS = (
    "plain",
    "plain-compiled",
    "plain-graphs",
    "tacit",
    "tacit-traced",
    "tacit-compiled",
    "vmap",
    "opacus",
    "opacus-ghost",
)
CLIP_NORM = 1.0
Step = Callable[[], None]


def loss_of(work: Workload, device: torch.device) -> Callable[[nn.Module, Any], Tensor]:
    """One loss per record, under the workload's autocast."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        context = (
            torch.autocast(device.type, dtype=work.autocast) if work.autocast is not None else contextlib.nullcontext()
        )
        with context:
            return per_example(model(x), y)

    return loss


def plain_step(work: Workload, device: torch.device, data: tuple[Tensor, Tensor], method: str) -> Step:
    model, optimizer = make(work, device)
    per_record = loss_of(work, device)

    def mean_loss(x: Tensor, y: Tensor) -> Tensor:
        return per_record(model, (x, y)).mean()

    modes = {"plain": None, "plain-compiled": "default", "plain-graphs": "reduce-overhead"}
    run = mean_loss if modes[method] is None else torch.compile(mean_loss, mode=modes[method])

    def step() -> None:
        rows = torch.randint(len(data[0]), (work.batch,), device=data[0].device)
        run(data[0][rows], data[1][rows]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def make(work: Workload, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    with device:  # a billion random weights take a CPU long
        model = work.build().to(device=device, dtype=work.dtype)
    chosen = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.SGD(chosen, lr=1e-3, momentum=0.9)


def tacit_step(
    work: Workload, device: torch.device, data: tuple[Tensor, Tensor], compiled: Any, steps: int = 5000
) -> Step:
    from tacit.sgd import Training

    model, optimizer = make(work, device)
    # So many are drawn on average that nearly every draw fits the physical batch. A small one would often be empty, and
    # a step without records costs next to nothing: there exactly as many are drawn as fit.
    few = work.batch < 24
    expected = work.batch if few else int(work.batch - 3 * work.batch**0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = Training(
            model,
            optimizer,
            loss_of(work, device),
            data,
            batch_size=expected,
            sampler="fixed" if few else "poisson",
            steps=steps,
            noise_multiplier=1.0,
            delta=1e-6,
            clip_norm=CLIP_NORM,
            physical_batch=work.batch,
            compile=compiled,
        )
    batches = iter(training)

    def step() -> None:
        training.step(next(batches))

    step.training = training  # type: ignore[attr-defined]
    return step


def vmap_step(work: Workload, device: torch.device, data: tuple[Tensor, Tensor]) -> Step:
    model, optimizer = make(work, device)
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    per_record = loss_of(work, device)

    def one(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        def call(*args: Any) -> Any:
            return torch.func.functional_call(model, params, args)

        return per_record(call, (x[None], y[None]))[0]  # type: ignore[arg-type]

    gradients = torch.func.vmap(torch.func.grad(one), (None, 0, 0))

    def step() -> None:
        rows = torch.randint(len(data[0]), (work.batch,), device=data[0].device)
        found = gradients({n: p.detach() for n, p in named.items()}, data[0][rows], data[1][rows])
        norms = torch.stack([g.flatten(1).float().norm(dim=1) for g in found.values()]).norm(dim=0)
        scale = (CLIP_NORM / norms).clamp(max=1.0)
        for name, p in named.items():
            total = torch.tensordot(scale.to(found[name].dtype), found[name], 1)
            p.grad = ((total + CLIP_NORM * torch.randn_like(total)) / work.batch).to(p.dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_step(work: Workload, device: torch.device, data: tuple[Tensor, Tensor]) -> Step:
    from opacus.grad_sample import GradSampleModule

    model, optimizer = make(work, device)
    model.spread = True  # type: ignore[assignment]
    wrapped = GradSampleModule(model, loss_reduction="sum")
    chosen = [p for p in model.parameters() if p.requires_grad]
    per_record = loss_of(work, device)

    def step() -> None:
        rows = torch.randint(len(data[0]), (work.batch,), device=data[0].device)
        per_record(wrapped, (data[0][rows], data[1][rows])).sum().backward()
        found = [p.grad_sample for p in chosen]
        norms = torch.stack([g.flatten(1).float().norm(dim=1) for g in found]).norm(dim=0)
        scale = (CLIP_NORM / norms).clamp(max=1.0)
        for p, g in zip(chosen, found, strict=True):
            total = torch.tensordot(scale.to(g.dtype), g, 1)
            p.grad = ((total + CLIP_NORM * torch.randn_like(total)) / work.batch).to(p.dtype)
            p.grad_sample = None  # type: ignore[attr-defined]
        optimizer.step()
        wrapped.zero_grad(set_to_none=True)

    return step


def ghost_step(work: Workload, device: torch.device, data: tuple[Tensor, Tensor]) -> Step:
    """Opacus' ghost clipping: one backward pass for the norms, a second one for the clipped sum."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping

    model, optimizer = make(work, device)
    model.spread = True  # type: ignore[assignment]
    wrapped = GradSampleModuleFastGradientClipping(
        model, loss_reduction="sum", max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    chosen = [p for p in model.parameters() if p.requires_grad]
    per_record = loss_of(work, device)

    def step() -> None:
        rows = torch.randint(len(data[0]), (work.batch,), device=data[0].device)
        losses = per_record(wrapped, (data[0][rows], data[1][rows]))
        losses.sum().backward(retain_graph=True)
        optimizer.zero_grad(set_to_none=True)
        scale = wrapped.get_clipping_coef().to(losses.dtype)
        wrapped.disable_hooks()
        (scale * losses).sum().backward()
        wrapped.enable_hooks()
        for p in chosen:
            p.grad = (p.grad + CLIP_NORM * torch.randn_like(p.grad)) / work.batch
        optimizer.step()
        wrapped.zero_grad(set_to_none=True)

    return step


def prepare(method: str, work: Workload, device: torch.device, data: tuple[Tensor, Tensor]) -> Step:
    if method.startswith("plain"):
        return plain_step(work, device, data, method)
    if method.startswith("tacit"):
        return tacit_step(work, device, data, COMPILE[method])
    peers = {"vmap": vmap_step, "opacus": opacus_step, "opacus-ghost": ghost_step}
    return peers[method](work, device, data)
