"""Layers under Opacus' names are torch's, are clipped as they are, and take up what Opacus' layers saved."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import close, expected, private
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import TensorDataset

from tacit.opacus import PrivacyEngine, layers
from tacit.opacus.layers import dp_rnn

LAYERS = {
    "two layers both ways": ("DPLSTM", (5, 6, 2, True, True), {"bidirectional": True}),
    "no bias": ("DPGRU", (5, 6, 1, False, True), {}),
    "relu": ("DPRNN", (5, 6, 2, True, True, 0, False, 0, "relu"), {}),
}


class Recurrent(nn.Module):
    def __init__(self, layer, width):
        super().__init__()
        self.rnn, self.out = layer, nn.Linear(width, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0].sum(1))


class Attending(nn.Module):
    def __init__(self, layer, kdim=4, vdim=4):
        super().__init__()
        self.attention, self.out, self.kdim, self.vdim = layer, nn.Linear(4, 3), kdim, vdim

    def forward(self, x):
        return self.out(self.attention(x, x[..., : self.kdim], x[..., : self.vdim])[0].sum(0))


def opacus():
    return pytest.importorskip("opacus", reason="compared with Opacus: pip install 'tacit[oracles]'")


@pytest.mark.parametrize("case", LAYERS)
def test_a_recurrent_model_saved_by_opacus_goes_on_here(case, tmp_path):
    name, arguments, options = LAYERS[case]
    width = 12 if options else 6
    theirs = Recurrent(getattr(opacus().layers, name)(*arguments, **options), width)
    own = Recurrent(getattr(layers, name)(*arguments, **options), width)
    x = torch.randn(4, 7, 5)
    assert any(".ih." in key for key in theirs.state_dict())  # the second name of each weight
    own.load_state_dict(theirs.state_dict())
    assert torch.allclose(own(x), theirs(x), atol=1e-6)
    # An optimizer's state is by number: the parameters come in the same order.
    assert [n for n, _ in own.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    with pytest.raises(RuntimeError, match="Unexpected"):
        own.load_state_dict({**theirs.state_dict(), "rnn.l7.ih.weight": torch.zeros(1)})
    # The checkpoint of a wrapped model, into torch's own layer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = opacus().PrivacyEngine()
        wrapped, *_ = engine.make_private(
            module=theirs,
            optimizer=torch.optim.SGD(theirs.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(TensorDataset(x, torch.zeros(4))),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        engine.save_checkpoint(path=tmp_path / "c.pt", module=wrapped)
    plain = Recurrent(getattr(nn, name.removeprefix("DP"))(*_torch_order(name, arguments), **options), width)
    PrivacyEngine().load_checkpoint(path=tmp_path / "c.pt", module=plain)
    assert torch.allclose(plain(x), own(x), atol=1e-6)


def _torch_order(name, arguments):
    if name != "DPRNN":
        return arguments
    size, hidden, count, bias, first, dropout, both, _, kind = arguments
    return size, hidden, count, kind, bias, first, dropout, both


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"kdim": 3, "vdim": 2}, {"bias": False}])
def test_attention_saved_by_opacus_goes_on_here(options):
    sizes = {k: v for k, v in options.items() if k != "bias" and k != "add_bias_kv"}
    theirs = Attending(opacus().layers.DPMultiheadAttention(4, 2, **options), **sizes)
    own = Attending(layers.DPMultiheadAttention(4, 2, **options), **sizes)
    x = torch.randn(5, 3, 4)
    assert "attention.qlinear.weight" in theirs.state_dict()
    own.load_state_dict(theirs.state_dict())
    assert torch.allclose(own(x), theirs(x), atol=1e-6)
    own.load_state_dict(own.state_dict())  # torch's own names
    with pytest.raises(RuntimeError, match=r"in_proj_weight|q_proj_weight"):
        own.load_state_dict({k: v for k, v in theirs.state_dict().items() if "klinear" not in k})


def test_a_weight_with_two_values_is_refused():
    own = Recurrent(layers.DPGRU(5, 6), 6)
    saved = own.state_dict()
    with pytest.raises(ValueError, match="one weight"):
        own.load_state_dict({**saved, "rnn.l0.ih.weight": saved["rnn.weight_ih_l0"] + 1})


@pytest.mark.parametrize(
    ("kind", "twin"), [("DPRNNCell", nn.RNNCell), ("DPGRUCell", nn.GRUCell), ("DPLSTMCell", nn.LSTMCell)]
)
def test_a_cell_makes_the_step_of_torchs(kind, twin):
    cell, twin = getattr(dp_rnn, kind)(5, 6, True), twin(5, 6)
    twin.load_state_dict({f"{k.split('.')[1]}_{k.split('.')[0]}": v for k, v in cell.state_dict().items()})
    x, h = torch.randn(4, 5), torch.randn(4, 6)
    state, shorter = ((h, h.cos()), (h[:2], h.cos()[:2])) if cell.has_cell_state else (h, h[:2])
    for one, other in (
        (cell(x), twin(x)),
        (cell(x, state), twin(x, state)),
        (cell(x[:2], state, 2), twin(x[:2], shorter)),
    ):
        assert torch.allclose(torch.stack(tuple(one)), torch.stack(tuple(other)), atol=1e-6)


class Packed(nn.Module):
    """Sequences of different length."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = layers.DPLSTM(5, 6, 2, True, True, bidirectional=True), nn.Linear(12, 3)

    def forward(self, x):
        lengths = (x[:, 0, 0] > 0).int() * 3 + 2
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.out(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0].sum(1))


class Stepped(nn.Module):
    """A loop over time with a cell, and an element that is the same for all sequences."""

    def __init__(self):
        super().__init__()
        self.bias, self.cell, self.out = layers.SequenceBias(5, True), dp_rnn.DPLSTMCell(5, 6, True), nn.Linear(6, 3)

    def forward(self, x):
        state = None
        for step in self.bias(x).unbind(1):
            state = self.cell(step, state)
        return self.out(state[0])


@pytest.mark.parametrize("build", [Packed, Stepped])
def test_the_layers_are_clipped_example_by_example(build):
    torch.manual_seed(2)
    model, x, y = build(), torch.randn(24, 5, 5), torch.randint(3, (24,))
    _, optimizer, loader = private(model, TensorDataset(x, y), batch_size=12, clip=0.05)
    inputs, targets = next(batch for batch in loader if len(batch[0]) > 1)
    wanted = expected(model, inputs, targets, 0.05, 12)
    F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    assert close([p.grad for p in model.parameters()], wanted)


def test_there_is_no_layer_of_cells_of_ones_own():
    with pytest.raises(NotImplementedError, match="loop over time"):
        dp_rnn.DPRNNBase(dp_rnn.DPGRUCell, 5, 6)
