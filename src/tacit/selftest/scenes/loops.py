"""Do loops of every shape stay private? Losses inside the model, several calls, padded texts, lists, second dimensions.

Everybody is in the batch and there is no noise, so that a step leaves the clipped sum. Beside it stand plain backward
passes, one for each record.
"""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.opacus import PrivacyEngine
from tacit.opacus.accountants import create_accountant
from tacit.opacus.accountants.analysis import rdp
from tacit.opacus.accountants.utils import get_noise_multiplier
from tacit.opacus.data_loader import DPDataLoader, sampler_of, switch_generator
from tacit.opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from tacit.opacus.layers.dp_multihead_attention import SequenceBias
from tacit.opacus.layers.dp_rnn import DPGRUCell, DPLSTMCell, DPRNNCell
from tacit.opacus.layers.saved import as_torch, unwrapped
from tacit.opacus.schedulers import ExponentialNoise, StepNoise
from tacit.opacus.utils import module_utils, tensor_utils
from tacit.opacus.validators import ModuleValidator
from tacit.selftest import models
from tacit.selftest.scene import Scene, refused
from tacit.selftest.scenes.dropin import CLIP, DELTA, NOISE, ROWS, OwnLoop
from tacit.selftest.scenes.rules import Made, own_product
from tacit.sgd.errors import ClippingError
from tacit.sgd.training.checkpoint import CheckpointError

Floats = npt.NDArray[np.float64]
CLASSES, FEATURES = models.CLASSES, models.FEATURES
#: One loss for the whole batch, as loops have it, of a model and a batch.
Objective = Callable[[Any, Any], Tensor]


def _plain(m: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(m(batch[0]), batch[1])


def _flat(model: nn.Module) -> Floats:
    return (
        torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()])
        .double()
        .numpy()
    )


def _away(model: nn.Module, records: Sequence[Any], objective: Objective, collate: Any = None, **options: Any) -> float:
    """How far a step of everybody is from the clipped sum of single gradients, in clip norms."""
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(0.4 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    single, first = copy.deepcopy(model), []
    for record in records:
        single.zero_grad()
        objective(single, (collate or torch.utils.data.default_collate)([record])).backward()
        first.append(_flat(single))
    raw = np.stack(first)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    clip = float(np.median(lengths))
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=DataLoader(cast(Any, list(records)), batch_size=len(records), collate_fn=collate),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        **options,
    )
    for batch in made[2]:
        objective(made[0], batch).backward()
        made[1].step()
    total = (raw * np.minimum(1.0, clip / np.maximum(lengths, 1e-12))).sum(0)
    return float(np.linalg.norm(_flat(model) * len(records) - total)) / clip


def _inside(m: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    logits = m.inner[0](x)
    return {"loss": nn.functional.cross_entropy(logits, y), "logits": logits}


class _Told(nn.Module):
    """A model of whatever arguments."""

    def __init__(self, how: Callable[..., Any], *inner: nn.Module) -> None:
        super().__init__()
        self.how, self.inner = how, nn.ModuleList(inner)

    def forward(self, *args: Any, **more: Any) -> Any:
        return self.how(self, *args, **more)


def _texts(seed: int) -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randint(1, models.VOCABULARY, (2 + k % 5,), generator=generator), k % CLASSES) for k in range(12)]


