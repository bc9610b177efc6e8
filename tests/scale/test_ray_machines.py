"""Two machines of a Ray cluster, one of them killed -9 half-way: teachers are trained again on the other, and equal."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tacit.cluster import Ray
from tacit.linear_model import LinearRegression, releases
from tacit.noise import Key
from tacit.pate import ConfidentGNMax, Teachers

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
KEY = Key(bytes(range(32)))


@pytest.fixture(scope="module")
def machines():
    """A head that computes nothing, and two machines of one CPU each, as processes of their own."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 4, "health_check_initial_delay_ms": 500}
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    yield nodes
    ray.shutdown()
    cluster.shutdown()


def test_sums_over_a_data_set_of_ray_are_those_of_the_table_in_memory(machines, monkeypatch, tmp_path):
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 11, (300_000, 2))
    frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 2 * x[:, 0] - x[:, 1]})
    for i in range(3):
        frame.slice(100_000 * i, 100_000).write_parquet(tmp_path / f"{i}.parquet")
    settings: dict[str, Any] = {"bounds": {"a": (0, 10), "b": (0, 10)}, "target_bounds": (-15, 25)}
    seen = []
    real = releases.moments
    monkeypatch.setattr(releases, "moments", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    data = ray.data.read_parquet(str(tmp_path))
    private = LinearRegression(20.0, backend="ray", **settings).fit(data, "y")
    assert private.coef_ == pytest.approx([2.0, -1.0], abs=0.1)
    LinearRegression(20.0, method="sufficient-statistics", **settings).fit(frame[["a", "b"]], frame["y"])
    assert (seen[0] == seen[1]).all()
    with pytest.raises(ValueError, match="backend='ray'"):
        LinearRegression(20.0, **settings).fit(data, "y")


def test_estimators_are_searched_on_the_cluster_within_one_budget(machines):
    from tacit.sgd import Classifier
    from tacit.tuning import PrivateSearchCV

    x = np.random.default_rng(0).uniform(-1, 1, (3000, 2))
    estimator = Classifier(bounds=(-1, 1), epochs=3)
    search = PrivateSearchCV(estimator, {"learning_rate": [0.01, 2.0]}, epsilon=3.0, delta=1e-5, runs=4, backend="ray")
    search.fit(x, x[:, 0] > 0)
    assert search.privacy_.upper <= 3.0
    assert search.best_params_["learning_rate"] in (0.01, 2.0)
    assert search.predict(x).shape == (3000,)


def test_64_torch_teachers_over_two_machines_one_of_them_killed_are_those_of_one_machine(machines, tmp_path):
    folder, driver = str(tmp_path), os.getpid()
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 1280)
    x = (rng.normal(size=(1280, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32)

    def network() -> torch.nn.Module:
        if os.getpid() != driver:
            node = ray.get_runtime_context().get_node_id()
            (Path(folder) / f"{node}-{os.getpid()}-{time.monotonic_ns()}").touch()
        parts = [torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3)]
        return torch.nn.Sequential(*parts)

    options: dict[str, Any] = {"steps": 200, "together": 4, "average": 0.9}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        here = Teachers(network, (x, y), n=64, key=KEY).fit(**options)
    finally:
        torch.set_num_threads(threads)

    victim = machines[1]

    def kill_half_way() -> None:
        while sum(path.name.startswith(victim.node_id) for path in tmp_path.iterdir()) < 10:
            time.sleep(0.01)  # two and a half stacks have begun there
        workers = {int(path.name.split("-")[1]) for path in tmp_path.iterdir() if path.name.startswith(victim.node_id)}
        machine = [info.process.pid for infos in victim.all_processes.values() for info in infos]
        for process in [*machine, *workers]:
            os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill_half_way, daemon=True)
    killer.start()
    there = Teachers(network, (x, y), n=64, key=KEY, backend=Ray(retries=2)).fit(**options)
    killer.join(timeout=1)
    assert not killer.is_alive()
    begun = list(tmp_path.iterdir())
    assert len({path.name.split("-")[0] for path in begun}) == 2  # both machines had taken part
    assert len(begun) > 64  # and the lost ones were trained again
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    assert victim.node_id not in alive
    for one, other in zip(here._fitted[0].models, there._fitted[0].models, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
    votes = here.vote(x[:100])
    assert (votes.counts == there.vote(x[:100]).counts).all()
    answers = ConfidentGNMax(threshold=40, check_noise=5, vote_noise=5, classes=3).answer(votes, queries=100)
    assert answers.privacy.claim > 0
