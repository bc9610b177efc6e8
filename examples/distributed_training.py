"""One private run on two ranks, and the same run on one: the same noise, the same weights, one charge.

The script below is what ``torchrun --nproc-per-node=2`` would start; here it starts its two processes itself (gloo, on
this machine). The model is sharded by ``fully_shard``. Run it with ``python -m examples.distributed_training``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn

import tacit
from tacit import sgd
from tacit.noise import Key

RANKS = 2


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """The same on every rank: two clouds of points."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(2, (2000,), generator=draw)
    return torch.randn(2000, 20, generator=draw) + 0.7 * y[:, None], y


def train(folder: Path, **settings: object) -> sgd.Training:
    """The training script: nothing in it says how many ranks there are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    if dist.is_initialized():
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0])
        fully_shard(model[2])
        fully_shard(model)
    training = sgd.Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        nn.CrossEntropyLoss(reduction="none"),
        make_data(),
        batch_size=200,
        epochs=3,
        epsilon=2.0,
        delta=1e-5,
        ledger=tacit.Ledger(folder / "ledger.db"),
        dataset="people",
        key=Key(bytes(range(32))),  # only so that two runs can be compared: leave it out, and it is a secret
        **settings,
    )
    for batch in training:
        training.step(batch)
    return training


def rank(number: int, folder: Path) -> None:
    """What a launcher starts on each rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=RANKS)
    training = train(folder)
    weights = {name: p.full_tensor() for name, p in training.model.state_dict().items()}
    if number == 0:
        print(f"{training.layout}\n{training.privacy}")
        torch.save(weights, folder / "weights.pt")
    del training, weights  # a sharded model holds on to the group
    dist.barrier()  # and no rank leaves while another may still be talking to it
    dist.destroy_process_group()


def main() -> None:
    """Two ranks, then one process; compare."""
    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ledger = tacit.Ledger(folder / "ledger.db")
        ledger.register("people", epsilon=5.0, delta=1e-4)
        processes.spawn(rank, (folder,), nprocs=RANKS)
        print(f"charges in the ledger after two ranks: {ledger.budget('people').charges}")
        alone = train(folder).model.state_dict()
        shared = torch.load(folder / "weights.pt")
        print(f"largest difference to one process: {max(float((shared[n] - alone[n]).abs().max()) for n in alone):.1e}")
        x, y = make_data()
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
        model.load_state_dict(shared)
        print(f"accuracy: {float((model(x).argmax(1) == y).float().mean()):.3f}")


if __name__ == "__main__":
    main()
