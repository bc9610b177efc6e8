"""A compiled step gives what the step gives, or says why it is not compiled.

Most tests trace the step and run the traced graph as it is: that is tacit's part of the work. The compiler itself takes
part in the last ones.
"""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from tests.sgd import zoo, zoo_more
from tests.sgd.harness import TOLERANCE, build, compare
from torch import nn

from tacit import sgd
from tacit.noise.keys import Key
from tacit.sgd.compile import program
from tacit.sgd.compile.comparison import Expected
from tacit.sgd.compile.rewrites import mutates
from tacit.sgd.gradients.engine import Engine
from tacit.sgd.kernels import products

assert zoo_more

SLOW = ["wrn-groupnorm", "vit-class-token", "gpt-tied-large-vocabulary"]
NAMES = ["mlp", "cnn", "weight-norm", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
CRITERION = nn.CrossEntropyLoss(reduction="none")


def batch_of(n=8, features=5, seed=0):
    torch.manual_seed(seed)
    return torch.randn(n, features), torch.randint(3, (n,))


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


@pytest.fixture
def traced_only(monkeypatch):
    monkeypatch.setattr(program, "inductor", lambda graph, inputs, options: graph)


def program_of(model):
    (program,) = Engine.of(model).programs.values()
    return program


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", [False, True])
def test_a_compiled_step_agrees_with_one_example_at_a_time(name, split, traced_only, monkeypatch):
    if split:  # as on a GPU where the model multiplies in tf32: norms and sums in a program of their own
        monkeypatch.setattr(program, "needs_full_precision", lambda *_: True)
    case = build(zoo.ZOO[name][1], torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compare(case, "per_layer" if split else "flat", compile=True).worst <= TOLERANCE[torch.float64]
    assert program_of(case.model).split is split


def test_a_program_serves_other_batches_masks_bounds_and_weights(traced_only):
    model = network()
    sgd.clipped_grad(model, CRITERION, batch_of(), 0.5, mask=torch.ones(8, dtype=torch.bool), compile=True)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    mask, batch = torch.arange(8) < 5, batch_of(seed=3)
    found = sgd.clipped_grad(model, CRITERION, batch, 0.1, mask=mask, compile=True)
    wanted = sgd.clipped_grad(model, CRITERION, batch, 0.1, mask=mask)
    assert program_of(model) is not None  # one program, no other
    assert torch.allclose(found.norms, wanted.norms)
    assert all(torch.allclose(found.sums[n], wanted.sums[n], atol=1e-6) for n in wanted.sums)


def test_an_example_that_is_not_finite_counts_as_zero(traced_only):
    model, (x, y) = network(), batch_of()
    sgd.clipped_grad(model, CRITERION, (x, y), 0.5, compile=True)
    x = x.clone()
    x[2] = torch.inf
    found = sgd.clipped_grad(model, CRITERION, (x, y), 0.5, compile=True)
    wanted = sgd.clipped_grad(model, CRITERION, (x, y), 0.5)
    assert torch.isinf(found.norms[2])
    assert all(torch.equal(found.sums[n], wanted.sums[n]) for n in wanted.sums)


def test_an_example_far_longer_than_the_others_is_summed_with_its_own_factor(traced_only):
    """Factors that are too far apart for the scaled sum of the kernels: the batch runs uncompiled."""
    model, (x, y) = network(), batch_of()
    model[1] = nn.ReLU()
    sgd.clipped_grad(model, CRITERION, (x, y), 0.5, compile=True)
    x = x.clone()
    x[2] *= 1e14
    found = sgd.clipped_grad(model, CRITERION, (x, y), 0.5, compile=True)
    wanted = sgd.clipped_grad(model, CRITERION, (x, y), 0.5)
    assert found.scale.min() < 1e-12
    assert all(torch.equal(found.sums[n], wanted.sums[n]) for n in wanted.sums)


def test_images_may_have_their_channels_innermost(traced_only, monkeypatch):
    monkeypatch.setattr(program, "wants_channels_last", lambda device: True)
    monkeypatch.setattr(program, "innermost", lambda graph: True)
    torch.manual_seed(0)
    x, y = torch.randn(4, 3, 6, 6, dtype=torch.float64), torch.randint(3, (4,))
    layers = [nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.GroupNorm(2, 4)]
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())  # torch sets strides in place there
    ends = ((nn.Flatten(), 64, True), (Viewed(), 64, False), (pool, 4, True))  # a view that only the usual order allows
    for end, width, kept in ends:
        model = nn.Sequential(*layers, end, nn.Linear(width, 3)).double()
        found = sgd.clipped_grad(model, CRITERION, (x, y), 0.5, compile=True)
        wanted = sgd.clipped_grad(model, CRITERION, (x, y), 0.5)
        assert program_of(model).channels_last is kept
        assert not mutates(program_of(model)._run)
        assert torch.allclose(found.norms, wanted.norms, rtol=1e-12)
        assert all(torch.allclose(found.sums[n], wanted.sums[n], rtol=1e-9, atol=1e-12) for n in wanted.sums)


class Viewed(nn.Module):
    def forward(self, x):
        return x.view(len(x), -1)


def test_an_odd_number_of_classes_is_filled_up_in_the_weight_alone(traced_only, monkeypatch):
    monkeypatch.setattr(products, "DEVICES", {"cpu"})
    monkeypatch.setattr(products, "tf32", lambda t, convolution=False: t.dtype == torch.float32 and not convolution)
    monkeypatch.setattr(products, "to_tf32", lambda t: t)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(67, 16), nn.Linear(16, 67))
    batch = torch.randint(67, (4, 5)), torch.randint(67, (4, 5))

    def loss(model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)

    graphs = []
    monkeypatch.setattr(program, "inductor", lambda graph, *_: graphs.append(graph) or graph)
    found = sgd.clipped_grad(model, loss, batch, 0.05, mask=torch.arange(4) < 3, compile=True)
    wanted = sgd.clipped_grad(model, loss, batch, 0.05, mask=torch.arange(4) < 3)
    pads = [n.args[0] for n in graphs[0].graph.nodes if n.target == torch.ops.aten.constant_pad_nd.default]
    # Weight and bias; logits and their gradient are computed with empty classes.
    assert {n.op for n in pads} == {"placeholder"}
    assert torch.allclose(found.norms, wanted.norms, rtol=1e-5)
    assert all(torch.allclose(found.sums[n], wanted.sums[n], rtol=1e-4, atol=1e-6) for n in wanted.sums)


