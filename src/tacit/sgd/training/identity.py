"""Is this the same computation as before? A name for code and settings, equal in every process if nothing differs.

A resumed run repeats its noise, so it must compute what it computed before: a model with another activation, another
loss or another schedule under the same names would release other sums with the same noise. Names and shapes do not
tell; code does. What a person wrote is named by its bytecode, its constants, its defaults, and the values of the
closures and globals that it reads, and so is all that it calls; what is installed (torch, the standard library,
packages) by module, name and version of the package; objects by class and attributes; tensors by their content.
Nothing is called to find this out, and no address, hash or order of a set is part of it.

What cannot be named (an open file, a generator, an object of a C library that cannot be pickled) has no name, which
equals none: a run with such a part is not resumed but forked.
"""

from __future__ import annotations

import collections
import copyreg
import dis
import enum
import functools
import hashlib
import logging
import os
import site
import struct
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.noise.process import OneProcess
from tacit.sgd.sharding.shards import class_of
from tacit.sgd.torch_compat import (
    INNER_SCHEDULES,
    MODULE_STATE,
    OPERATORS,
    compiled_from,
    own_buffers,
    own_modules,
    own_parameters,
    unsaved_buffers,
)

#: What holds no part of the function that is computed: where it runs, who drives it.
MACHINERY = (
    "torch.distributed.",
    "lightning.",
    "pytorch_lightning.",
    "accelerate.",
    "torchmetrics.",
    "tacit.integrations.",
    "tacit.ledger.",
    "tacit.sgd.hooked.watch.",
)
#: Installed, and not named by version: torch, whose version is told apart, and what is compared with the run itself.
UNVERSIONED = {"torch", "numpy", "tacit"}
#: What a class holds beside its code and its values.
_NOT_CODE = {
    "__abstractmethods__",
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__classcell__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__orig_bases__",
    "__parameters__",
    "__qualname__",
    "__static_attributes__",
    "__type_params__",
    "__weakref__",
    "_abc_impl",
}
#: What a module holds that is compared otherwise, an optimizer that is its state, a schedule that it counts.
_SPREAD = ("__composable_api_state", "_is_fsdp", "_fsdp")  # where fully_shard keeps its notes
_STATE = {"state", "param_groups", "step", "_opt_called", "_zero_grad_profile_name", "_patch_step_function"}
_STATE |= {"_warned_capturable_if_run_uncaptured", "_need_device_dtype_check_for_fused"}
_COUNTS = {"last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_initial_step", "_is_initial"}
_COUNTS |= {"best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i", "optimizer", "step"}
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType, types.NotImplementedType)
_BY_CLASS = (logging.Logger, type(threading.Lock()), type(threading.RLock()), threading.local, threading.Thread)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_BUILTIN = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


class Unnameable(Exception):
    """Something whose name in another process nobody can know."""


def _hash(kind: str, *parts: bytes | str) -> bytes:
    """Every part goes in with its length, so that no two different inputs are the same bytes."""
    state = hashlib.blake2b(kind.encode(), digest_size=32)
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(struct.pack("<Q", len(content)))
        state.update(content)
    return state.digest()


@functools.cache
def _folders() -> tuple[str, ...]:
    """Where installed code lies."""
    found = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in found)


def _installed(name: str | None) -> bool:
    """Whether a module is part of a package that was installed, rather than somebody's own code."""
    top = (name or "").partition(".")[0]
    if top in UNVERSIONED or top in sys.stdlib_module_names or not top:
        return top != "__main__"
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return file is not None and os.path.realpath(file).startswith(_folders())


def _place(name: str | None) -> str:
    """An installed module by its name and its package's version."""
    top = (name or "").partition(".")[0]
    plain = top in UNVERSIONED or top in sys.stdlib_module_names
    return str(name) if plain else f"{name} {getattr(sys.modules.get(top), '__version__', '')}"


