"""What cannot be clipped is refused by name, and a wrong answer cannot go unnoticed."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.sgd import zoo, zoo_more
from tests.sgd.harness import build, compare
from torch import nn

from tacit import sgd
from tacit.sgd.gradients import rules
from tacit.sgd.gradients.capture import Capture
from tacit.sgd.gradients.contributions import Dense, Layout, Outer
from tacit.sgd.gradients.owners import OwnerEvidence, digit_weights


def squares(model, x):
    return model(x).flatten(1).square().sum(1)


# -- isolation ---------------------------------------------------------------------------------------------------------


def test_batch_normalisation_is_named_and_fixed():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(288, 2))
    )
    x = torch.randn(4, 3, 8, 8)
    with pytest.raises(sgd.BatchMixing, match=r"module '1' \(BatchNorm2d\).*tacit\.sgd\.fix"):
        sgd.clipped_grad(model, squares, x)
    weight = model[1].weight
    assert sgd.fix(model) == {"1": "BatchNorm2d -> GroupNorm(8, 8)"}
    assert model[1].weight is weight
    sgd.clipped_grad(model, squares, x)
    assert sgd.fix(model) == {}


@pytest.mark.parametrize(("layer", "shape"), [(nn.BatchNorm2d(16), (5, 16, 1, 1)), (nn.BatchNorm1d(8), (5, 8))])
def test_fix_makes_no_normalisation_that_gives_a_constant(layer, shape):
    """A group of one number is always zero: nothing of the data would go through."""
    torch.manual_seed(0)
    model, x = nn.Sequential(layer, nn.Flatten(), nn.Linear(shape[1], 2)), torch.randn(shape)
    sgd.fix(model)
    assert bool((model(x).std(0) > 0.01).all())
    sgd.clipped_grad(model, squares, x)
    lonely = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))
    sgd.fix(lonely)
    with pytest.raises(ValueError, match=r"nn\.Identity"):
        lonely(torch.randn(5, 1))


def test_fix_reaches_nested_modules_and_keeps_their_settings():
    inner = nn.Sequential(nn.BatchNorm1d(6, eps=1e-3), nn.SyncBatchNorm(48, affine=False))
    model = nn.ModuleDict({"a": inner, "b": nn.BatchNorm3d(5)})
    changed = sgd.fix(model)
    assert changed == {
        "a.0": "BatchNorm1d -> GroupNorm(2, 6)",
        "a.1": "SyncBatchNorm -> GroupNorm(16, 48)",
        "b": "BatchNorm3d -> GroupNorm(1, 5)",
    }
    assert inner[0].eps == 1e-3
    assert inner[1].weight is None


class BatchCentring(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class BatchAttention(nn.Module):
    """Attention over the batch dimension: a custom layer that looks like any other."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(5, 5)

    def forward(self, x):
        return (self.q(x) @ x.mT).softmax(-1) @ x


class Ranks(nn.Module):
    """No gradient flows through the comparison with the others, and yet it depends on them."""

    def forward(self, x):
        return x * (x.detach() > x.detach().median(0).values)


class Shifted(nn.Module):
    def forward(self, x):
        return x + torch.roll(x, 1, 0)


@pytest.mark.parametrize("layer", [BatchCentring, BatchAttention, Ranks, Shifted])
def test_a_custom_layer_that_mixes_the_batch_is_named(layer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), layer(), nn.Linear(5, 2))
    with pytest.raises(sgd.BatchMixing, match=layer.__name__):
        sgd.clipped_grad(model, squares, torch.randn(6, 5))


def test_a_loss_that_mixes_the_batch_is_refused():
    model = nn.Linear(5, 3)

    def contrastive(m, x):
        return F.cross_entropy(m(x) @ m(x).mT, torch.arange(len(x)), reduction="none")

    def token_average(m, b):
        return m(b).sum(1) / b.abs().sum()

    for loss in (contrastive, token_average):
        with pytest.raises(sgd.BatchMixing, match="loss"):
            sgd.clipped_grad(model, loss, torch.randn(4, 5))


