"""What code written for Opacus imports is here under the same path, and is called in the same way."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from tests.opacus.harness import data, net, private
from torch import nn
from torch.utils.data import DataLoader

from tacit.opacus import PrivacyEngine
from tacit.opacus.accountants import create_accountant
from tacit.opacus.data_loader import DPDataLoader, switch_generator
from tacit.opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPOptimizerFastGradientClipping
from tacit.opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping
from tacit.opacus.validators import ModuleValidator, register_module_fixer, register_module_validator
from tacit.opacus.validators.errors import IllegalModuleConfigurationError

#: Names by path. With * the name is there to be imported and asked about (isinstance), and cannot be built by hand.
NAMES = {
    "": "PrivacyEngine GradSampleModule* GradSampleModuleFastGradientClipping* __version__",
    "accountants": "IAccountant GaussianAccountant PRVAccountant RDPAccountant create_accountant register_accountant",
    "accountants.accountant": "IAccountant",
    "accountants.analysis.gdp": "compute_mu_uniform compute_mu_poisson delta_eps_mu eps_from_mu compute_eps_uniform "
    "compute_eps_poisson",
    "accountants.analysis.rdp": "compute_rdp get_privacy_spent",
    "accountants.gdp": "GaussianAccountant",
    "accountants.prv": "PRVAccountant",
    "accountants.rdp": "RDPAccountant",
    "accountants.registry": "create_accountant register_accountant",
    "accountants.utils": "get_noise_multiplier MAX_SIGMA",
    "data_loader": "DPDataLoader switch_generator",
    "distributed": "DifferentiallyPrivateDistributedDataParallel*",
    "grad_sample": "AbstractGradSampleModule* GradSampleModule* register_grad_sampler* register_norm_sampler*",
    "grad_sample.grad_sample_module": "GradSampleModule*",
    "grad_sample.gsm_base": "AbstractGradSampleModule*",
    "grad_sample.utils": "register_grad_sampler* register_norm_sampler*",
    "layers": "DPRNN DPGRU DPLSTM DPMultiheadAttention SequenceBias",
    "layers.dp_multihead_attention": "DPMultiheadAttention SequenceBias",
    "layers.dp_rnn": "DPRNN DPGRU DPLSTM DPRNNCell DPGRUCell DPLSTMCell DPRNNCellBase DPRNNBase* RNNLinear",
    "optimizers": "DPOptimizer* DPPerLayerOptimizer* AdaClipDPOptimizer* DPOptimizerFastGradientClipping* "
    "DistributedDPOptimizer*",
    "optimizers.adaclipoptimizer": "AdaClipDPOptimizer*",
    "optimizers.ddpoptimizer": "DistributedDPOptimizer*",
    "optimizers.optimizer": "DPOptimizer*",
    "optimizers.optimizer_fast_gradient_clipping": "DPOptimizerFastGradientClipping*",
    "optimizers.perlayeroptimizer": "DPPerLayerOptimizer*",
    "optimizers.utils": "params",
    "privacy_engine": "PrivacyEngine",
    "schedulers": "ExponentialNoise LambdaNoise StepNoise ExponentialGradClip LambdaGradClip StepGradClip",
    "utils.adaptive_clipping": "PrivacyEngineAdaptiveClipping",
    "utils.adaptive_clipping.adaptive_clipping_utils": "PrivacyEngineAdaptiveClipping",
    "utils.batch_memory_manager": "BatchMemoryManager wrap_data_loader",
    "utils.fast_gradient_clipping_utils": "DPLossFastGradientClipping*",
    "utils.module_utils": "has_trainable_params parametrized_modules trainable_modules trainable_parameters "
    "requires_grad clone_module get_submodule",
    "utils.packed_sequences": "compute_seq_lengths",
    "utils.tensor_utils": "calc_sample_norms calc_sample_norms_one_layer sum_over_all_but_batch_and_last_n unfold2d "
    "unfold3d",
    "utils.uniform_sampler": "UniformWithReplacementSampler DistributedUniformWithReplacementSampler*",
    "validators": "ModuleValidator register_module_fixer register_module_validator",
    "validators.errors": "UnsupportedError UnsupportedModuleError UnsupportableModuleError ShouldReplaceModuleError "
    "NotYetSupportedModuleError IllegalModuleConfigurationError",
    "validators.module_validator": "ModuleValidator",
    "validators.utils": "register_module_fixer register_module_validator",
    "version": "__version__",
}
METHODS = "get_epsilon get_privacy_spent step get_optimizer_hook_fn state_dict load_state_dict mechanism fix validate"


def opacus(part=""):
    return pytest.importorskip(
        f"opacus.{part}".rstrip("."), reason="compared with Opacus: pip install 'tacit[oracles]'"
    )


def takes(own, theirs, where):
    """Every call of theirs, by position or by name, is a call of our own."""
    known, wanted = (inspect.signature(f).parameters for f in (own, theirs))
    open_to_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    by_place = [p for p in wanted if wanted[p].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if not any(p.kind is p.VAR_POSITIONAL for p in known.values()):
        assert [p for p in known if known[p].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD][
            : len(by_place)
        ] == by_place, where
    for name, parameter in wanted.items():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            assert name in known or open_to_all, (where, name)
    for name, parameter in known.items():
        if parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY:
            assert name in wanted, (where, name)


@pytest.mark.parametrize("path", NAMES)
def test_a_path_has_opacus_names_and_they_are_called_alike(path):
    theirs, own = opacus(path), importlib.import_module(f"tacit.opacus.{path}".rstrip("."))
    for name in NAMES[path].split():
        ours, other = getattr(own, name.rstrip("*")), getattr(theirs, name.rstrip("*"))
        assert isinstance(ours, type) == isinstance(other, type)
        if name.endswith("*") or not callable(ours):
            continue
        if not (isinstance(ours, type) and issubclass(ours, Exception)):
            takes(ours, other, name)
        for method in METHODS.split():
            if isinstance(ours, type) and method in vars(other):
                takes(getattr(ours, method), getattr(other, method), f"{name}.{method}")


def test_what_cannot_be_built_says_what_to_do():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = importlib.import_module("tacit.opacus")
    with pytest.raises(NotImplementedError, match="make_private"):
        names.GradSampleModule(model)
    with pytest.raises(NotImplementedError, match="make_private"):
        DPOptimizer(optimizer=optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8)
    assert not optimizer._optimizer_step_pre_hooks  # the optimizer is as it was
    assert not isinstance(model, names.GradSampleModule)


def test_helpers_give_what_opacus_gives():
    ours, theirs = (
        importlib.import_module(f"{p}utils.tensor_utils") for p in ("tacit.opacus.", opacus().__name__ + ".")
    )
    x = torch.randn(2, 3, 7, 6)
    for padding in ("same", "valid", (2, 1)):
        options = {"kernel_size": (3, 2), "padding": padding, "stride": (2, 1), "dilation": (1, 3)}
        assert torch.equal(ours.unfold2d(x, **options), theirs.unfold2d(x, **options))
    x = torch.randn(2, 3, 5, 7, 6)
    for options in (
        {"kernel_size": 2},
        {"kernel_size": (2, 3, 1), "padding": (1, 0, 2), "stride": (2, 1, 2), "dilation": 2},
        {"kernel_size": (4, 3, 2), "padding": "same"},
    ):
        assert torch.equal(ours.unfold3d(x, **options), theirs.unfold3d(x, **options))
    layers = [("a", torch.randn(4, 3, 2)), ("b", torch.randn(4)), ("c", torch.randn(4, 5))]
    for flat in (True, False):
        wanted = theirs.calc_sample_norms(layers, flat=flat)
        assert all(torch.allclose(a, b) for a, b in zip(ours.calc_sample_norms(layers, flat=flat), wanted, strict=True))
    model = nn.Linear(3, 2)
    model.bias.requires_grad = False
    for path in ("tacit.opacus", "opacus"):
        assert importlib.import_module(f"{path}.utils.module_utils").requires_grad(model)  # one of them is enough


def test_validators_and_fixers_of_ones_own_add_to_what_is_known():
    class Own(ModuleValidator):
        VALIDATORS, FIXERS = {}, {}

    @register_module_validator([nn.Linear, nn.Bilinear], Own)
    def narrow(module):
        return [IllegalModuleConfigurationError("too narrow")] if module.out_features < 2 else []

    @register_module_fixer(nn.Linear, Own)
    def widen(module, *, width, **kwargs):
        return nn.Linear(module.in_features, width)

    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(4, 1), norm, nn.ModuleDict({"same": norm}))
    assert len(Own.validate(model)) == 2  # what has no bound is found whatever is registered
    assert len(ModuleValidator.validate(model)) == 1
    fixed = Own.fix(model, width=4)
    assert Own.is_valid(fixed)
    assert fixed[0].out_features == 4
    assert isinstance(model[1], nn.BatchNorm1d)
    with pytest.raises(TypeError, match="width"):
        ModuleValidator.fix(model, width=4)
    fixed = ModuleValidator.fix(model, num_groups=2)
    assert fixed[1] is fixed[2]["same"]
    assert fixed[1].num_groups == 2
    assert torch.equal(fixed[1].weight, norm.weight)
    assert isinstance(ModuleValidator.fix(model, replace_bn_with_in=True)[1], nn.InstanceNorm1d)


def test_each_way_of_clipping_has_its_optimizer():
    options = {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss(), "noise": 0.1}
    _, optimizer, _ = private(net(), data(), **options)
    assert type(optimizer) is DPOptimizerFastGradientClipping
    _, optimizer, _ = private(net(), data(), engine=PrivacyEngineAdaptiveClipping(), **options)
    assert type(optimizer) is AdaClipDPOptimizer
    assert optimizer.loop.clip_range[0] == 1.0
    with pytest.raises(ValueError, match="adaptively"):
        private(net(), data(), engine=PrivacyEngineAdaptiveClipping(), clipping="per_layer", noise=0.1)


def test_a_loader_takes_another_generator_but_not_under_a_run():
    def drawn(seed):
        loader = DPDataLoader(torch.utils.data.TensorDataset(torch.arange(200.0)), sample_rate=0.1)
        loader = switch_generator(data_loader=loader, generator=torch.Generator().manual_seed(seed))
        assert loader.sample_rate == 0.1
        return [x.tolist() for (x,) in loader]

    assert drawn(1) == drawn(1) != drawn(2)
    plain = DataLoader(data(), batch_size=8, shuffle=True)
    generator = torch.Generator()
    assert switch_generator(data_loader=plain, generator=generator).batch_sampler.sampler.generator is generator
    _, _, loader = private(net(), data())
    with pytest.raises(ValueError, match="make_private"):
        switch_generator(data_loader=loader, generator=generator)


def public(path):
    """The names that a file of Opacus defines, without running it."""
    for part in ast.parse(path.read_text()).body:
        if isinstance(part, ast.ClassDef | ast.FunctionDef):
            yield part.name
        elif isinstance(part, ast.Assign):
            yield from (target.id for target in part.targets if isinstance(target, ast.Name))


def test_every_public_name_of_opacus_is_here_or_on_the_list_of_those_that_are_not():
    root, page = Path(opacus().__file__).parent, Path(__file__).parents[2] / "docs" / "reference" / "opacus-names.md"
    section = page.read_text().split("## Names that are not here")[1].split("\n## ")[0]
    absent = set(re.findall(r"`([\w.*]+)`", "\n".join(re.findall(r"^\| (.*?) \| ", section, re.M))))
    found = 0
    for file in sorted(root.rglob("*.py")):
        path = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        if path.startswith("tests") or any(f"{path}.".startswith(f"{gone}.") for gone in absent):
            continue
        names = [name for name in public(file) if not name.startswith("_")]
        names = [name for name in names if not any(fnmatch(name, gone) for gone in absent)]
        if names:
            own = importlib.import_module(f"tacit.opacus.{path}".rstrip("."))
            assert [name for name in names if not hasattr(own, name)] == [], path
        found += len(names)
    assert found > 70


@pytest.mark.parametrize(
    ("path", "name", "pointer"),
    [
        ("grad_sample.functorch", "prepare_layer", "example_gradients"),
        ("grad_sample.functorch", "ft_compute_per_sample_gradient", "example_gradients"),
        ("lightning", "DPLightningDataModule", "PrivateTraining"),
        ("utils.fsdp_utils", "FSDP2Wrapper", "torchrun"),
        (
            "grad_sample.grad_sample_module_fast_gradient_clipping_fsdp",
            "GradSampleModuleFastGradientClippingFSDP",
            "torch",
        ),
        (
            "grad_sample.grad_sample_module_fast_gradient_clipping_tp",
            "GradSampleModuleFastGradientClippingTP",
            "torchrun",
        ),
    ],
)
def test_what_is_not_here_can_be_imported_and_says_what_is(path, name, pointer):
    found = getattr(importlib.import_module(f"tacit.opacus.{path}"), name)
    with pytest.raises(NotImplementedError, match=pointer):
        found(*[None] * (3 if name.startswith("ft") else 1))


def test_the_model_has_both_names_and_its_own_state():
    model = torch.nn.Linear(3, 2)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3)), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private, _, _ = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=data, noise_multiplier=1.0, max_grad_norm=1.0
    )
    assert private._module is model
    assert list(private.state_dict()) == ["weight", "bias"]
    assert [name for name, _ in private.named_modules()] == [""]
    twin = copy.deepcopy(private)
    assert twin._module is twin


def test_a_state_goes_to_the_accountant_it_came_from():
    with pytest.raises(ValueError, match="accountant='rdp'"):
        create_accountant("prv").load_state_dict(create_accountant("rdp").state_dict())


def test_fixing_a_model_logs_what_was_replaced(caplog):
    with caplog.at_level("INFO"):
        ModuleValidator.fix(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8)))
    assert caplog.messages == ["Replaced sub_module 1 with GroupNorm(8, 8)"]
