"""The same program with Opacus and with tacit: same gradients, no larger ε."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tacit.opacus as ours

opacus = pytest.importorskip("opacus", reason="Opacus is what this is compared with: pip install 'tacit[oracles]'")


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(30, 8), kind(8, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0][:, -1])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(30, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.out(self.embed(x).mean(1))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def lstm():
    from opacus.layers import DPLSTM

    return Recurrent(DPLSTM)


IMAGES, WORDS = torch.randn(48, 1, 14, 14), torch.randint(0, 30, (48, 7))
CASES = {
    "cnn": (cnn, IMAGES, {}),
    "losses summed": (cnn, IMAGES, {"loss_reduction": "sum"}),
    "per layer": (cnn, IMAGES, {"clipping": "per_layer", "max_grad_norm": [0.05, 0.1, 0.2, 0.1, 0.3, 0.1]}),
    "lstm": (lstm, WORDS, {}),
    "text": (Bag, WORDS, {}),
}


def run(library, model, x, options):
    model = copy.deepcopy(model)
    y = torch.randint(0, 5, (len(x),), generator=torch.Generator().manual_seed(3))
    loss = nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no noise, no Poisson sampling, Opacus' random numbers: on purpose here
        engine = library.PrivacyEngine()
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(TensorDataset(x, y), batch_size=16),
            noise_multiplier=0.0,
            poisson_sampling=False,
            **{"max_grad_norm": 0.3, **options},
        )
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(private(inputs), targets).backward()
            optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("case", CASES)
def test_without_noise_both_make_the_same_steps(case):
    build, x, options = CASES[case]
    torch.manual_seed(1)
    model = build()
    theirs, own = run(opacus, model, x, options), run(ours, model, x, options)
    before = model.state_dict()
    moved = max(float((own[n] - before[n]).abs().max()) for n in own)
    assert moved > 1e-4
    assert max(float((own[n] - theirs[n]).abs().max()) for n in own) < 2e-3 * moved


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [(1.0, 1 / 16, 80, 1e-5), (1.1, 256 / 60000, 1000, 1e-5), (0.7, 0.02, 200, 1e-6), (2.0, 0.1, 300, 1e-5)],
)
def test_epsilon_is_never_above_opacus_and_close_to_its_prv(noise, rate, steps, delta):
    found = {}
    for name in ("prv", "rdp"):
        own, theirs = ours.accountants.create_accountant(name), opacus.accountants.create_accountant(name)
        own.history = theirs.history = [(noise, rate, steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = own.get_epsilon(delta=delta), theirs.get_epsilon(delta=delta)
        assert found[name][0] <= found[name][1]
    assert found["prv"][1] - found["prv"][0] < 0.011
    assert found["prv"][0] == found["rdp"][0]


def test_the_noise_for_a_budget_is_no_more_than_opacus_asks_for():
    wanted = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.02, "epochs": 5}
    own = ours.accountants.utils.get_noise_multiplier(**wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = opacus.accountants.utils.get_noise_multiplier(**wanted, accountant="prv", epsilon_tolerance=0.05)
    assert own <= theirs
    assert own > 0.9 * theirs


def test_a_checkpoint_written_by_opacus_is_taken_up(tmp_path):
    model = nn.Linear(6, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = opacus.PrivacyEngine()
    engine.accountant.history = [(1.0, 0.1, 50)]
    engine.save_checkpoint(path=tmp_path / "c.pt", module=model)
    own = ours.PrivacyEngine()
    own.load_checkpoint(path=tmp_path / "c.pt", module=nn.Linear(6, 3))
    assert own.accountant.history == [(1.0, 0.1, 50)]
    assert own.get_epsilon(1e-5) > 1
