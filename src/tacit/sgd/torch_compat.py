"""Which private names of torch does the project rest on? All of them are here, and no other module uses one.

A private name may change with any release of torch. Each stands under a public name, with why it is needed and what
would fail without it; ``tests/sgd/test_torch_compat.py`` asks the installed torch for every one, and fails where a
private name is used anywhere else. What is read in every step is read by functions of C, which cost no Python call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torch.fx import GraphModule

aten = torch.ops.aten

# -- many tensors in one call ------------------------------------------------------------------------------------------

# A step has hundreds of parameters, and a launch for each costs a GPU more than the arithmetic. Public loops would give
# the same numbers more slowly.
foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_div = torch._foreach_div
foreach_div_ = torch._foreach_div_
foreach_lerp_ = torch._foreach_lerp_
foreach_mul = torch._foreach_mul
foreach_neg_ = torch._foreach_neg_
foreach_norm = torch._foreach_norm

# -- tensors -----------------------------------------------------------------------------------------------------------

#: How often a tensor was written to. Without it, a write into an input of an operation, or into a buffer, would go
#: unseen, and per-example gradients would be computed from other values than the model saw.
version: Callable[[Tensor], int] = attrgetter("_version")
#: The tensor that a view looks at. A write into a view changes it, too.
base: Callable[[Tensor], Tensor | None] = attrgetter("_base")
#: Whether autograd takes a tensor for a view: a write in place then moves its history.
is_view: Callable[[Tensor], bool] = methodcaller("_is_view")
#: What tells two storages apart while both live; ``data_ptr`` is zero for every empty one.
storage_id: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
#: The tensor that ``torch.func`` has wrapped (``vmap`` inside a model); the wrapper has no storage of its own.
is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
unwrapped: Callable[[Tensor], Tensor] = torch._C._functorch.get_unwrapped
#: A storage that is not kept alive; ``expired()`` says whether it is gone. Another may then have its place in memory.
weak_storage: Callable[[torch.UntypedStorage], Any] = StorageWeakRef
#: The piece of a tensor that a rank holds, without waiting for it: ``to_local`` of torch is watched by autograd.
local_tensor: Callable[[Any], Any] = attrgetter("_local_tensor")

#: Nested batches, taken apart and put together. torch has no public way, and users register classes with this one.
pytree = _pytree

# -- modules -----------------------------------------------------------------------------------------------------------

#: What a module holds itself, by name. The public iterators walk into children, leave out what is registered twice and
#: take milliseconds in each step of a large model; and only here can a buffer be put back.
own_parameters: Callable[[nn.Module], MutableMapping[str, nn.Parameter | None]] = attrgetter("_parameters")
own_buffers: Callable[[nn.Module], MutableMapping[str, Tensor | None]] = attrgetter("_buffers")
own_modules: Callable[[nn.Module], Mapping[str, nn.Module | None]] = attrgetter("_modules")
#: Names of the buffers that a checkpoint does not hold: they are part of what a run is.
unsaved_buffers: Callable[[nn.Module], set[str]] = attrgetter("_non_persistent_buffers_set")
#: Under which attributes a module keeps these; anything else that it has is a setting of its own.
MODULE_STATE = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_is_full_backward_hook"}
#: Batch and instance normalisation of any dimension, also classes that users derived. Without the first, a layer that
#: mixes examples would be found only by the comparison with autograd.
BatchNorm = _BatchNorm
InstanceNorm = _InstanceNorm
#: What a module runs by ``torch.compile`` in place of its own code, if anything: its operations would not be seen.
compiled_call: Callable[[nn.Module], Any] = attrgetter("_compiled_call_impl")


def set_compiled_call(module: nn.Module, call: Any) -> None:
    """Let a module run its own code, or what ``module.compile()`` made of it: that would swallow hooks on it."""
    module._compiled_call_impl = call


#: The names of the weights of a recurrent layer, layer by layer.
weight_names: Callable[[nn.RNNBase], list[list[str]]] = attrgetter("_all_weights")


def compiled_from(module: nn.Module) -> nn.Module | None:
    """The module that ``torch.compile`` wrapped, which is the one that counts; None for an ordinary one."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else None