def _padded(records: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    tokens = nn.utils.rnn.pad_sequence([text for text, _ in records], batch_first=True)
    return tokens, (tokens > 0).float(), torch.tensor([label for _, label in records])


def _masked(m: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    words = torch.tanh(m.inner[0](tokens)) * mask.unsqueeze(-1)
    found: Tensor = m.inner[1](words.sum(1) / mask.sum(1, keepdim=True))
    return found


def loops_of_every_shape(seed: int) -> list[Finding]:
    """Each leaves the clipped sum of what plain backward passes give; what mixes examples is refused."""
    x, y = models.table(seed)
    rows = list(zip(x[:12], y[:12], strict=True))
    series = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(k)), k % CLASSES) for k in range(12)]

    def line() -> nn.Module:
        return nn.Linear(FEATURES, CLASSES)

    def counted(m: Any, numbers: list[float], inputs: Tensor) -> Tensor:
        found: Tensor = m.inner[0](inputs) * torch.tensor(numbers).unsqueeze(1)
        return found

    def reading(m: Any, inputs: Tensor) -> Any:
        m.seen = float(inputs.detach().abs().max())
        return m.inner[0](inputs if m.seen > -1 else inputs * 0)

    def carried(m: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(m((batch[0] * 1.0).requires_grad_()), batch[1])

    cases: dict[str, Callable[[], float]] = {
        "a loss inside": lambda: _away(
            _Told(_inside, line()),
            rows,
            lambda m, b: m(b[0], b[1])["loss"],
        ),
        "two calls": lambda: _away(line(), rows, lambda m, b: _plain(m, b) + 0.5 * _plain(m, (-b[0], b[1]))),
        "padded texts": lambda: _away(
            _Told(_masked, nn.Embedding(models.VOCABULARY, 6), nn.Linear(6, CLASSES)),
            _texts(seed),
            lambda m, b: nn.functional.cross_entropy(m(b[0], b[1]), b[2]),
            _padded,
        ),
        "numbers in a list": lambda: _away(
            _Told(counted, line()),
            rows,
            lambda m, b: nn.functional.cross_entropy(m([1.0 + float(v[0] > 0) for v in b[0]], b[0]), b[1]),
        ),
        "a model that reads": lambda: _away(_Told(reading, line()), rows, _plain),
        "inputs with gradients": lambda: _away(line(), rows, carried),
        "words as arguments": lambda: _away(
            _Told(lambda m, *, inputs: (m.inner[0](inputs), inputs), line()),
            rows,
            lambda m, b: nn.functional.cross_entropy(m(inputs=b[0])[0], b[1]),
        ),
        "examples in the second dimension": lambda: _away(
            _Told(lambda m, v: m.inner[1](m.inner[0](v)[0][-1]), nn.GRU(6, 5), nn.Linear(5, CLASSES)),
            series,
            lambda m, b: _plain(m, (b[0].transpose(0, 1), b[1])),
            batch_first=False,
        ),
        "a module called twice": lambda: _away(
            Made(lambda m, v: m.inner[1](m.inner[0](v).tanh() + m.inner[0](-v)), line(), nn.Linear(CLASSES, CLASSES)),
            rows,
            _plain,
        ),
        "a gradient of one's own": lambda: _away(
            Made(lambda m, v: own_product(v, m.w) + m.inner[0](v), line(), w=(FEATURES, CLASSES)), rows, _plain
        ),
        "cells": lambda: _away(
            Made(
                lambda m, v: m.inner[3](m.inner[0](v[:, 0]) + m.inner[1](v[:, 1])[0] + m.inner[2](v[:, 2])),
                DPGRUCell(6, 5, True),
                DPLSTMCell(6, 5, True),
                DPRNNCell(6, 5, True),
                nn.Linear(5, CLASSES),
            ),
            series,
            _plain,
        ),
    }
    found = []
    for name, case in cases.items():
        away = case()
        found.append(holds(f"loops: {name}", away < 1e-3, f"{away:.2g} clip norms from the clipped sum"))

    def by_others(m: Any, inputs: Tensor) -> Any:
        return m.inner[0](inputs) * (1 + inputs.abs().max())

    def by_tokens(m: Any, tokens: Tensor, mask: Tensor) -> Any:
        return m.inner[1](torch.tanh(m.inner[0](tokens)).mean(1))

    def lost(m: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(m.inner[0](inputs), labels)

    mixing: dict[str, tuple[Callable[[], object], Any]] = {
        "a scale by the largest of the batch": (lambda: _away(_Told(by_others, line()), rows, _plain), ClippingError),
        "padding that is felt": (
            lambda: _away(
                _Told(by_tokens, nn.Embedding(models.VOCABULARY, 6), nn.Linear(6, CLASSES)),
                _texts(seed),
                lambda m, b: nn.functional.cross_entropy(m(b[0], b[1]), b[2]),
                _padded,
            ),
            ClippingError,
        ),
        "one number for all": (lambda: _away(_Told(lost, line()), rows, lambda m, b: m(*b)), ClippingError),
        "a penalty beside the model": (
            lambda: _away(line(), rows, lambda m, b: _plain(m, b) + next(m.parameters()).square().sum()),
            ClippingError,
        ),
        "two passes backward": (
            lambda: _away(line(), rows, lambda m, b: _twice(m, b)),
            ClippingError,
        ),
    }
    return [*found, refused("loops: mixing", mixing)]


def _twice(m: nn.Module, batch: Any) -> Tensor:
    out = m(batch[0])
    nn.functional.cross_entropy(out, batch[1]).backward(retain_graph=True)
    return nn.functional.cross_entropy(out, batch[1])


# -- what Opacus' objects do -------------------------------------------------------------------------------------------


def objects_mean_what_they_say(seed: int) -> list[Finding]:
    """Single gradients, closures, hooks, histories and schedules of the drop-in, and what its helpers compute.

    Many branches: one for each thing that people read or set.
    """
    wrong: list[str] = []

    def check(name: str, good: Any) -> None:
        if not bool(good):
            wrong.append(name)

    run = OwnLoop(seed, batch=ROWS, noise_multiplier=0.0)
    raw = run.pipeline.gradients()
    called = []
    run.optimizer.attach_step_hook(lambda optimizer: called.append(optimizer.accumulated_iterations))
    for x, y, _ in run.loader:
        run.backward(x, y)
        names = [n for n, _ in run.model.named_parameters()]
        single = torch.cat([g.flatten(1) for g in run.optimizer.grad_samples], 1).double().numpy()
        check("single gradients", np.abs(single - raw).max() < 1e-4)
        norms = tensor_utils.calc_sample_norms(list(zip(names, run.optimizer.grad_samples, strict=True)))
        check("norms of single gradients", np.allclose(norms[0].numpy(), np.linalg.norm(raw, axis=1), rtol=1e-3))

        def again(x: Tensor = x, y: Tensor = y) -> Tensor:
            loss: Tensor = run.criterion(run.model(x), y)
            loss.backward()
            return loss

        run.optimizer.zero_grad()
        check("forgotten gradients", run.optimizer.accumulated_iterations == 1)
        loss = run.optimizer.step(again)
        check("a closure's loss", loss is not None and float(loss) > 0)
    own = run.pipeline.clipped(raw, CLIP).sum(0)
    check("a closure's step", np.linalg.norm(run.gradient() * ROWS - own) < 1e-3 * CLIP)
    check("the hook", called == [1])
    check("state", run.optimizer.state_dict()["param_groups"] and run.optimizer.expected_batch_size == ROWS)
    check("bounds", OwnLoop(seed, clipping="per_layer").optimizer.max_grad_norms)
    check("the loss's word", run.optimizer.loss_reduction == "mean")
    check("the rate", run.loader.sample_rate == 1.0)
    plain = run.optimizer.detach()
    check("detached", isinstance(plain, torch.optim.SGD))
    late = OwnLoop(seed, batch=ROWS)
    late.optimizer.param_groups[0]["params"].append(nn.Parameter(torch.zeros(2)))

    def one_more() -> None:
        for x, y, _ in late.loader:
            late.backward(x, y)
            late.optimizer.step()

    sigma = 2.0
    accountant = create_accountant("prv")
    accountant.history.append((sigma, 1.0, 4))
    four = bounds.gaussian_epsilon(math.sqrt(4) / sigma, DELTA)
    check("history", accountant.get_epsilon(DELTA) >= four * (1 - 1e-6) and len(accountant) == 4)
    accountant.history = [*accountant.history, (sigma, 1.0, 5)]
    nine = bounds.gaussian_epsilon(math.sqrt(9) / sigma, DELTA)
    check("history assigned", accountant.get_epsilon(DELTA) >= nine * (1 - 1e-6))
    check("Rényi order", accountant.get_privacy_spent(delta=DELTA)[0] >= nine * (1 - 1e-6))
    hooked = create_accountant("rdp")
    hooked.get_optimizer_hook_fn(1.0)(run.optimizer if run.optimizer.noise_multiplier else late.optimizer)
    check("the accountant's hook", len(hooked) == 1)
    foreign = create_accountant("gdp")
    foreign.load_state_dict({"history": [(sigma, 1.0, 9)], "mechanism": "gdp"})
    check("another library's state", foreign.get_epsilon(DELTA) >= nine * (1 - 1e-6))
    kept = OwnLoop(seed, batch=ROWS, noise_multiplier=sigma)
    list(kept.steps(4))
    state = kept.engine.accountant.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept.engine.accountant.history = []
    check("released steps stay", kept.engine.get_epsilon(DELTA) >= four * (1 - 1e-6))
    list(kept.steps(5))
    kept.engine.accountant.load_state_dict(state)
    check("an old state takes nothing back", kept.engine.get_epsilon(DELTA) >= nine * (1 - 1e-6))
    target = get_noise_multiplier(target_epsilon=nine, target_delta=DELTA, sample_rate=0.5, epochs=4)
    check("noise by passes", target > 0 and math.isfinite(target))
    saved = ExponentialNoise(late.optimizer, gamma=0.5)
    saved.step()
    loaded = ExponentialNoise(OwnLoop(seed).optimizer, gamma=0.5)
    loaded.load_state_dict(saved.state_dict())
    check("a schedule read back", loaded.last_epoch == saved.last_epoch and loaded.value == NOISE / 2)
    _helpers(check)
    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "a parameter after": (one_more, RuntimeError),
        "another schedule": (
            lambda: StepNoise(OwnLoop(seed).optimizer, step_size=2, gamma=0.5).load_state_dict(
                {"step_size": 1, "gamma": 0.5, "last_epoch": 1}
            ),
            ValueError,
        ),
        "a schedule of a plain optimizer": (lambda: ExponentialNoise(plain, gamma=0.5), ValueError),
        "no length": (
            lambda: get_noise_multiplier(target_epsilon=1.0, target_delta=DELTA, sample_rate=0.1),
            ValueError,
        ),
        "no target": (
            lambda: get_noise_multiplier(target_epsilon=0.0, target_delta=DELTA, sample_rate=0.1, steps=1),
            ValueError,
        ),
        "a word that there is not": (
            lambda: get_noise_multiplier(target_epsilon=1.0, target_delta=DELTA, sample_rate=0.1, steps=1, speed=2),
            TypeError,
        ),
        "a state of nothing": (lambda: create_accountant("prv").load_state_dict({}), ValueError),
        "a state of nobody": (
            lambda: create_accountant("prv").load_state_dict({"history": [], "mechanism": "x"}),
            ValueError,
        ),
        "orders of nothing": (lambda: rdp.get_privacy_spent(orders=[], rdp=[], delta=DELTA), ValueError),
        "a pickled optimizer": (lambda: copy.copy(late.optimizer).__getstate__(), TypeError),
        "δ of 1": (lambda: create_accountant("prv").get_epsilon(1.0), ValueError),
    }
    return [
        holds("objects", not wrong, f"wrong: {', '.join(wrong)}" if wrong else "as they say"),
        refused("objects: refusals", cases),
    ]


def _helpers(check: Callable[[str, Any], None]) -> None:
    """Layers by other names, modules that are repaired, and windows of images."""
    generator = torch.Generator().manual_seed(1)
    pictures = torch.randn(2, 3, 5, 5, generator=generator)
    windows = tensor_utils.unfold2d(pictures, kernel_size=(2, 2), padding=(1, 0), stride=(2, 1), dilation=(1, 2))
    theirs = nn.functional.unfold(pictures, (2, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1))
    check("windows", torch.equal(windows, theirs))
    solid = tensor_utils.unfold3d(torch.randn(2, 1, 3, 3, 3), kernel_size=2, padding="same")
    check("windows in three dimensions", solid.shape == (2, 8, 27))
    total = tensor_utils.sum_over_all_but_batch_and_last_n(pictures, 1)
    check("sums", torch.allclose(total, pictures.sum((1, 2))))
    old, new = DPLSTM(4, 3, num_layers=2), DPLSTM(4, 3, num_layers=2)
    names = {n: (n.split("_", 2)) for n, _ in old.named_parameters()}
    weights = {
        f"{cell}.{matrix}.{kind}": dict(old.named_parameters())[n].data for n, (kind, matrix, cell) in names.items()
    }
    new.load_state_dict(unwrapped(new, {f"_module.{n}": v for n, v in weights.items()}))
    check("saved recurrent weights", module_utils.are_state_dict_equal(old.state_dict(), new.state_dict()))
    attention = DPMultiheadAttention(4, 2, add_bias_kv=True)
    state = {n: v.clone() for n, v in attention.state_dict().items()}
    parts = dict(zip("qkv", state.pop("in_proj_weight").chunk(3), strict=True))
    biases = dict(zip("qkv", state.pop("in_proj_bias").chunk(3), strict=True))
    told = (
        {f"{k}linear.weight": v for k, v in parts.items()} | {f"{k}linear.bias": v for k, v in biases.items()} | state
    )
    told |= {f"seq_bias_{k}.bias": told.pop(f"bias_{k}").flatten() for k in "kv"}
    as_torch(attention, told)
    check("saved attention", module_utils.are_state_dict_equal(dict(attention.state_dict()), told))
    check("a bias in the sequence", SequenceBias(4)(torch.zeros(3, 2, 4)).shape == (4, 2, 4))
    check("a recurrent layer's state", DPGRU(4, 3)(torch.zeros(2, 5, 4))[0].shape == (2, 5, 3))
    mixing = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.InstanceNorm2d(8, track_running_stats=True))
    for fixed in (
        ModuleValidator.fix(mixing),
        ModuleValidator.fix(mixing, num_groups=2),
        ModuleValidator.fix(mixing, replace_bn_with_in=True),
        PrivacyEngine.get_compatible_module(mixing),
    ):
        left = [m for m in fixed.modules() if isinstance(m, nn.BatchNorm2d) or getattr(m, "track_running_stats", False)]
        check("a repaired module", not left and ModuleValidator.is_valid(fixed.train()))
    errors = ModuleValidator.validate(nn.Sequential(mixing, nn.Embedding(4, 4, max_norm=1.0)).eval())
    check("obstacles", len(errors) >= 2 and not ModuleValidator.is_valid(mixing.train()))
    check("parts", len(list(module_utils.trainable_modules(mixing))) == 2 and module_utils.requires_grad(mixing[0]))
    check("parameters", len(list(module_utils.trainable_parameters(mixing))) == 4)
    same = module_utils.clone_module(mixing)
    check("a clone", same is not mixing and module_utils.get_submodule(same, "0") is next(same.children()))


