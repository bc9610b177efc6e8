"""On a Ray cluster the results are those of one machine, bit for bit, also when a worker is killed half-way."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tacit import accounting as acc
from tacit.cluster import ClusterError, Ray
from tacit.ledger import Ledger
from tacit.linear_model import LinearRegression, cluster_moments, releases
from tacit.noise import Key
from tacit.pate import Teachers
from tacit.sgd import Training
from tacit.tuning import PrivateSearch, Score, TuningError, runs

ray = pytest.importorskip("ray")
KEY = Key(bytes(range(32)))


@pytest.fixture(scope="module", autouse=True)
def two_workers():
    """One small cluster for all of them, of two real worker processes."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def people(rows: int = 640) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, rows)
    return (rng.normal(size=(rows, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32), y


def kill_one(folder: Path, after: int) -> threading.Thread:
    """Kill -9 whatever process was the ``after``-th to leave its number in the folder."""

    def watch() -> None:
        while len(list(folder.iterdir())) < after:
            time.sleep(0.005)
        latest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.kill(int(latest.name.split("-")[0]), signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def leave_number(folder: str) -> None:
    """Said by a task: here is my process, and I take a moment."""
    (Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(0.03)


def test_64_teachers_over_two_workers_one_of_them_killed_vote_as_local_ones(tmp_path):
    folder, driver = str(tmp_path), os.getpid()

    def centroids(x: Any, y: Any) -> Any:
        """A teacher that draws from numpy's and torch's own generators."""
        if os.getpid() != driver:
            leave_number(folder)
        seen = np.random.permutation(len(x))[: len(x) // 2 + 1]  # noqa: NPY002
        middles = np.stack([x[seen][y[seen] == c].mean(axis=0) if (y[seen] == c).any() else 9 + x[0] for c in range(3)])
        middles = middles + 0.1 * torch.randn(3, 4).numpy()
        return lambda rows: ((rows[:, None] - middles) ** 2).sum(axis=2).argmin(axis=1)

    data, (public, _) = people(), people(200)
    here = Teachers(centroids, data, n=64, key=KEY, classes=3).fit()
    killer = kill_one(tmp_path, after=20)
    there = Teachers(centroids, data, n=64, key=KEY, classes=3, backend="ray").fit()
    killer.join()
    assert len(list(tmp_path.iterdir())) > 64  # some began twice
    assert (
        len({path.name.split("-")[0] for path in tmp_path.iterdir()}) >= 3
    )  # two workers and one in place of the dead
    assert (here._predict(public) == there._predict(public)).all()
    assert (here.vote(public).counts == there.vote(public).counts).all()


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)
    )


def jitter(rows: torch.Tensor) -> torch.Tensor:
    return rows + 0.1 * torch.randn_like(rows)


def test_stacked_torch_teachers_have_the_same_weights_to_the_last_bit():
    data, threads = people(300), torch.get_num_threads()
    options: dict[str, Any] = {"steps": 30, "together": 5, "augment": jitter, "average": 0.9}
    try:
        torch.set_num_threads(1)  # as many as a task with one CPU has
        here = Teachers(network, data, n=16, key=KEY).fit(**options)
    finally:
        torch.set_num_threads(threads)
    there = Teachers(network, data, n=16, key=KEY, backend=Ray(retries=0)).fit(**options)
    for one, other in zip(here._fitted[0].models, there._fitted[0].models, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name


def logistic(candidate: dict[str, Any], noise: float) -> Training:
    if "folder" in candidate:
        leave_number(candidate["folder"])
    x, y = people(400)
    model = torch.nn.Linear(4, 3)
    return Training(
        model,
        torch.optim.SGD(model.parameters(), lr=candidate["learning_rate"]),
        torch.nn.CrossEntropyLoss(reduction="none"),
        (torch.as_tensor(x), torch.as_tensor(y)),
        batch_size=50,
        steps=15,
        noise_multiplier=noise,
        delta=1e-6,
    )


def right(model: torch.nn.Module) -> float:
    x, y = people(400)
    with torch.no_grad():
        return float((model(torch.as_tensor(x)).argmax(1).numpy() == y).sum())


def test_a_search_selects_what_the_same_runs_give_here_and_charges_once(tmp_path, monkeypatch):
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-5)
    search = PrivateSearch(
        {"learning_rate": [0.01, 0.3, 3.0]},
        logistic,
        Score(right),
        epsilon=3.0,
        delta=1e-6,
        runs=5,
        ledger=ledger,
        dataset="people",
        backend="ray",
    )
    drawn = [({"learning_rate": rate, "folder": str(tmp_path)}, lot) for lot, rate in enumerate([0.3, 3.0, 0.01, 0.3])]
    begin = search._begin
    monkeypatch.setattr(search, "_begin", lambda: begin() | {"waiting": list(drawn)})
    secrets = [bytes([i]) * 32 for i in range(4)]
    left = iter(secrets)
    monkeypatch.setattr(search, "_secret", lambda lot: next(left))
    found = search.run()
    assert len(list(tmp_path.iterdir())) == 4

    here = [
        runs.run_again(logistic, search.score, candidate, search.noise, search._trained[0], lot, secret)
        for (candidate, lot), secret in zip(drawn, secrets, strict=True)
    ]
    best = max(here, key=lambda one: one.rank)
    assert not best.error
    assert (found.best, found.score) == (best.candidate, best.score)
    assert torch.equal(found.model.weight, best.model.weight)
    assert len({one.score for one in here}) == 4  # each run has randomness of its own
    assert ledger.budget("people").charges == 1


def dies(candidate: dict[str, Any], noise: float) -> str:
    print("a candidate speaks")
    os.write(2, b"and so does its C library: a candidate speaks\n")
    with (Path(candidate["folder"]) / "tries").open("a") as file:
        file.write(candidate["which"])
    if candidate["which"] == "d":
        os.kill(os.getpid(), signal.SIGKILL)
    return str(candidate["which"])


def made_of(space: Any, **changes: Any) -> PrivateSearch:
    usual: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "runs": 2, "method": "poisson"} | changes
    return PrivateSearch(
        space, dies, Score(lambda model: 1e6), mechanism=lambda candidate, noise: acc.Gaussian(noise), **usual
    )


def test_a_candidate_that_is_lost_for_good_has_failed_and_is_not_drawn_anew(tmp_path, monkeypatch):
    space = [{"which": which, "folder": str(tmp_path)} for which in "ds"]
    search = made_of(space, backend=Ray(retries=1))
    begin = search._begin
    monkeypatch.setattr(search, "_begin", lambda: begin() | {"waiting": [(dict(space[0]), 0), (dict(space[1]), 1)]})
    assert search.run().model == "s"
    assert sorted((tmp_path / "tries").read_text()) == ["d", "d", "s"]
    # Runs beyond the one that is good enough go on beside it, and are thrown away.
    assert made_of(space[1:], method="threshold", threshold=0.0, backend=Ray(at_once=2)).run().model == "s"
    # How many candidates there were is private, so what they print reaches no log of the cluster.
    logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
    written = [path.read_bytes() for path in logs.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not any(b"a candidate speaks" in text for text in written)


def table() -> pl.DataFrame:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 11, (25_000, 2))
    return pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 2 * x[:, 0] - x[:, 1] + rng.normal(size=len(x))})


