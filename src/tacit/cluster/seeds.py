"""How does a task draw the same random numbers wherever, and after whatever, it runs?"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def seeded(seed: int, *, torch_too: bool = False) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch, and restore them afterwards.

    Otherwise what a task draws would depend on what was drawn before it in the same process: on other people's data,
    and on where it runs.

    Args:
        seed: The seed, an integer of 0 or more.
        torch_too: Whether to import torch if it is not loaded yet, because the task may be about to.

    Returns:
        A context manager.

    Example:
        >>> with seeded(7):
        ...     first = random.random()
        >>> with seeded(7):
        ...     first == random.random()
        True
    """
    if torch_too:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("torch")
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        random.seed(seed)
        if numpy is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
            numpy.random.seed(seed % 2**32)
        if torch is not None:
            devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
            stack.enter_context(torch.random.fork_rng(devices=devices))
            torch.manual_seed(seed % 2**63)
        yield