def loaders_and_targets(seed: int) -> list[Finding]:
    """A loader by its rate, empty batches, switched generators; a checkpoint that a target cannot keep is refused."""
    x, y = models.table(seed)
    data = TensorDataset(x, y)
    rate = 0.03
    loader = DPDataLoader(data, sample_rate=rate)
    sizes = [len(batch[0]) for _ in range(30) for batch in loader]
    empty = next(batch for _ in range(200) for batch in loader if not len(batch[0]))
    from_plain = DPDataLoader.from_data_loader(DataLoader(data, batch_size=10))
    switched = switch_generator(data_loader=from_plain, generator=torch.Generator().manual_seed(3))
    again = switch_generator(
        data_loader=DPDataLoader.from_data_loader(DataLoader(data, batch_size=10)),
        generator=torch.Generator().manual_seed(3),
    )
    same = all(torch.equal(a[1], b[1]) for a, b in zip(switched, again, strict=True))
    named = DPDataLoader([{"x": row, "pair": (row, [row]), "name": "a"} for row in x], sample_rate=0.01)
    blank = next(b for _ in range(300) for b in named if not len(b["x"]))
    mean, wanted = float(np.mean(sizes)), ROWS * rate
    spread = math.sqrt(wanted * (1 - rate) / len(sizes))

    def target(epochs: int, epsilon: float = 2.0) -> OwnLoop:
        return OwnLoop(seed, batch=ROWS, target_epsilon=epsilon, target_delta=DELTA, epochs=epochs)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        first = target(4)
        list(first.steps(3))
        first.engine.save_checkpoint(path=path, module=first.model, optimizer=first.optimizer)

        def less() -> None:
            other = target(8)
            other.engine.load_checkpoint(path=path, module=other.model, optimizer=other.optimizer)

        rest = target(4)
        rest.engine.load_checkpoint(path=path, module=rest.model, optimizer=rest.optimizer)
        list(rest.steps(1))
        kept = rest.engine.get_epsilon(DELTA)
        one = bounds.gaussian_epsilon(math.sqrt(4) / float(first.optimizer.noise_multiplier), DELTA)
        refusals = refused(
            "loaders: refusals",
            {
                "a target that is spent": (less, CheckpointError),
                "a rate above 1": (lambda: DPDataLoader(data, sample_rate=1.5), ValueError),
                "no rate": (lambda: DPDataLoader(data), ValueError),
                "several processes": (
                    lambda: DPDataLoader(data, sample_rate=0.1, distributed=True),
                    NotImplementedError,
                ),
                "a stream": (
                    lambda: DPDataLoader.from_data_loader(DataLoader(_Stream(), batch_size=2)),
                    (ValueError, TypeError),
                ),
                "a sampler that draws twice": (lambda: sampler_of(_again(data), poisson=False), ValueError),
                "a running loader's generator": (
                    lambda: switch_generator(data_loader=first.loader, generator=torch.Generator()),
                    ValueError,
                ),
            },
        )
    return [
        holds("loaders: sizes", abs(mean - wanted) < 6.5 * spread, f"{mean:.3f} records of {wanted:.3f}"),
        holds(
            "loaders: empty batches", empty[0].shape == (0, models.FEATURES) and len(blank["pair"][1]) == 1, "shapes"
        ),
        holds("loaders: generators", same, "the same seed draws the same batches"),
        holds(
            "loaders: target kept", one * (1 - 1e-6) <= kept <= 2.0 * (1 + 1e-6), f"ε = {kept:.5f} of 2, true {one:.5f}"
        ),
        refusals,
    ]