class _Names:
    """Names of values; ``known`` are objects that are told apart, by what they are called."""

    def __init__(self, known: Iterable[tuple[object, str]] = ()) -> None:
        self._known = {id(value): (value, _hash("known", label)) for value, label in known}
        self._told = set(self._known)
        self._open: dict[int, int] = {}

    def of(self, value: Any) -> bytes:
        """The name of a value; raises :class:`Unnameable`."""
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, value.hex() if type(value) is float else repr(value))
        found = self._known.get(id(value))
        if found is not None:
            return found[1]
        if id(value) in self._open:  # how far up it stands
            return _hash("within", str(len(self._open) - self._open[id(value)]))
        self._open[id(value)] = len(self._open)
        try:
            name = self._name(value)
        except RecursionError:
            raise Unnameable(f"{type(value).__qualname__}, nested too deeply") from None
        finally:
            del self._open[id(value)]
        self._known[id(value)] = value, name  # held, so that no other object gets its place
        return name

    def all(self, values: Iterable[Any]) -> bytes:
        """The name of a sequence."""
        return _hash("all", *(self.of(value) for value in values))

    def members(self, values: Mapping[Any, Any], without: Iterable[str] = ()) -> bytes:
        """The name of a mapping, whatever its order."""
        left = set(without)
        keyed = sorted(((self.of(k), k) for k in values if k not in left), key=lambda pair: pair[0])
        return _hash("members", *(part for name, k in keyed for part in (name, self.of(values[k]))))

    def _name(self, value: Any) -> bytes:
        for kinds, name in _BY_KIND:
            if isinstance(value, kinds):
                return name(self, value)
        cls = type(value)
        if cls is functools.partial:
            given = (self.all(value.args), self.members(value.keywords), self.members(value.__dict__))
            return _hash("partial", self.of(value.func), *given)
        if cls.__module__ == OPERATORS:
            return _hash("operation", str(value))
        if isinstance(value, _BY_CLASS) or (_drives(cls) and not isinstance(value, dict)):
            return _hash("object", f"{cls.__module__}.{cls.__qualname__}")
        return self._object(value, cls)

    def _array(self, value: Any) -> bytes:
        array = np.asarray(value)
        content = self.all(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()
        return _hash("array", array.dtype.str, repr(array.shape), content)

    def _builtin(self, value: Any) -> bytes:
        own = getattr(value, "__self__", None)
        bound = b"" if own is None or isinstance(own, types.ModuleType) else self.of(own)
        return _hash("builtin", str(getattr(value, "__module__", "")), value.__qualname__, bound)

    def _tensor(self, value: Tensor) -> bytes:
        about = f"{value.dtype} {tuple(value.shape)} {value.layout}"
        plain = value.detach()
        if plain.is_meta:
            return _hash("tensor", about)
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        content = plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _hash("tensor", about, content)

    def _object(self, value: Any, cls: type) -> bytes:
        """By class, contents and attributes; of a class that knows how it is pickled, by that."""
        parts = [self.of(cls), *self._contents(value)]
        if len(parts) == 1 and not _is_plain(cls):
            try:
                reduce = copyreg.dispatch_table.get(cls)
                told = reduce(value) if reduce is not None else value.__reduce_ex__(2)
            except Exception as error:
                raise Unnameable(f"{cls.__module__}.{cls.__qualname__}") from error
            return _hash("object", *parts, told if isinstance(told, str) else self.all(told[:3]))
        slots = [name for kind in cls.__mro__ for name in _texts(vars(kind).get("__slots__", ()))]
        attributes = {name: getattr(value, name) for name in slots if name[:2] != "__" and hasattr(value, name)}
        attributes |= getattr(value, "__dict__", {})
        # A package that keeps hash(…) of texts keeps another number in every process.
        hashes = [n for n, v in attributes.items() if n.endswith("_hash") and isinstance(v, int)]
        return _hash("object", *parts, self.members(attributes, hashes if _installed(cls.__module__) else ()))

    def _contents(self, value: Any) -> list[bytes]:
        """What a container, or a number or text of a class of its own, holds; nothing of other objects."""
        if isinstance(value, dict | types.MappingProxyType):
            return [self.members(value)]
        if isinstance(value, set | frozenset):
            return [_hash("set", *sorted(self.of(item) for item in value))]
        if isinstance(value, list | tuple | collections.deque):
            return [self.all(value)]
        base: Any = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
        return [] if base is None else [_hash(base.__name__, base.__repr__(value))]

    # -- code --------------------------------------------------------------------------------------------------------

    def _class(self, cls: type) -> bytes:
        if not _installed(cls.__module__):
            own = {n: v for n, v in vars(cls).items() if not isinstance(v, _DESCRIPTORS)}
            return _hash("class", cls.__qualname__, self.all(cls.__bases__), self.members(own, _NOT_CODE))
        # Of what is installed the name says all, but for methods that somebody has replaced.
        others = {
            n: v
            for n, v in vars(cls).items()
            if isinstance(v, types.FunctionType) and not _installed(v.__globals__.get("__name__"))
        }
        return _hash("class", _place(cls.__module__), cls.__qualname__, self.members(others))

    def _function(self, function: types.FunctionType) -> bytes:
        inner = function.__dict__.get("_torchdynamo_orig_callable")
        if inner is not None:
            return self.of(inner)  # compiled: the same function
        if _installed(function.__globals__.get("__name__")):
            held = [_cell(cell) for cell in function.__closure__ or ()]
            place = _place(function.__globals__.get("__name__"))
            return _hash("function", place, function.__qualname__, self.all(held))
        code, read = function.__code__, []
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for name, attributes in sorted(_reads(code)):
            if name in cells:
                value = _cell(cells[name])
            elif name in function.__globals__:
                value = function.__globals__[name]
            else:
                continue  # a builtin, which the code names; or what is local to it
            read.append(_hash("reads", name, self._part(value, attributes)))
        return _hash(
            "function",
            self.of(code),
            self.of(function.__defaults__),
            self.of(function.__kwdefaults__),
            self.members(function.__dict__),
            *read,
        )

    def _part(self, value: Any, attributes: tuple[str, ...]) -> bytes:
        """What ``value.a.b`` is: of a module, or an object that holds settings, only what is read."""
        left = list(attributes)
        while left and id(value) not in self._told:
            usual: Any = object.__getattribute__
            inside = isinstance(value, types.ModuleType) or type(value).__getattribute__ is usual
            held = getattr(value, "__dict__", {}) if inside and not isinstance(value, type | nn.Module) else {}
            if left[0] not in held:
                break
            value = held[left.pop(0)]
        return _hash("part", self.of(value), *left)

    def _code(self, code: types.CodeType) -> bytes:
        numbers = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return _hash(
            "code",
            code.co_code,
            code.co_exceptiontable,
            repr(numbers),
            *(self.all(some) for some in (arguments, code.co_names, code.co_freevars, code.co_cellvars)),
            self.all(code.co_consts),
        )

    # -- models ------------------------------------------------------------------------------------------------------

    def module(self, module: nn.Module, cls: type | None = None, *, layer: bool = False) -> bytes:
        """A module: its class, attributes and hooks, with all it contains.

        Of a ``layer`` of the model that is trained, what the checkpoint holds (weights, buffers) and other layers are
        told apart.
        """
        if isinstance(module, torch.jit.ScriptModule):
            raise Unnameable(f"{type(module).__qualname__}, a scripted module")
        held = vars(module)
        cls = cls or class_of(module)
        if _drives(cls):
            return self.of(cls)
        inner_module = compiled_from(module)
        if inner_module is not None:
            return self.of(inner_module)
        running = [name for name in held if name.endswith(("ward_hooks", "ward_pre_hooks"))]
        hooks = {name: _of_people(held[name]) for name in running if _of_people(held[name])}
        apart = {n for n in held if n in MODULE_STATE or "_hooks" in n or n.startswith(_SPREAD)}
        plain = {n: v for n, v in held.items() if n not in apart}
        parts = (plain, hooks, *(_weights_apart(module) if layer else _with_weights(module)))
        return _hash("layer", self.of(cls), *(self.members(part) for part in parts))

    def optimizer(self, optimizer: Optimizer, names: Mapping[int, str], *, rates: bool = True) -> bytes:
        """An optimizer: its class, the settings of its groups and who is in them, its hooks; not its state."""
        groups = []
        for group in optimizer.param_groups:
            # A schedule moves the rate, and what it keeps is where the rate began; some move the momentum as well.
            moved = {"params"} | ({"lr"} if "initial_lr" in group or not rates else set())
            if "base_momentum" in group:
                moved |= {"momentum", "betas"}
            who = [names.get(id(p), "") for p in group["params"]]
            groups.append(_hash("group", self.all(who), self.members(group, moved)))
        held = vars(optimizer)
        hooks = {name: list(held[name].values()) for name in held if name.endswith("_hooks")}
        plain = self.members({n: v for n, v in held.items() if n not in _STATE and not n.endswith("_hooks")})
        return _hash("optimizer", self.of(type(optimizer)), *groups, self.members(hooks), plain)

    def schedule(self, scheduler: Any) -> bytes:
        """A schedule: its class and settings; not how far it is."""
        if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
            return self.of(scheduler)
        inner = getattr(scheduler, INNER_SCHEDULES, ())
        plain = self.members({n: v for n, v in vars(scheduler).items() if n not in _COUNTS and n != INNER_SCHEDULES})
        return _hash("schedule", self.of(type(scheduler)), plain, *(self.schedule(one) for one in inner))


def _with_weights(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Buffers, what is inside, and shapes of a module: all of it."""
    return dict(own_buffers(module)), {**own_modules(module), **own_parameters(module)}, {}


def _weights_apart(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Buffers, what is inside, and shapes of a layer: of what a checkpoint holds, the shapes alone."""
    buffers = {n: v for n, v in own_buffers(module).items() if n in unsaved_buffers(module)}
    tensors = {**own_parameters(module), **own_buffers(module)}
    shapes = {n: None if t is None else [t.dtype, tuple(t.shape), t.requires_grad] for n, t in tensors.items()}
    return buffers, {}, shapes


def _module_name(module: types.ModuleType) -> str:
    return _place(module.__name__) if _installed(module.__name__) else module.__name__


#: How values of each kind are named; the first that fits.
_BY_KIND: tuple[tuple[Any, Callable[[_Names, Any], bytes]], ...] = (
    (Tensor, _Names._tensor),
    ((np.ndarray, np.generic), _Names._array),
    (type, _Names._class),
    (types.FunctionType, _Names._function),
    (types.CodeType, _Names._code),
    (types.MethodType, lambda names, v: _hash("method", names.of(v.__self__), names.of(v.__func__))),
    (_BUILTIN, _Names._builtin),
    (types.ModuleType, lambda names, v: _hash("module", _module_name(v))),
    (nn.Module, _Names.module),
    (Optimizer, lambda names, v: names.optimizer(v, {})),
    (property, lambda names, v: _hash("property", names.all((v.fget, v.fset, v.fdel)))),
    ((classmethod, staticmethod), lambda names, v: _hash(type(v).__name__, names.of(v.__func__))),
    (functools.cached_property, lambda names, v: _hash("property", names.of(v.func))),
    (enum.Enum, lambda names, v: _hash("enum", names.of(type(v)), v.name)),
    (os.PathLike, lambda names, v: _hash("path", os.fspath(v))),
    (torch.Generator, lambda names, v: _hash("generator", names._tensor(v.get_state()))),
    (torch.device, lambda names, v: _hash("device")),  # where is not what
    ((torch.dtype, torch.layout, torch.memory_format, np.dtype), lambda names, v: _hash("torch", str(v))),
    (weakref.ref, lambda names, v: _hash("weak", names.of(v()))),
)


def _drives(cls: type) -> bool:
    return f"{cls.__module__}.".startswith(MACHINERY) or issubclass(cls, OneProcess)


def _is_plain(cls: type) -> bool:
    """Whether the attributes of its objects are all there is to them: a class written in Python."""
    if type(cls).__name__ == "pybind11_type":
        return False
    for kind in cls.__mro__[:-1]:
        hidden = not kind.__flags__ & _HEAP or "__reduce__" in vars(kind) or "__reduce_ex__" in vars(kind)
        if hidden and _installed(kind.__module__):
            return False
    return True


#: Py_TPFLAGS_HEAPTYPE: made by a class statement, or by a C library that makes its types as that does.
_HEAP = 1 << 9


def _of_people(hooks: Mapping[Any, Any]) -> list[Any]:
    """The hooks that change what is computed, without those that spread it over ranks."""

    def spreads(hook: Any) -> bool:
        hook = hook.func if isinstance(hook, functools.partial) else hook
        if isinstance(hook, types.MethodType):
            return _drives(type(hook.__self__))
        return isinstance(hook, types.FunctionType) and f"{hook.__module__}.".startswith(MACHINERY)

    return [hook for hook in hooks.values() if not spreads(hook)]


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _texts(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


@functools.lru_cache(maxsize=4096)
def _reads(code: types.CodeType) -> frozenset[tuple[str, tuple[str, ...]]]:
    """The names from outside that some code, and the code within it, reads, each with the attributes taken of it."""
    found = set()
    name, attributes = "", []
    for step in [*dis.get_instructions(code), None]:
        if step is not None and name and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.append(str(step.argval))
            continue
        if name:
            found.add((name, tuple(attributes)))
        name, attributes = "", []
        if step is not None and step.opname in _LOADS:
            name = str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _reads(constant)
    return frozenset(found)


_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_LOADS |= {"LOAD_FROM_DICT_OR_GLOBALS"}

#: What is computed, part by part: its word for people, and its name, None where it has none.
Parts = dict[str, tuple[str, bytes | None]]


def parts_of(
    model: nn.Module,
    loss: Any,
    optimizer: Optimizer | None,
    scheduler: Any = None,
    *,
    moved: bool = False,
    **others: Any,
) -> Parts:
    """What a run computes, part by part; ``others`` are further functions and settings, by their names in messages.

    ``moved``: the optimizer may have been taken up from a checkpoint already, with the rates that a schedule left.
    """
    layers = list(model.named_modules())
    tensors, saved = [*model.named_parameters(), *model.named_buffers()], set(model.state_dict())
    known: list[tuple[object, str]] = [(layer, f"layer {name}") for name, layer in layers]
    known += [(tensor, f"tensor {name}") for name, tensor in tensors if name in saved]
    known += [(optimizer, "the optimizer")] if optimizer is not None else []
    names = _Names(known)
    where = {id(p): name for name, p in model.named_parameters()}
    found: Parts = {}

    def put(part: str, word: str, name: Callable[[], bytes]) -> None:
        try:
            found[part] = word, name()
        except Unnameable as reason:
            found[part] = f"{word} with {reason}" if word != str(reason) else word, None
        except Exception as error:  # noqa: BLE001 an object that cannot even be looked at has no name, and a warning says so
            found[part] = f"{word}, where {type(error).__name__} was raised by something in it", None

    for version, number in _versions().items():
        found[f"the version of {version}"] = number, _hash("version", number)
    for path, layer in layers:
        cls = class_of(layer)
        part = f"the model's {path}" if path else "the model"
        put(part, cls.__qualname__, functools.partial(names.module, layer, cls, layer=True))
    put("the loss", _word(loss), lambda: names.of(loss))
    if optimizer is not None:
        put(
            "the optimizer",
            _word(optimizer),
            lambda: names.optimizer(optimizer, where, rates=not moved or scheduler is None),
        )
    if scheduler is not None:
        put("the schedule", _word(scheduler), lambda: names.schedule(scheduler))
    for part, value in others.items():
        put(part, _word(value), functools.partial(names.of, value))
    return found


def _versions() -> dict[str, str]:
    from tacit import __version__

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"Python": python, "torch": ".".join(torch.__version__.split(".")[:2]), "tacit": __version__}


def _word(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def keyed(parts: Parts, secret: bytes) -> dict[str, list[str | None]]:
    """The parts as a checkpoint keeps them.

    What a run computes may hold values of the private data (a loss with weights of classes, say), and the plain name of
    a value tells whoever guesses it that the guess is right; a keyed one tells nothing without the key.
    """

    def name(digest: bytes | None) -> str | None:
        return None if digest is None else hashlib.blake2b(digest, key=secret, digest_size=16).hexdigest()

    return {part: [word, name(digest)] for part, (word, digest) in parts.items()}


def differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Which parts are not as they were, in words."""
    if before is None:
        return ["the code (this checkpoint does not say what it was)"]
    found = []
    for part in {**before, **now}:
        (was, old), (word, new) = before.get(part, (None, None)), now.get(part, (None, None))
        if old is not None and old == new:
            continue
        if was != word:
            change = f"{was or 'not there'} before, {word or 'gone'} now"
        elif new is None:
            change = f"{word}, which cannot be recognised in a later process"
        else:
            change = word if part.startswith("the version") else f"code or settings of {word}"
        found.append(f"{part} ({change})")
    return found if len(found) < 5 else [*found[:3], f"{len(found) - 3} more parts"]
