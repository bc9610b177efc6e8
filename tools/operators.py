"""Do the rules of ownership hold for the samples that torch keeps for its own operators?

``python -m tools.operators [SAMPLES]`` gives the inputs of each sample to three examples (rows, columns, or element by
element at random), asks whose the results are, and changes everything that one example owns. An element that changes
and was said to be neither its own nor of several is a rule that says too little. Operators that draw random numbers get
the same ones each time; memory that nothing was written to is left out.
"""

from __future__ import annotations

import collections
import sys
import warnings
from typing import Any

import torch
from tests.sgd.test_ownership import EXAMPLES, changed, owned
from torch import Tensor

from tacit.sgd.gradients.ownership.ids import DTYPE, MIXED
from tacit.sgd.gradients.ownership.piles import FIRST
from tacit.sgd.gradients.ownership.tracker import OwnershipMode
from tacit.sgd.torch_compat import pytree

MOST, LARGEST = 12, 4096


def results(function: Any, values: Any) -> list[Tensor]:
    """The tensors that a call gives."""
    torch.manual_seed(0)
    return [t for t in pytree.tree_leaves(function(*values[0], **values[1])) if isinstance(t, Tensor)]


def too_little(function: Any, sample: Any, how: str) -> str:
    """What a case shows: ``fine``, ``read``, or ``wrong``."""
    generator = torch.Generator().manual_seed(3)
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def call(tensors: list[Tensor]) -> Any:
        swapped = list(leaves)
        for k, tensor in zip(places, tensors, strict=True):
            swapped[k] = tensor
        return pytree.tree_unflatten(swapped, spec)

    given = [leaves[k].detach().clone() for k in places]
    owners = [owned(t, how, generator) for t in given]
    before = [t.clone() for t in results(function, call([t.clone() for t in given]))]
    tracker, watched = OwnershipMode(), [t.clone() for t in given]
    for tensor, some in zip(watched, owners, strict=True):
        tracker.write(tensor, some)
    with tracker:
        made = results(function, call(watched))
        said = [tracker.owners(t) for t in made]
    if tracker.reads:
        return "read"
    for example in range(EXAMPLES):
        other = [changed(t, o, example, generator) for t, o in zip(given, owners, strict=True)]
        try:
            after = results(function, call(other))
        except Exception:  # noqa: BLE001  # not every operator takes every value
            continue
        for one, two, mine in zip(before, after, said, strict=True):
            if one.shape != two.shape or one.layout is not torch.strided:
                return "read" if one.shape == two.shape else "wrong"
            differ = ~torch.isclose(one, two, rtol=1e-7, atol=1e-9, equal_nan=True)
            mine = torch.zeros(one.shape, dtype=DTYPE) if mine is None else mine
            if bool((differ & (mine != example + 1) & (mine != MIXED) & (mine < FIRST)).any()):
                return "wrong"
    return "fine"


def main() -> None:
    """Go through all operators, and print how often each answer came, and which operators were wrong."""
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.filterwarnings("ignore")
    count: collections.Counter[str] = collections.Counter()
    wrong: collections.Counter[str] = collections.Counter()
    most = int(sys.argv[1]) if len(sys.argv) > 1 else MOST
    for info in op_db:
        if "empty" in info.name:
            continue
        kind = next((t for t in (torch.float64, torch.float32, torch.int64) if t in info.dtypes), None)
        if kind is None:
            continue
        try:
            samples = [s for _, s in zip(range(most), info.sample_inputs("cpu", kind), strict=False)]
        except Exception:  # noqa: BLE001  # samples that need what this machine has not
            count["no samples"] += 1
            continue
        for sample in samples:
            tensors = [
                t for t in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, Tensor)
            ]
            if sum(t.numel() for t in tensors) > LARGEST or any(t.layout is not torch.strided for t in tensors):
                continue
            for how in ("rows", "columns", "by chance"):
                try:
                    told = too_little(info.op, sample, how)
                except Exception as error:  # noqa: BLE001  # counted, and not hidden
                    told = f"error {type(error).__name__}"
                count[told] += 1
                wrong[info.name] += told == "wrong"
    print(sum(count.values()), "cases:", dict(count))
    print("wrong:", {name: n for name, n in wrong.items() if n})


if __name__ == "__main__":
    sys.exit(main())