def test_norms_stand_right_behind_the_gradients_they_read_also_beside_several_biases(monkeypatch):
    """The sum of biases laid side by side is a vector times a matrix, which torch ends with a change in place."""
    monkeypatch.setattr(products, "DEVICES", {"cpu"})
    monkeypatch.setattr(products, "tf32", lambda t, convolution=False: t.dtype == torch.float32 and not convolution)
    monkeypatch.setattr(products, "to_tf32", lambda t: t)
    graphs = []
    monkeypatch.setattr(program, "inductor", lambda graph, *_: graphs.append(graph) or graph)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(40, 40) for _ in range(3)), nn.Flatten(), nn.Linear(120, 3))
    sgd.clipped_grad(model, CRITERION, (torch.randn(4, 3, 40), torch.randint(3, (4,))), 0.5, compile=True)
    (graph,) = graphs
    assert not mutates(graph)
    names = [n.name.rpartition("_")[0] if n.name[-1].isdigit() else n.name for n in graph.graph.nodes]
    assert names.count("factor_norms") == 3
    # Backward products of the layers below still follow the first norms.
    assert "mm" in names[names.index("factor_norms") :][: names[names.index("factor_norms") :].index("bitwise_and")]


class AsksTheData(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2.0 if bool(x.sum() > 1e6) else 1.0)


class LooksForAShortcut(nn.Linear):
    def forward(self, x):
        if not torch.compiler.is_compiling() and bool((x == 0).all()):
            return self.bias.expand(len(x), -1)
        return super().forward(x)


def test_a_model_that_looks_for_a_shortcut_does_not_where_it_is_compiled(traced_only):
    torch.manual_seed(0)
    model, batch = LooksForAShortcut(5, 3), batch_of()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sgd.clipped_grad(model, CRITERION, batch, 0.5, compile=True)
    assert torch.allclose(found.norms, sgd.clipped_grad(model, CRITERION, batch, 0.5).norms)
    assert not torch.compiler.is_compiling()


class DrawsOutside(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1.0 + random.random())