def passes_cost_their_least_noise(seed: int) -> list[Finding]:
    """A pass costs its least noise, since nobody knows who met that batch; also after a checkpoint."""
    found = []
    for name, levels in (("falling", [3.0, 2.0, 1.0]), ("rising", [1.0, 2.0, 3.0]), ("of one level", [2.0] * 3)):
        run = OwnLoop(seed, poisson_sampling=False)  # three batches a pass

        def level(step: int, run: OwnLoop = run, levels: list[float] = levels) -> None:
            run.optimizer.noise_multiplier = levels[step % 3]

        list(run.steps(6, level))
        exact = bounds.gaussian_epsilon(math.sqrt(2) / min(levels), DELTA)
        again = create_accountant("prv")
        again.load_state_dict(run.engine.accountant.state_dict())
        for when, told in (("", run.engine.get_epsilon(DELTA)), (" after a checkpoint", again.get_epsilon(DELTA))):
            text = f"claimed {told:.4f}, closed form {exact:.4f}"
            found.append(holds(f"loops: passes, noise {name}{when}", told >= exact * (1 - 1e-6), text))
    return found


class _Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def _again(data: Any) -> DataLoader[Any]:
    drawn = torch.utils.data.RandomSampler(data, replacement=True)
    return DataLoader(data, batch_size=5, sampler=drawn)


SCENES = (
    Scene("loops: shapes", "opacus", loops_of_every_shape),
    Scene("loops: objects", "opacus", objects_mean_what_they_say),
    Scene("loops: loaders", "opacus", loaders_and_targets),
    Scene("loops: passes", "opacus", passes_cost_their_least_noise),
)
