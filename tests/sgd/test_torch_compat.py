"""Private names of torch are used in one module, and the installed torch has every one of them."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tacit.sgd import torch_compat as compat

SOURCE = Path(compat.__file__).parents[1]


# -- nowhere else ------------------------------------------------------------------------------------------------------


def _private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _of_torch() -> set[str]:
    """Private attributes of objects of torch that people meet."""
    layer = nn.LSTM(1, 1)
    graph = make_fx(lambda x: x + 1)(torch.ones(1))
    samples = [
        torch.ones(1),
        torch.ones(1).untyped_storage(),
        layer,
        nn.MultiheadAttention(2, 1),
        torch.optim.SGD(layer.parameters()),
        torch.utils.data.DataLoader([1]),
        torch.ops.aten.add.Tensor,
        graph,
        next(iter(graph.graph.nodes)),
        torch.autograd.Function,
    ]
    names = {name for sample in samples for name in dir(sample)} | {"_orig_mod", "_schedulers", "_local_tensor"}
    return {name for name in names if _private(name)} - {"_replace"}


def _root(node: ast.AST) -> str:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def uses(source: str, private: set[str]) -> list[str]:
    """Private names of torch in a module: imported, reached through something of torch, or read off an object."""
    tree, found = ast.parse(source), []
    roots: dict[str, str] = {}
    own = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    torch_here = "import torch" in source or "from torch" in source
    classes = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    own |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            told = [(a.asname or a.name.partition(".")[0], a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            told = [(a.asname or a.name, f"{node.module}.{a.name}") for a in node.names]
        else:
            continue
        for name, path in told:
            if path.partition(".")[0] == "torch":
                roots[name] = path
                if any(map(_private, path.split("."))):
                    found.append(path)
    for node in ast.walk(tree):  # aten = torch.ops.aten
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and _root(node.value) in roots:
            roots |= {target.id: "torch" for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr):
            text = ast.unparse(node)
            of_self = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", *classes}
            if _root(node) in roots or (torch_here and node.attr in private and not (of_self and node.attr in own)):
                found.append(text)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if name in private:
                found.append(ast.unparse(node))
    return found


def test_private_names_of_torch_are_used_in_one_module():
    private = _of_torch()
    found = {
        path.relative_to(SOURCE).as_posix(): told
        for path in sorted(SOURCE.rglob("*.py"))
        if path != Path(compat.__file__) and (told := uses(path.read_text(encoding="utf-8"), private))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "from torch.utils import _pytree",
        "import torch._inductor",
        "import torch\ntorch._foreach_add_([], 1)",
        "import torch\naten = torch.ops.aten\nx = aten._to_copy.default",
        "from torch import nn\nnn.modules.batchnorm._BatchNorm",
        "import torch\ndef f(t):\n    return t._version",
        "def f(m):\n    return getattr(m, '_orig_mod', None)",
        "import torch\nclass A(torch.nn.Module):\n    def f(self):\n        return self._buffers",
    ],
)
def test_a_private_name_is_found(source):
    assert uses(source, _of_torch())


def test_a_name_of_ones_own_is_none():
    own = "class A:\n    def __init__(self):\n        self._buffers = 1\n        print(self._buffers)"
    assert not uses(own, _of_torch())


# -- and does what is relied on ----------------------------------------------------------------------------------------


def test_many_tensors_are_computed_as_one_by_one():
    def both() -> list[torch.Tensor]:
        return [torch.arange(3.0), torch.arange(4.0)]

    some = both()
    compat.foreach_add_(some, [torch.ones(3), torch.ones(4)])
    compat.foreach_div_(some, 3.0)
    compat.foreach_lerp_(some, both(), 0.25)
    plain = [((t + 1) / 3).lerp(t, 0.25) for t in both()]
    assert all(torch.equal(a, b) for a, b in zip(some, plain, strict=True))
    assert all(torch.equal(a, b / 7) for a, b in zip(compat.foreach_div(some, 7.0), plain, strict=True))
    assert all(torch.equal(a, b * 7) for a, b in zip(compat.foreach_mul(some, 7.0), plain, strict=True))
    assert [float(n) for n in compat.foreach_norm(some)] == pytest.approx([float(t.norm()) for t in plain])
    copies = [torch.empty(3), torch.empty(4, dtype=torch.float64)]
    compat.foreach_copy_(copies, some)
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(copies, some, strict=True))


def test_a_write_is_counted_on_the_tensor_and_on_its_views():
    x = torch.ones(4)
    view, before = x[:2], compat.version(x)
    view.add_(1)
    assert compat.version(x) == compat.version(view) == before + 1
    assert compat.base(view) is x
    assert compat.base(x) is None
    assert compat.is_view(view)
    assert not compat.is_view(x)
    assert compat.storage_id(x.untyped_storage()) == compat.storage_id(view.untyped_storage())
    assert compat.storage_id(x.untyped_storage()) != compat.storage_id(x.clone().untyped_storage())


def test_an_unsafe_view_has_a_history_of_its_own():
    x = torch.ones(4, requires_grad=True)
    alone = compat.unsafe_view((x * 2).view(2, 2), [2, 2])
    assert not compat.is_view(alone)
    alone.mul_(3).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 6.0))


def test_what_a_module_holds_is_where_it_is_looked_for():
    norm = nn.BatchNorm1d(3)
    norm.register_buffer("mine", torch.ones(1), persistent=False)
    assert list(compat.own_parameters(norm)) == ["weight", "bias"]
    assert list(compat.own_buffers(norm)) == ["running_mean", "running_var", "num_batches_tracked", "mine"]
    assert list(compat.own_modules(nn.Sequential(norm))) == ["0"]
    assert compat.unsaved_buffers(norm) == {"mine"}
    assert vars(norm).keys() >= compat.MODULE_STATE
    other = torch.zeros(1)
    compat.own_buffers(norm)["mine"] = other
    assert norm.mine is other
    assert compat.weight_names(nn.RNN(2, 3)) == [["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]]
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LazyBatchNorm2d):
        assert issubclass(kind, compat.BatchNorm)
    assert issubclass(nn.InstanceNorm2d, compat.InstanceNorm)
    assert not issubclass(nn.GroupNorm, compat.BatchNorm | compat.InstanceNorm)


def test_a_compiled_module_is_known():
    plain = nn.Linear(2, 2)
    wrapped = torch.compile(plain)
    assert compat.compiled_from(wrapped) is plain
    assert compat.compiled_from(plain) is None
    assert type(wrapped).__name__ == "OptimizedModule"
    assert compat.compiled_call(plain) is None
    plain.compile()
    assert compat.compiled_call(plain) is not None
    first, second = (torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(plain.parameters())) for _ in range(2))
    assert getattr(torch.optim.lr_scheduler.ChainedScheduler([first]), compat.INNER_SCHEDULES) == [first]
    assert not hasattr(second, compat.INNER_SCHEDULES)


def test_an_optimizer_that_is_not_initialised_takes_hooks():
    class Shared(torch.optim.Optimizer):
        def __init__(self, other):
            self.param_groups, self.state, self.defaults = other.param_groups, other.state, other.defaults
            compat.take_hooks(self)

        def step(self):
            seen.append("step")

    seen: list[str] = []
    shared = Shared(torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    shared.register_step_pre_hook(lambda *_: seen.append("before"))
    shared.register_step_post_hook(lambda *_: seen.append("after"))
    shared.step()
    shared.state_dict()
    assert seen == ["before", "step", "after"]


def test_reading_a_value_is_dispatched():
    class Watch(compat.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            with compat.without_function_modes():
                return func(*args, **(kwargs or {}))

    seen: list = []
    with Watch():
        float(torch.ones(1))
    assert compat.read_scalar in seen
    assert type(seen[0]).__module__ == compat.OPERATORS
    assert torch.nn.functional.gelu.__module__ in ("torch.nn.functional", compat.FUNCTIONAL_BUILTINS)


def test_batches_of_any_form_are_taken_apart_and_put_together():
    batch = {"x": (torch.ones(1), [2, None])}
    leaves, form = compat.pytree.tree_flatten(batch)
    assert compat.pytree.tree_unflatten(leaves, form) == batch
    doubled = compat.pytree.tree_map_only(torch.Tensor, lambda t: t * 2, batch)
    assert float(doubled["x"][0]) == 2.0

    @dataclasses.dataclass
    class Leaf:
        pass

    assert compat.pytree.tree_leaves([Leaf()])


def test_operations_have_the_names_and_declarations_that_rewrites_look_for():
    def step(x: torch.Tensor) -> torch.Tensor:
        y = torch.log_softmax(x.to(torch.float64), 1)
        return torch.autograd.grad(y[:, 0].sum(), x)[0]

    graph = make_fx(step)(torch.randn(2, 3, requires_grad=True))
    called = {compat.operator_of(n) for n in graph.graph.nodes}
    assert {compat.to_copy, compat.log_softmax, compat.log_softmax_backward} <= called
    assert None in called  # inputs and outputs call nothing
    assert compat.schema(torch.ops.aten.add_.Tensor).is_mutable
    declared = compat.schema(torch.ops.aten.add.Tensor)
    assert not declared.is_mutable
    assert (declared.name, [a.name for a in declared.arguments]) == ("aten::add", ["self", "other", "alpha"])
    assert compat.schema(torch.ops.aten.t.default).returns[0].alias_info is not None


def test_a_model_can_be_told_that_it_is_compiled():
    assert not torch.compiler.is_compiling()
    with compat.as_compiled():
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()


def test_a_traced_graph_is_compiled_with_its_options():
    graph = make_fx(lambda x: [x * 2 + 1])(torch.ones(3))
    run = compat.inductor(graph, [torch.ones(3)], {"cpp.min_chunk_size": 1 << 16})
    assert torch.equal(run(torch.arange(3.0))[0], torch.tensor([1.0, 3.0, 5.0]))
    assert callable(compat.force_stride_order())


def test_the_fused_cell_of_an_lstm_is_declared_as_it_is_called():
    names = [a.name for a in compat.schema(compat.fused_lstm_cell.default).arguments]
    assert names[:3] == ["input_gates", "hidden_gates", "cx"]


def test_a_tensor_that_is_spread_over_ranks_holds_its_piece_under_this_name():
    from torch.distributed.tensor import DTensor

    assert "_local_tensor" in DTensor.__slots__