class Counts(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("layer", "why"), [(AsksTheData, "tracing tensor"), (DrawsOutside, "random numbers"), (Counts, "writes the buffer")]
)
def test_what_cannot_be_compiled_says_why_once_and_runs(layer, why, traced_only):
    torch.manual_seed(0)
    model, batch = layer(5, 3), batch_of()
    check = "never" if layer is DrawsOutside else "first"
    with pytest.warns(sgd.NotCompiled, match=why):
        sgd.clipped_grad(model, CRITERION, batch, 0.5, compile=True, check=check)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sgd.clipped_grad(model, CRITERION, batch, 0.5, compile=True, check=check).sums


@pytest.mark.parametrize("split", [False, True])
def test_where_the_compiler_fails_the_traced_step_runs_and_says_so_once(split, monkeypatch):
    """No C compiler, say: what was traced is right without it."""

    def no_compiler(graph, inputs, options):
        raise OSError("no C compiler")

    monkeypatch.setattr(program, "inductor", no_compiler)
    if split:
        monkeypatch.setattr(program, "needs_full_precision", lambda *_: True)
    model, batch = network(), batch_of()
    wanted = sgd.clipped_grad(model, CRITERION, batch, 0.3)
    with pytest.warns(sgd.NotCompiled, match="runs as it was traced, not compiled: .*no C compiler"):
        found = sgd.clipped_grad(model, CRITERION, batch, 0.3, compile=True)
    assert not program_of(model).compiler
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = sgd.clipped_grad(model, CRITERION, batch, 0.3, compile=True)
    for other in (found, again):
        assert torch.allclose(other.norms, wanted.norms)
        assert all(torch.allclose(other.sums[n], wanted.sums[n], atol=1e-6) for n in wanted.sums)