# -- self-check --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["scaled", "swapped", "shared", "missing"])
def test_a_rule_that_is_wrong_stops_training(wrong, monkeypatch):
    case = build(zoo.mlp, torch.float32)
    right = rules.RULES["linear"]

    def sabotaged(use, grads, layouts):
        found = []
        for derived, contribution in right(use, grads, layouts):
            if isinstance(contribution, Outer) and wrong == "scaled":
                contribution = Outer(
                    contribution.left * 1.01, contribution.right, contribution.sizes, contribution.order
                )
            if isinstance(contribution, Outer) and wrong == "swapped":  # the sum is right, the examples are not
                contribution = Outer(
                    contribution.left.flip(0), contribution.right.flip(0), contribution.sizes, contribution.order
                )
            if isinstance(contribution, Dense) and wrong == "shared":  # the sum is right, the norms are not
                contribution = Dense(contribution.values.mean(0, keepdim=True).expand_as(contribution.values))
            if isinstance(contribution, Dense) and wrong == "missing":
                contribution = Dense(torch.zeros_like(contribution.values))
            found.append((derived, contribution))
        return found

    monkeypatch.setitem(rules.RULES, "linear", sabotaged)
    with pytest.raises(sgd.SelfCheckFailed, match=r"'[02]\.(weight|bias)'.*linear"):
        sgd.clipped_grad(case.model, case.loss, case.batch)


def test_a_use_that_is_not_seen_stops_training(monkeypatch):
    case = build(zoo.gpt, torch.float32)
    seen = Capture._use

    def blind(self, call, derived):
        return self._pass(call, [], tainted=True) if call.name == "layer_norm" else seen(self, call, derived)

    monkeypatch.setattr(Capture, "_use", blind)
    with pytest.raises(sgd.SelfCheckFailed, match="norm"):
        sgd.clipped_grad(case.model, case.loss, case.batch)


def test_the_check_runs_on_the_first_step_and_every_so_many(monkeypatch):
    from tacit.sgd.gradients import verify

    case, seen = build(zoo.mlp, torch.float32), []
    agree = verify.agree
    monkeypatch.setattr(verify, "agree", lambda *a: (seen.append(1), agree(*a)))
    for check, wanted in (("never", 0), ("first", 1), ("first", 1), ("always", 2), ("always", 3)):
        sgd.clipped_grad(case.model, case.loss, case.batch, check=check)
        assert len(seen) == wanted
    case, before = build(zoo.mlp, torch.float32), len(seen)
    for _ in range(7):
        sgd.clipped_grad(case.model, case.loss, case.batch, check=3)
    assert len(seen) - before == 3
    for check in (0, True, "sometimes"):
        with pytest.raises(ValueError, match=r"check"):
            sgd.clipped_grad(case.model, case.loss, case.batch, check=check)


def test_another_loss_is_checked_anew():
    """Two losses may use the same operations with the same shapes, and only one of them treat examples apart."""
    model, x = nn.Linear(5, 3), torch.randn(4, 5)

    def apart(m, b):
        return m(b).sum(1) / b.abs().sum(1)

    def together(m, b):
        return m(b).sum(1) / b.abs().sum()

    sgd.clipped_grad(model, apart, x)
    with pytest.raises(sgd.BatchMixing, match="loss"):
        sgd.clipped_grad(model, together, x)


def test_what_is_known_about_a_model_dies_with_it():
    model = nn.Linear(5, 3)
    sgd.clipped_grad(model, squares, torch.randn(4, 5))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_check_tells_how_parameters_are_used():
    case = build(zoo.gpt, torch.float32)
    found = sgd.check(case.model, case.loss, case.batch)
    assert found.uses["tok.weight"] == ("embedding", "linear")
    assert found.uses["pos.weight"] == ("add",)
    assert found.generic == ()
    case = build(zoo_more.weight_norm, torch.float32)
    assert any("original1" in name for name in sgd.check(case.model, case.loss, case.batch).materialised)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_model_is_watched_as_it_was_written():
    case = build(zoo.mlp, torch.float64)
    compiled = torch.compile(case.model, backend="aot_eager")
    wanted = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.5)
    found = sgd.clipped_grad(compiled, case.loss, case.batch, clip_norm=0.5)
    assert torch.allclose(wanted.norms, found.norms)
    assert {name.removeprefix("_orig_mod.") for name in found.sums} == set(wanted.sums)


@pytest.mark.parametrize("count", [1, 2, 65, 130])
def test_any_number_of_examples_is_located(count):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(6, 65)).double()
    x = torch.randn(count, 2, 3).double()
    case = zoo.Case(model, lambda m, b: squares(m, b["x"]), {"x": x})
    assert compare(case).worst < 1e-10


def test_memory_formats_do_not_matter():
    case = build(zoo.wrn, torch.float64)
    case.model.to(memory_format=torch.channels_last)
    case.batch["x"] = case.batch["x"].to(memory_format=torch.channels_last)
    assert compare(case).worst < 1e-10


