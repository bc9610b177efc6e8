"""A script that was written for Opacus runs with the word replaced."""

from __future__ import annotations

import importlib
import inspect
import io
import warnings
from contextlib import redirect_stdout

import pytest

opacus = pytest.importorskip("opacus", reason="Opacus is what this is compared with: pip install 'tacit[oracles]'")

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant, create_accountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.grad_sample import register_grad_sampler
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise, StepNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from opacus.validators import ModuleValidator


class SampleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc(x))


model = SampleNet()
assert ModuleValidator.is_valid(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data_loader = DataLoader(TensorDataset(torch.randn(64, 16), torch.rand(64, 1)), batch_size=8)
privacy_engine = PrivacyEngine(accountant="rdp", secure_mode=False)
assert privacy_engine.is_compatible(module=model, optimizer=optimizer, data_loader=data_loader)
model, optimizer, data_loader = privacy_engine.make_private(
    module=model,
    optimizer=optimizer,
    data_loader=data_loader,
    noise_multiplier=1.0,
    max_grad_norm=0.5,
)
assert isinstance(optimizer, DPOptimizer) and isinstance(data_loader, DPDataLoader)
assert isinstance(privacy_engine.accountant, RDPAccountant)
assert optimizer.expected_batch_size == 8 and optimizer.max_grad_norm == 0.5
schedule = StepNoise(optimizer, step_size=1, gamma=0.99)
with BatchMemoryManager(data_loader=data_loader, max_physical_batch_size=4, optimizer=optimizer) as memory_safe:
    for x, y in memory_safe:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
schedule.step()
steps = sum(times for _, _, times in privacy_engine.accountant.history)
print(steps, round(optimizer.noise_multiplier, 2), data_loader.sample_rate)
print(privacy_engine.get_epsilon(delta=1e-5))
"""


def told(script):
    out = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(out):
        warnings.simplefilter("ignore")
        exec(compile(script, "script", "exec"), {"__name__": "script"})
    return out.getvalue().splitlines()


def test_a_script_runs_with_the_word_replaced():
    theirs, own = told(SCRIPT), told(SCRIPT.replace("opacus", "tacit.opacus"))
    assert theirs[0] == own[0] == "8 0.99 0.125"
    assert 0 < float(own[1]) <= float(theirs[1])


@pytest.mark.parametrize("name", ["make_private", "make_private_with_epsilon", "save_checkpoint", "load_checkpoint"])
def test_the_engine_takes_every_argument_that_opacus_takes(name):
    ours = importlib.import_module("tacit.opacus").PrivacyEngine
    theirs = inspect.signature(getattr(opacus.PrivacyEngine, name)).parameters
    own = inspect.signature(getattr(ours, name)).parameters
    assert set(theirs) <= set(own)
    required = {k for k, p in own.items() if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
    assert required <= {k for k, p in theirs.items() if p.default is p.empty}