def test_a_step_that_is_only_traced_asks_no_compiler(monkeypatch):
    monkeypatch.setattr(program, "inductor", lambda *_: pytest.fail("the compiler was called"))
    model, batch = network(), batch_of()
    wanted = sgd.clipped_grad(model, CRITERION, batch, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sgd.clipped_grad(model, CRITERION, batch, 0.3, compile="traced")
    assert program_of(model) is not None
    assert all(torch.allclose(found.sums[n], wanted.sums[n], atol=1e-6) for n in wanted.sums)
    with pytest.raises(ValueError, match="compile must be"):
        sgd.clipped_grad(model, CRITERION, batch, 0.3, compile="fast")


class Turned(nn.Module):
    """Dimensions counted from the end, as users may."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(3, 5))

    def forward(self, x):
        return torch.inner(x @ self.a.permute(-1, 0), self.b)


def test_dimensions_may_be_counted_from_the_end(traced_only):
    torch.manual_seed(0)
    case = zoo.Case(Turned().double(), lambda m, b: CRITERION(m(b["x"]), b["y"]), {"x": torch.randn(5, 5).double()})
    case.batch["y"] = torch.tensor([0, 1, 2, 0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compare(case, compile=True).worst <= TOLERANCE[torch.float64]
    assert program_of(case.model).proven


def test_a_program_that_computes_something_else_is_not_used(monkeypatch):
    def wrong(graph, inputs, options):
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        with graph.graph.inserting_before(output):
            halved = graph.graph.call_function(torch.ops.aten.mul.Tensor, (output.args[0][0], 0.5))
        output.args = ([halved, *output.args[0][1:]],)
        graph.recompile()
        return graph

    monkeypatch.setattr(program, "inductor", wrong)
    model, batch = network(), batch_of()
    plain, _ = sgd.clipped_grad(model, CRITERION, batch)
    with pytest.warns(sgd.NotCompiled, match="sums differ"):
        fast, _ = sgd.clipped_grad(model, CRITERION, batch, compile=True)
    again, _ = sgd.clipped_grad(model, CRITERION, batch, compile=True)
    assert all(torch.allclose(plain[n], some[n]) for n in plain for some in (fast, again))


def test_where_memory_does_not_suffice_to_compare_the_compiled_step_runs_and_is_asked_no_more(traced_only, monkeypatch):
    asked = []

    def short(*_):
        asked.append(1)
        raise torch.OutOfMemoryError("as if")

    monkeypatch.setattr(Expected, "of", short)
    model, batch = network(), batch_of()
    wanted = sgd.clipped_grad(model, CRITERION, batch, 0.3)
    for _ in range(2):
        found = sgd.clipped_grad(model, CRITERION, batch, 0.3, compile=True)
        assert torch.allclose(found.norms, wanted.norms)
    assert len(asked) == 1
    assert program_of(model) is not None


def test_dropout_draws_what_it_draws_uncompiled(traced_only):
    model, batch = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 3)), batch_of()
    found = []
    for compile_step in (False, True):
        sgd.clipped_grad(model, CRITERION, batch, 0.5, compile=compile_step)
        torch.manual_seed(5)
        found.append(sgd.clipped_grad(model, CRITERION, batch, 0.5, compile=compile_step))
    assert program_of(model).random
    assert torch.allclose(found[0].norms, found[1].norms)


def test_autocast_around_the_step_does_not_reach_norms_and_sums(traced_only):
    model, batch = network(), batch_of()
    found = []
    for compile_step in (False, True, True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(sgd.clipped_grad(model, CRITERION, batch, 0.3, compile=compile_step))
    eager, *fast = found
    for other in fast:
        assert torch.allclose(eager.norms, other.norms, rtol=1e-6)
        assert all(torch.allclose(eager.sums[n], other.sums[n], rtol=1e-5, atol=1e-6) for n in eager.sums)


def test_parameters_with_the_same_gradient_have_sums_of_their_own(monkeypatch):
    """The compiler computes equal expressions once; noise added to one sum must not reach the other."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.extra = nn.Linear(5, 3), nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return self.inner(x) + self.extra

    def merging(graph, inputs, options):
        def run(*values):
            found = list(graph(*values))
            return [found[0] if t.shape == (3,) and torch.equal(t, found[0]) else t for t in found]

        return run

    monkeypatch.setattr(program, "inductor", merging)
    sums = sgd.clipped_grad(Twice(), CRITERION, batch_of(), 0.5, compile=True).sums
    assert torch.equal(sums["inner.bias"], sums["extra"])
    assert sums["inner.bias"].data_ptr() != sums["extra"].data_ptr()


def trained(compile_step, steps=6, rate=4):
    torch.manual_seed(0)
    model, (x, y) = network(), batch_of(40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    options = {"batch_size": rate, "steps": steps, "noise_multiplier": 1.0, "delta": 1e-3, "clip_norm": 0.3}
    training = sgd.Training(
        model,
        optimizer,
        CRITERION,
        (x, y),
        key=Key(bytes(32), repeatable=True),
        physical_batch=8,
        compile=compile_step,
        **options,
    )
    sizes = []
    for batch in training:
        sizes.append(len(batch))
        training.step(batch)
    return {n: p.detach() for n, p in model.named_parameters()}, sizes


def test_compiled_training_is_the_same_run(traced_only):
    plain, sizes = trained(False, steps=30, rate=2)
    fast, _ = trained(True, steps=30, rate=2)
    assert 0 in sizes  # an empty batch is a step: noise alone
    assert all(torch.allclose(plain[n], fast[n], atol=1e-5) for n in plain)


def test_noise_is_added_once_also_where_a_batch_falls_back(traced_only):
    """Noise is waiting behind the compiled sums; where these do not hold, the sums that do hold get it, once."""
    x, y = batch_of(40)
    x[3, -1] = 1e38

    def loss(model, batch):
        inputs, targets = batch
        factor = inputs[:, -1].abs() * 100  # infinite for one record, which then counts as zero
        return CRITERION(model(inputs[:, :5].clamp(-5, 5)), targets) * factor

    def weights(compile_step):
        model, held = network(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        training = sgd.Training(
            model, optimizer, loss, (x, y), batch_size=20, steps=8, noise_multiplier=1.0, delta=1e-3, clip_norm=0.3,
            key=Key(bytes(32), repeatable=True), physical_batch=40, compile=compile_step,
        )  # fmt: skip
        for batch in training:
            held.append(3 in batch.rows)
            training.step(batch)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), held

    fast, held = weights(True)
    plain, _ = weights(False)
    assert True in held
    assert False in held[2:]
    assert torch.allclose(plain, fast, atol=1e-5)


def test_the_compiler_gives_the_same_run():
    with warnings.catch_warnings():
        warnings.simplefilter("error", sgd.NotCompiled)
        fast, _ = trained(True)
    plain, _ = trained(False)
    assert all(torch.allclose(plain[n], fast[n], atol=1e-5) for n in plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", *SLOW])
def test_the_compiler_agrees_with_one_example_at_a_time(name):
    case = build(zoo.ZOO[name][1], torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sgd.NotCompiled)
        assert compare(case, compile=True).worst <= TOLERANCE[torch.float32]