SETTINGS: dict[str, Any] = {"bounds": {"a": (0, 10), "b": (0, 10)}, "target_bounds": (-15, 25)}


def sums_of(monkeypatch: pytest.MonkeyPatch, source: Any, backend: Any) -> Any:
    seen = []
    real = releases.moments
    with monkeypatch.context() as patch:
        patch.setattr(releases, "moments", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
        private = LinearRegression(20.0, backend=backend, **SETTINGS).fit(source, "y")
    assert private.coef_ == pytest.approx([2.0, -1.0], abs=0.1)
    return seen[0]


def test_sums_over_files_are_those_of_one_machine_and_nothing_is_charged_for_a_mistake(tmp_path, monkeypatch):
    frame = table()
    frame.head(9_000).write_parquet(tmp_path / "1.parquet", row_group_size=1000)
    frame.tail(16_000).write_parquet(tmp_path / "2.parquet")
    frame.write_ipc(tmp_path / "t.arrow")
    frame.write_csv(tmp_path / "t.csv")
    monkeypatch.setattr(cluster_moments, "PER_TASK", 3_700)
    here = sums_of(monkeypatch, tmp_path, "local")
    assert (sums_of(monkeypatch, tmp_path, "ray") == here).all()
    assert (sums_of(monkeypatch, str(tmp_path / "t.arrow"), Ray(num_cpus=2)) == here).all()

    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-3)

    def fit(source: Any, **changes: Any) -> None:
        LinearRegression(ledger=ledger, backend="ray", **SETTINGS | changes).fit(source, "y")

    with pytest.raises(ValueError, match=r"not of 't.csv': convert it"):
        fit(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="not a LazyFrame"):
        fit(frame.lazy())
    with pytest.raises(ValueError, match="This table is in memory"):
        fit(frame)
    with pytest.raises(ValueError, match="one pass"):
        fit(tmp_path, method="gradient-descent")
    with pytest.raises(ClusterError, match="no machine"):
        LinearRegression(ledger=ledger, backend=Ray(num_gpus=4), **SETTINGS).fit(tmp_path, "y")
    with pytest.raises(ClusterError, match="no machine"):
        made_of([{"which": "s"}], ledger=ledger, dataset="people", backend=Ray(num_gpus=4)).run()
    assert ledger.budget("people").charges == 0
    frame.with_columns(b=pl.lit(math.nan)).write_parquet(tmp_path / "3.parquet")
    with pytest.raises(ValueError, match="NaN"):  # raised by a worker, told here as it is
        fit(tmp_path)


def test_a_cluster_that_cannot_do_it_is_refused_with_what_to_do(monkeypatch):
    data = people(60)
    with pytest.raises(ClusterError, match=r"no machine of the cluster has 1 CPU and 4 GPU"):
        Teachers(network, data, n=4, backend=Ray(num_gpus=4)).fit(steps=1)
    with pytest.raises(ValueError, match="n_jobs"):
        Teachers(network, data, n=4, backend="ray").fit(n_jobs=2)
    with pytest.raises(TuningError, match="workers="):
        PrivateSearch({"a": [1]}, dies, Score(len), epsilon=1.0, delta=1e-6, workers=2, backend="ray")
    with pytest.raises(ValueError, match="backend must be 'local', 'ray'"):
        Teachers(network, data, n=4, backend="dask")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"tacit\[ray\]"):
        Teachers(network, data, n=4, backend="ray")