def test_frequencies_counted_over_the_batch_are_refused():
    model = nn.Sequential(nn.Embedding(5, 3, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(sgd.UncoveredUse, match="whole batch"):
        sgd.clipped_grad(model, squares, torch.randint(5, (4, 4)))


def test_tables_that_lookups_rescale_are_refused():
    model = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Flatten(), nn.Linear(12, 2))
    before = model[0].weight.clone()
    with pytest.raises(sgd.UncoveredUse, match=r"'0'.*max_norm"):
        sgd.clipped_grad(model, squares, torch.randint(5, (4, 4)))
    assert torch.equal(model[0].weight, before)


class Sorted(nn.Module):
    """Examples are sorted by length before a recurrent layer, as packing does: where they are depends on the data."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x, n):
        packed = nn.utils.rnn.pack_padded_sequence(x, n.cpu(), batch_first=True, enforce_sorted=False)
        return self.out(self.rnn(packed)[1][0])


class Resorted(Sorted):
    """The same with the order taken through Python lists."""

    def forward(self, x, n):
        order = sorted(range(len(n)), key=lambda k: -n.tolist()[k])
        back = sorted(range(len(n)), key=lambda k: order[k])
        return self.out(self.rnn(x[order])[0][:, -1])[back]


@pytest.mark.parametrize("kind", [Sorted, Resorted])
def test_examples_that_the_model_reorders_are_never_confused(kind):
    """A plan made on a batch that happens to be sorted must not be applied to one that is not."""
    torch.manual_seed(0)
    model = kind().double()

    def loss(m, b):
        return m(b["x"], b["n"]).square().sum(1)

    x = torch.randn(4, 6, 3).double()
    case = zoo.Case(model, loss, {"x": x, "n": torch.tensor([6, 5, 4, 3])})
    assert compare(case).worst < 1e-10
    case = zoo.Case(model, loss, {"x": x, "n": torch.tensor([3, 6, 4, 5])})
    try:
        assert compare(case).worst < 1e-10
    except sgd.UncoveredUse as refusal:
        assert "belong to which example" in str(refusal)  # noqa: PT017


class Gathered(nn.Module):
    """Rows of a table with twice as many rows as the batch has examples, by an operation without a rule."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(8, 3)), nn.Linear(3, 2)

    def forward(self, ids):
        return self.out(torch.gather(self.table, 0, ids[:, None].expand(-1, 3)).tanh())


class Weighted(Gathered):
    """The same where the data are one-hot rows in a product."""

    def forward(self, ids):
        rows = nn.functional.one_hot(ids, 8).to(self.table.dtype)
        return self.out(torch.einsum("bi,ij,jk->bk", rows, self.table, torch.eye(3).to(self.table)).tanh())


class Attended(Gathered):
    """The same where a mask says which rows an example attends to: examples are queries of one sequence."""

    def forward(self, ids):
        mask = nn.functional.one_hot(ids, 8).bool()
        query, key = torch.ones(len(ids), 3).to(self.table), torch.ones(8, 3).to(self.table)
        rows = nn.functional.scaled_dot_product_attention(query, key, self.table, attn_mask=mask)
        return self.out(rows.tanh())


@pytest.mark.parametrize("kind", [Gathered, Weighted, Attended])
def test_a_first_batch_that_visits_rows_in_order_does_not_tie_rows_to_examples(kind):
    torch.manual_seed(0)
    model = kind().double()
    for ids in ([0, 1, 2, 3], [7, 7, 0, 3], [5, 5, 5, 5]):
        case = zoo.Case(model, lambda m, b: m(b["ids"]).square().sum(1), {"ids": torch.tensor(ids)})
        assert compare(case).worst < 1e-10, ids


def test_an_operation_may_have_outputs_without_the_parameter():
    """Distributions broadcast their arguments against each other: a learned scale meets a computed mean."""
    model = nn.ModuleDict({"mean": nn.Linear(3, 2)}).double()
    model.register_parameter("log_scale", nn.Parameter(torch.tensor([0.3], dtype=torch.float64)))

    def loss(m, b):
        normal = torch.distributions.Normal(m["mean"](b["x"]), m.log_scale.exp(), validate_args=False)
        return -normal.log_prob(b["y"]).sum(1)

    case = zoo.Case(model, loss, {"x": torch.randn(4, 3).double(), "y": torch.randn(4, 2).double()})
    assert compare(case).worst < 1e-10


@pytest.mark.parametrize(
    "layer",
    [
        lambda m, x: torch.relu_(m.inside(x)),
        lambda m, x: torch.einsum("bti,oi->bto", x, m.inside.weight).add_(m.inside.bias).relu_(),
        lambda m, x: torch.inner(x, m.inside.weight).masked_fill_(x.new_tensor([1, 0, 0, 0]).bool(), 0.5),
    ],
)
def test_outputs_that_are_views_of_their_own_memory_may_be_written_to(layer):
    """A linear layer of tokens and einsum end in a view; ReLU in place behind one is what many models have."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"inside": nn.Linear(3, 4), "out": nn.Linear(4, 2)}).double()
    batch = {"x": torch.randn(4, 5, 3).double()}
    case = zoo.Case(model, lambda m, b: m["out"](layer(Parts(m), b["x"])).square().sum((1, 2)), batch)
    assert compare(case).worst < 1e-10


class Parts:
    def __init__(self, parts):
        self.inside = parts["inside"]


def test_single_elements_of_a_parameter_may_be_used_several_times():
    """Learned weights of several losses: each element by itself, twice."""
    model = nn.Linear(3, 2).double()
    model.register_parameter("weights", nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64)))

    def loss(m, b):
        out = m(b["x"]).square()
        return sum(out[:, k] * torch.exp(-m.weights[k]) + m.weights[k] for k in range(2))

    assert compare(zoo.Case(model, loss, {"x": torch.randn(4, 3).double()})).worst < 1e-10


def test_a_long_array_of_numbers_is_not_known_by_its_ends():
    model, places = nn.ParameterDict({"table": torch.randn(50, 2)}).double(), np.zeros(2000, dtype=np.int64)

    def loss(m, b):
        return (m["table"][places] * b["x"][:, None]).mean(1).square().sum(1)

    for seed in range(2):
        places[10:-10] = np.random.default_rng(seed).integers(50, size=1980)
        assert compare(zoo.Case(model, loss, {"x": torch.randn(4, 2).double()})).worst < 1e-10


def test_a_gather_by_length_at_the_end_needs_no_new_plan(monkeypatch):
    """The usual pooling of classifiers indexes with the data after all parameters have been used."""
    from tacit.sgd.gradients import planning

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.out = nn.Embedding(7, 4), nn.Linear(4, 2)

        def forward(self, ids, n):
            return self.out(self.emb(ids))[torch.arange(len(ids)), n]

    model = Pooled().double()
    calls = []
    survey = planning.survey
    monkeypatch.setattr(planning, "survey", lambda *a, **k: (calls.append(1), survey(*a, **k))[1])
    for seed in range(3):
        torch.manual_seed(seed)
        batch = {"ids": torch.randint(7, (4, 5)), "n": torch.randint(5, (4,))}
        case = zoo.Case(model, lambda m, b: m(b["ids"], b["n"]).square().sum(1), batch)
        assert compare(case).worst < 1e-10
    assert len(calls) == 1


def test_the_low_rank_start_is_located_without_gradients():
    """At the start of LoRA half of the gradients are zero, and the next step must still be right."""
    case = build(zoo_more.lora, torch.float64)
    assert compare(case).worst < 1e-10
    with torch.no_grad():
        for name, parameter in case.model.named_parameters():
            if name.endswith(".b"):
                parameter.normal_()
    assert compare(case).worst < 1e-10


def test_in_place_changes_of_saved_inputs_are_refused():
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            h = x * 1
            out = self.a(h)
            h.add_(1)
            return out

    with pytest.raises((sgd.UncoveredUse, RuntimeError), match=r"in place|inplace"):
        sgd.clipped_grad(Overwrites(), squares, torch.randn(3, 4))


def test_half_precision_that_repeats_itself_only_nearly_is_not_taken_for_mixing():
    """Attention on a GPU adds up in no fixed order: the same element differs by a few percent from pass to pass."""
    torch.manual_seed(0)
    batch, shape = 4, (4, 64, 16)
    plain = torch.randn(shape)
    for mixing, found in ((0.0, [Layout(0, 1, batch, 1)]), (0.3, [])):
        evidence = OwnerEvidence(plain, batch, narrow=True)
        for weights in digit_weights(batch, plain.device, torch.float32):
            own = plain * weights[:, None, None]
            others = plain.roll(1, 0).abs() * weights.roll(1)[:, None, None]
            evidence.add((own + mixing * others) * (1 + 0.05 * torch.randn(shape)))
        assert evidence.layouts() == found


class Choosing(nn.Module):
    """Takes one of two ways, by an operator that torch compiles as it runs."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2)

    def forward(self, x):
        return self.line(torch.cond(x.max() > 0, torch.neg, torch.tanh, (x,)))


def test_an_operator_that_is_compiled_as_it_runs_is_refused_with_a_way_out():
    model, batch = Choosing(), (torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(sgd.ClippingError, match="method='examples'"):
        sgd.clipped_grad(model, loss, batch)
    found = sgd.clipped_grad(model, loss, batch, method="examples", clip_norm=1e9)
    wanted = torch.autograd.grad(loss(model(batch[0]), batch[1]).sum(), model.line.weight)[0]
    assert torch.allclose(found.sums["line.weight"], wanted, atol=1e-6)
