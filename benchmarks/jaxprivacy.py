"""What does a private step cost in JAX Privacy, next to jitted plain SGD in JAX? Two workloads of the tables.

    python -m benchmarks jaxprivacy [--only mlp cnn] [--micro 0 1024 4096] [--repeat 7] [--json FILE]

Needs jax and jax_privacy, which tacit does not install: without them it says so and measures nothing. A private step is
gathering random rows, ``jax_privacy.clipped_grad``, Gaussian noise and SGD with momentum, jitted whole; a plain step is
the same with an ordinary gradient. Several sizes of micro-batches are tried (0: the whole batch at once). Steps are
chained, and the device is waited for once for each repeat.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCHES = {"mlp": 16_384, "cnn": 4_096}
CLIP_NORM = 1.0


def workload(name: str, batch: int) -> tuple[Any, Callable[..., Any], tuple[Any, Any]]:
    """Weights, the mean loss of a batch, and records: the MLP 64-256-256-2, or the network for MNIST."""
    import jax
    import jax.numpy as jnp

    keys = iter(jax.random.split(jax.random.key(0), 16))

    def weight(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape) * 0.05

    def dense(*sizes: int) -> list[Any]:
        return [(weight(a, b), jnp.zeros(b)) for a, b in itertools.pairwise(sizes)]

    def through(layers: list[Any], x: Any) -> Any:
        for w, b in layers[:-1]:
            x = jax.nn.relu(x @ w + b)
        return x @ layers[-1][0] + layers[-1][1]

    def convolve(x: Any, layer: Any, stride: int, pad: int) -> Any:
        out = jax.lax.conv_general_dilated(x, layer[0], (stride, stride), [(pad, pad)] * 2)
        return jax.nn.relu(out + layer[1][:, None, None])

    def pooled(x: Any) -> Any:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")

    if name == "mlp":
        start: Any = dense(64, 256, 256, 2)
        x, classes = jax.random.normal(next(keys), (4 * batch, 64)), 2
        scores = through
    else:
        start = {
            "one": (weight(16, 1, 8, 8), jnp.zeros(16)),
            "two": (weight(32, 16, 4, 4), jnp.zeros(32)),
            "rest": dense(512, 32, 10),
        }
        x, classes = jax.random.normal(next(keys), (4 * batch, 1, 28, 28)), 10

        def scores(p: Any, x: Any) -> Any:
            h = pooled(convolve(x, p["one"], 2, 3))
            h = pooled(convolve(h, p["two"], 2, 0))
            return through(p["rest"], h.reshape(len(h), -1))

    y = jax.random.randint(next(keys), (4 * batch,), 0, classes)

    def loss(p: Any, some: Any) -> Any:
        inputs, labels = some
        told = jax.nn.log_softmax(scores(p, inputs))
        return -jnp.take_along_axis(told, labels[:, None], 1).mean()

    return start, loss, (x, y)


def step_of(name: str, batch: int, private: bool, micro: int | None) -> tuple[Callable[..., Any], Any]:
    """A jitted step of (weights, momentum, key), and where it starts."""
    import jax
    import jax.numpy as jnp

    start, loss, (x, y) = workload(name, batch)
    if private:
        import jax_privacy

        gradient: Any = jax_privacy.clipped_grad(
            loss, l2_clip_norm=CLIP_NORM, batch_argnums=1, normalize_by=batch, microbatch_size=micro
        )
    else:
        gradient = jax.grad(loss)

    def step(weights: Any, momentum: Any, key: Any, x: Any, y: Any) -> Any:
        key, rows, noise = jax.random.split(key, 3)
        chosen = jax.random.randint(rows, (batch,), 0, len(x))
        found = gradient(weights, (x[chosen], y[chosen]))
        if private:
            leaves, tree = jax.tree.flatten(found)
            own = jax.random.split(noise, len(leaves))
            drawn = [jax.random.normal(own[k], g.shape) for k, g in enumerate(leaves)]
            found = tree.unflatten([g + CLIP_NORM / batch * z for g, z in zip(leaves, drawn, strict=True)])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, found)
        return jax.tree.map(lambda w, m: w - 1e-3 * m, weights, momentum), momentum, key

    jitted = jax.jit(step, donate_argnums=(0, 1))
    return lambda state: jitted(*state, x, y), (start, jax.tree.map(jnp.zeros_like, start), jax.random.key(1))


def measure(name: str, batch: int, private: bool, micro: int | None, repeat: int, seconds: float) -> float:
    """Milliseconds a step, the median of repeats of about ``seconds`` each."""
    import jax

    step, state = step_of(name, batch, private, micro)
    for _ in range(3):
        state = step(state)
    jax.block_until_ready(state)
    began = time.perf_counter()
    state = jax.block_until_ready(step(state))
    count = max(1, min(100, int(seconds / max(1e-6, time.perf_counter() - began))))
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        for _ in range(count):
            state = step(state)
        jax.block_until_ready(state)
        times.append((time.perf_counter() - began) / count)
    return statistics.median(times) * 1e3


def main(argv: list[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="*", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--micro", nargs="*", type=int, default=[0, 512, 2048], help="micro-batches; 0: no cutting")
    parser.add_argument("--batch", type=int, default=None, help="another batch, to try it out")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each repeat")
    parser.add_argument("--json", default=None, help="also write everything here")
    options = parser.parse_args(argv)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
        import jax_privacy
    except ImportError as error:
        print(f"{error.name} is not installed here: nothing is measured")
        return 0
    results: dict[str, Any] = {}
    for name in options.only:
        batch = options.batch or BATCHES[name]
        plain = measure(name, batch, False, None, options.repeat, options.seconds)
        results[name] = row = {"rows": batch, "plain, jitted": plain, "private": {}}
        print(f"== {name} ({batch} rows): plain, jitted {plain:.3f} ms", flush=True)
        for micro in options.micro:
            if micro >= batch:
                continue
            try:
                found = measure(name, batch, True, micro or None, options.repeat, options.seconds)
            except Exception as error:  # noqa: BLE001 no memory for all gradients at once, say: a micro-batch may fit
                print(f"  micro-batch {micro or batch}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
                continue
            row["private"][micro or batch] = found
            print(f"  micro-batch {micro or batch}: {found:.3f} ms, {found / plain:.2f}x", flush=True)
    about = {"jax": jax.__version__, "jax_privacy": jax_privacy.__version__, "device": str(jax.devices()[0])}
    about |= {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    print(about)
    if options.json:
        Path(options.json).write_text(json.dumps({"about": about, "results": results}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