def take_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Let hooks be registered with an optimizer that shares groups and state with another, and is not initialised."""
    for name in ("step_pre", "step_post", "state_dict_pre", "state_dict_post"):
        setattr(optimizer, f"_optimizer_{name}_hooks", OrderedDict())
    for name in ("pre", "post"):
        setattr(optimizer, f"_optimizer_load_state_dict_{name}_hooks", OrderedDict())
    optimizer._patch_step_function()


#: Where a schedule that is made of others keeps them.
INNER_SCHEDULES = "_schedulers"

# -- watching operations -----------------------------------------------------------------------------------------------

#: Sees operations below autograd, also those of scripted code, which no function mode sees.
DispatchMode = TorchDispatchMode
#: Inside, functions of torch are not shown to function modes a second time.
without_function_modes = DisableTorchFunction
#: The transforms of ``torch.func`` (vmap, grad) that are under way; None where there are none. What is computed inside
#: has no gradient edge of its own.
transforms: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
#: The modules that operators, and some functions of ``torch.nn.functional``, say they come from.
OPERATORS = OpOverload.__module__
FUNCTIONAL_BUILTINS = "torch._C._nn"
#: Reading the value of a tensor into Python, after which the program may depend on anybody's data.
read_scalar = aten._local_scalar_dense.default
#: Whether an operator is written in terms of others, which say more about it.
composite: Callable[[OpOverload[..., Any]], bool] = methodcaller("_can_decompose")
#: A view that autograd takes for a tensor of its own.
unsafe_view = aten._unsafe_view.default
#: One step of an LSTM on a GPU in one kernel; without it, five.
fused_lstm_cell = aten._thnn_fused_lstm_cell

# -- traced graphs -----------------------------------------------------------------------------------------------------

# What operations are called in a traced graph. Under other names they would not be recognised: a step would be compiled
# as it stands, slower, with the same numbers.
to_copy = aten._to_copy.default
log_softmax = aten._log_softmax.default
log_softmax_backward = aten._log_softmax_backward_data.default


#: How many modes watch operations below autograd: tracing, fake tensors, ownership. Without it, the body of one of our
#: operators could run where its node belongs into a trace.
watchers: Callable[[], int] = torch._C._len_torch_dispatch_stack
#: The transformation of ``torch.func`` that is under way, if any: operators see its wrapped tensors by their own rules.
transformation: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack


def operator_of(node: Any) -> OpOverload[..., Any] | None:
    """The operator that a node of a graph calls; None where it calls none."""
    target = node.target
    return target if isinstance(target, OpOverload) else None


#: The declaration of an operator: name, arguments, results, and whether it writes into its inputs (then a graph must
#: not be rewritten).
schema: Callable[[OpOverload[..., Any]], Any] = attrgetter("_schema")


@contextmanager
def as_compiled() -> Iterator[None]:
    """What asks ``torch.compiler.is_compiling()`` hears yes.

    Models that look at their data to take a shortcut often do not where they are compiled. Without the flag they could
    not be traced, and would run uncompiled.
    """
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def inductor(graph: GraphModule, inputs: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Compile a graph that is traced already. ``torch.compile`` would trace it anew, and split it at our operations.

    The compiler takes a second to load, so it is loaded here and not with the package.
    """
    import torch._inductor

    compiled: Callable[..., Any] = torch._inductor.compile(graph, list(inputs), options=options)
    return compiled


def force_stride_order() -> Any:
    """The compiler's operation that stores a tensor in an order of memory. Without it images would be copied."""
    from torch._inductor import inductor_prims

    return inductor_prims.force_stride_order
