"""Is randomness what it should be? Exact samplers against their laws, out to the tails; streams that never repeat."""

from __future__ import annotations

import math
import os
import pickle
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special, stats

from tacit import noise
from tacit.audit import implementation as look
from tacit.audit import statistics
from tacit.audit.findings import Finding, holds
from tacit.noise import Key, KeyFileError
from tacit.noise.entropy import expanded
from tacit.selftest.laws import check_law
from tacit.selftest.ranks import on_ranks, possible
from tacit.selftest.scene import Scene, refused

MANY = 6000


def _goodness(name: str, values: Any, pmf: Callable[[Any], Any], reach: int) -> Finding:
    """χ² of whole numbers against their law, the tails put together."""
    seen = np.asarray(values)
    inside = np.arange(-reach, reach + 1)
    expected = np.append(np.asarray(pmf(inside), dtype=float), 0.0)
    expected[-1] = max(1 - expected.sum(), 1e-12)
    counts = np.append([(seen == k).sum() for k in inside], (np.abs(seen) > reach).sum())
    good = expected * len(seen) >= 8
    observed = np.append(counts[good], counts[~good].sum())
    wanted = np.append(expected[good], expected[~good].sum()) * len(seen)
    keep = wanted > 0
    total = float(((observed - wanted)[keep] ** 2 / np.maximum(wanted[keep], 1e-9)).sum())
    # The χ² law of counts that are not large is a little wide: a hundredth in reserve for that.
    p = min(1.0, 100 * float(stats.chi2.sf(total, int(keep.sum()) - 1)))
    return Finding(name, p, f"χ² = {total:.1f} over {int(keep.sum())} values")


def samplers_have_their_laws(seed: int) -> list[Finding]:
    """Discrete and continuous noise, choices and counts, each against its law."""
    gaussian = np.asarray(noise.add_gaussian(np.zeros(2 * MANY), 3.0)) / 3.0
    laplace = np.asarray(noise.add_laplace(np.zeros(MANY), 2.0)) / 2.0
    k = np.arange(-60, 61)
    sigma, scale = 2.5, 1.7
    total = np.exp(-(k**2) / (2 * sigma**2)).sum()
    spread = math.tanh(1 / (2 * scale))
    found = [
        Finding("exact Gaussian: shape", statistics.shape_p_value(gaussian), f"{gaussian.std():.4f} of its scale"),
        Finding("exact Gaussian: size", statistics.variance_p_value(gaussian), "variance"),
        Finding(
            "exact Gaussian: tails",
            statistics.frequency_p_value(int((np.abs(gaussian) > 3).sum()), 2 * MANY, float(2 * special.ndtr(-3))),
            "beyond three deviations",
        ),
        Finding("exact Laplace: shape", float(stats.kstest(laplace, "laplace").pvalue), f"{laplace.std():.4f}"),
        Finding(
            "exact Laplace: tails",
            statistics.frequency_p_value(int((np.abs(laplace) > 5).sum()), MANY, math.exp(-5)),
            "beyond five scales",
        ),
        _goodness(
            "discrete Gaussian",
            noise.discrete_gaussian(sigma, MANY),
            lambda k: np.exp(-(k**2) / (2 * sigma**2)) / total,
            12,
        ),
        _goodness(
            "discrete Laplace", noise.discrete_laplace(scale, MANY), lambda k: spread * np.exp(-np.abs(k) / scale), 14
        ),
        _goodness("uniform", noise.uniform_integers(7, MANY), lambda k: np.where((k >= 0) & (k < 7), 1 / 7, 0.0), 9),
    ]
    hits = int(noise.bernoulli(0.3, MANY).sum())
    found.append(Finding("bernoulli", statistics.frequency_p_value(hits, MANY, 0.3), f"{hits} of {MANY}"))
    few = 1500
    hits = sum(noise.bernoulli_exp(Fraction(3, 2)) for _ in range(few))
    found.append(
        Finding("bernoulli of exp", statistics.frequency_p_value(hits, few, math.exp(-1.5)), f"{hits} of {few}")
    )
    counts = np.array([noise.poisson(4.0) for _ in range(few)])
    found.append(_goodness("Poisson", counts, lambda k: stats.poisson.pmf(k, 4.0), 14))
    draws = np.array([noise.truncated_negative_binomial(1.0, 0.25) for _ in range(few)])
    found.append(
        _goodness("geometric", draws, lambda k: np.where(k >= 1, 0.25 * 0.75 ** (np.maximum(k, 1) - 1), 0.0), 20)
    )
    picks = np.array([noise.exponential_choice([0.0, 1.0], 1.0) for _ in range(few)])
    p = math.e / (1 + math.e)
    found.append(
        Finding("exponential choice", statistics.frequency_p_value(int(picks.sum()), few, p), f"{picks.sum()}")
    )
    grid = noise.default_granularity(3.0)
    shifted = np.asarray(noise.add_gaussian(np.full(200, 1e9 + 0.1), 3.0))
    on_grid = bool((np.mod(shifted / grid, 1.0) == 0).all()) and bool((np.abs(shifted - 1e9) < 40).all())
    return [*found, holds("exact noise on a grid", on_grid, f"all values are multiples of {grid:.3g}")]


def tensor_noise_is_a_function(seed: int) -> list[Finding]:
    """Noise of tensors: normal everywhere, out to the tails; a function of key, step, name and place, of all four."""
    rng = np.random.default_rng(seed)
    key = Key.generate()
    parts = []
    for step in range(12):
        tensors = [torch.zeros(40, 30), torch.zeros(77), torch.zeros(3)]
        noise.add_normal_many_(tensors, key, step, ["a", "b", "c"], 2.0)
        parts.append(torch.cat([t.flatten() for t in tensors]).double().numpy() / 2.0)
    secret = rng.bytes(32)

    def drawn(step: int = 1, name: Any = "w", secret: bytes = secret, offset: int = 0, count: int = 64) -> Any:
        return noise.normal(Key(secret, repeatable=True), step, name, (count,), offset=offset).double().numpy()

    base = drawn()
    same = np.array_equal(base, drawn())
    apart = [drawn(step=2), drawn(name="v"), drawn(secret=rng.bytes(32)), drawn(name=1)]
    alike = max(abs(float(np.corrcoef(base, other)[0, 1])) for other in apart)
    piece = np.array_equal(drawn(offset=16, count=32), base[16:48])
    longest = noise.normal(key, 3, "tail", (200_000,)).double().numpy()
    far = int((np.abs(longest) > 4).sum())
    added = torch.full((64,), 10.0)
    noise.add_normal_(added, Key(secret, repeatable=True), 1, "w", 3.0)
    sums = float(np.abs(added.double().numpy() - 10 - 3 * base).max())
    flat = [torch.zeros(4000)]
    noise.add_laplace_many_(flat, key, 5, 1.5)
    laplace = flat[0].double().numpy() / 1.5
    double = torch.zeros(2000, dtype=torch.float64)
    noise.add_normal_(double, key, 6, "d", 1.0)
    half = torch.zeros(2000, dtype=torch.bfloat16)
    noise.add_normal_(half, key, 7, "h", 1.0)
    # A shard, or a tensor in another memory order, has the numbers of its places in the whole.
    table = noise.normal(Key(secret, repeatable=True), 1, "w", (8, 12))
    shard = noise.normal(Key(secret, repeatable=True), 1, "w", (3, 4, 2), offset=26, strides=(24, 2, 1))
    places = 26 + 24 * np.arange(3)[:, None, None] + 2 * np.arange(4)[:, None] + np.arange(2)
    lying = torch.zeros(12, 8).T
    noise.add_normal_(lying, Key(secret, repeatable=True), 1, "w", 1.0)
    whole = torch.zeros(300, 400).T
    noise.add_normal_(whole, Key(secret, repeatable=True), 2, "w", 1.0)
    long = noise.normal(Key(secret, repeatable=True), 2, "w", (400, 300))
    placed = np.array_equal(shard.numpy(), table.flatten().numpy()[places]) and torch.equal(lying, table)
    pieces = [torch.zeros(24), torch.zeros(40)]
    noise.add_normal_many_(pieces, Key(secret, repeatable=True), 1, ["w", "w"], 1.0, offsets=[0, 24])
    apiece = np.array_equal(torch.cat(pieces).double().numpy(), base)
    into = torch.zeros(50)
    source = torch.ones(50)
    noise.add_normal_many_([source], key, 8, ["i"], 1.0, divisor=4.0, into=[into])
    return [
        *check_law(parts, "tensors"),
        holds("tensor noise: a function", same, "the same key, step, name and place give the same number"),
        # 64 pairs of independent normals: a correlation above 0.72 has probability below 1e-9, four times.
        holds("tensor noise: of all four", alike < 0.75, f"largest correlation {alike:.3f} where one of them differs"),
        holds("tensor noise: by place", piece and apiece, "a piece is the piece of the whole"),
        holds("tensor noise: in any order", placed and torch.equal(whole, long), "shards and transposed tensors"),
        holds("tensor noise: added", sums < 1e-4, f"{sums:.2g} from what is stated"),
        Finding(
            "tensor noise: far tails",
            statistics.frequency_p_value(far, len(longest), float(2 * special.ndtr(-4))),
            f"{far} of {len(longest):,} beyond four deviations",
        ),
        Finding("tensor Laplace", float(stats.kstest(laplace, "laplace").pvalue), f"{np.abs(laplace).mean():.4f}"),
        Finding("tensor noise: double", statistics.variance_p_value(double.numpy()), "binary64"),
        Finding(
            "tensor noise: half",
            statistics.variance_p_value(half.double().numpy()),
            "bfloat16, whose rounding is small",
        ),
        holds(
            "tensor noise: tail mass", 0 < noise.tail_delta(10**6, 1.0) < 1e-9, f"{noise.tail_delta(10**6, 1.0):.3g}"
        ),
        Finding(
            "tensor noise: divided", statistics.variance_p_value(into.double().numpy() * 4 - 1), "into another tensor"
        ),
    ]


def draws_are_independent(seed: int) -> list[Finding]:
    """Who takes part: at the stated rate, independently of others and of other steps; fresh keys share nothing."""
    from tacit import accounting as acc

    key, steps, rows = Key.generate(), 300, 400
    masks = np.stack([noise.bernoulli_mask(key, step, rows, 0.15) for step in range(steps)])
    found = look.check_sampling(masks, acc.PoissonSampled(acc.Gaussian(1.0), 0.15) * steps)
    # A piece of the records has the draws of its places, whoever asks for it.
    piece = noise.bernoulli_mask(key, 7, 100, 0.15, offset=200)
    placed = np.array_equal(piece, masks[7, 200:300]) and np.array_equal(
        noise.uniform(key, 7, 50, offset=30), noise.uniform(key, 7, 80)[30:]
    )
    many = noise.bernoulli_mask(key, 7, 700_000, 0.15)
    placed &= all(
        np.array_equal(noise.bernoulli_mask(key, 7, 99, 0.15, offset=at), many[at : at + 99])
        for at in range(0, 699_000, 33_333)
    )
    words = noise.uniform(key, 0, 5000)
    other = noise.uniform(Key.generate(), 0, 5000)
    bits = (words.astype(np.uint64) >> np.uint64(63)).astype(int)
    with expanded(b"a secret of thirty-two bytes ...."[:32]):
        one = np.asarray(noise.add_gaussian(np.zeros(20), 1.0))
    with expanded(b"a secret of thirty-two bytes ...."[:32]):
        two = np.asarray(noise.add_gaussian(np.zeros(20), 1.0))
    new, more = (np.asarray(noise.add_gaussian(np.zeros(20), 1.0)) for _ in range(2))
    return [
        *(Finding(f"draws: {f.check}", f.p_value, f.detail) for f in found),
        Finding("uniform words", float(stats.kstest(words / 2.0**64, "uniform").pvalue), "spread evenly"),
        Finding("uniform words: bits", statistics.frequency_p_value(int(bits.sum()), 5000, 0.5), "top bits"),
        holds("draws: by place", placed, "a piece is the piece of the whole"),
        holds("fresh keys", not np.array_equal(words, other), "two keys, two streams"),
        holds("expanded secrets", np.array_equal(one, two), "one secret, one stream"),
        holds("the system's entropy", not np.array_equal(new, more) and not np.array_equal(one, new), "never again"),
        holds("certain draws", bool(noise.bernoulli_mask(key, 0, 9, 1.0).all()), "a rate of 1 takes everybody"),
    ]


def keys_stay_secret(seed: int) -> list[Finding]:
    """Keys: not printed, not pickled, closed to others, used by one run, gone when destroyed, refused after a fork."""
    secret = np.random.default_rng(seed).bytes(32)
    key = Key(secret)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.key"
        key.save(path)
        closed = path.stat().st_mode & 0o077 == 0
        again = Key.load(path)
        same = again == key and again.fingerprint() == key.fingerprint()
        again.destroy()
        gone = again.destroyed
        wrong = Path(folder) / "wrong.key"
        wrong.write_bytes(b"nothing")
        wrong.chmod(0o600)
        opened = Path(folder) / "open.key"
        Key(secret).save(opened)
        opened.chmod(0o644)
        files = refused(
            "keys: files",
            {
                "no key": (lambda: Key.load(wrong), KeyFileError),
                "no file": (lambda: Key.load(Path(folder) / "none"), (KeyFileError, OSError)),
                "open to others": (lambda: Key.load(opened), KeyFileError),
                "over another": (lambda: Key(b"x" * 32).save(opened), (KeyFileError, OSError)),
            },
        )
    text = repr(key) + str(key)
    destroyed = Key.generate()
    destroyed.destroy()
    one = Key.generate()
    run, other = _Run(), _Run()
    one.claim(run)
    child = key.derive("noise")
    forked = True
    if possible():
        forked = on_ranks(1, lambda rank: _refused_in_child(key), group=False) == [True]
    return [
        files,
        holds("keys: files are closed", closed and same and gone, "only their owner reads them"),
        holds("keys: not printed", secret.hex() not in text and str(list(secret)) not in text, "no secret in a text"),
        holds("keys: derived", child != key and child == key.derive("noise") != key.derive("sampler"), "by purpose"),
        holds("keys: forked", forked, "a copy of a process draws no noise with its parent's key"),
        refused(
            "keys: refusals",
            {
                "pickled": (lambda: pickle.dumps(key), Exception),
                "too short": (lambda: Key(b"short"), ValueError),
                "destroyed": (lambda: noise.normal(destroyed, 0, "a", (3,)), Exception),
                "used by two runs": (lambda: one.claim(other), Exception),
            },
        ),
        _not_finite(),
        refused(
            "noise: refusals",
            {
                "no scale": (lambda: noise.add_gaussian(1.0, 0.0), ValueError),
                "a scale below 0": (lambda: noise.add_laplace(1.0, -1.0), ValueError),
                "not a number": (lambda: noise.add_gaussian(math.nan, 1.0), ValueError),
                "a grid that is none": (lambda: noise.add_gaussian(1.0, 1.0, granularity=0.3), ValueError),
                "a probability of 2": (lambda: noise.bernoulli(2.0), ValueError),
                "nothing to choose": (lambda: noise.exponential_choice([], 1.0), ValueError),
                "half a bound": (lambda: noise.uniform_integers(0), ValueError),
                "a mean below 0": (lambda: noise.poisson(-1.0), ValueError),
                "a scale of nothing": (lambda: noise.add_normal_(torch.zeros(2), key, 0, "a", -1.0), ValueError),
                "whole numbers": (
                    lambda: noise.add_normal_(torch.zeros(2, dtype=torch.int64), key, 0, "a", 1.0),
                    Exception,
                ),
                "two tensors, one name": (
                    lambda: noise.add_normal_many_([torch.zeros(2)] * 2, key, 0, ["a"], 1.0),
                    ValueError,
                ),
                "one name twice": (
                    lambda: noise.add_normal_many_([torch.zeros(2), torch.zeros(2)], key, 0, ["a", "a"], 1.0),
                    ValueError,
                ),
                "a rate of 2": (lambda: noise.bernoulli_mask(key, 0, 3, 2.0), ValueError),
            },
        ),
    ]


def _not_finite() -> Finding:
    """What is no number has no distance from its neighbours: no noise hides it, alone or among others."""
    cases: dict[str, Any] = {}
    for release in (noise.add_gaussian, noise.add_laplace):
        for odd in (math.nan, math.inf, -math.inf):
            cases[f"{release.__name__} of {odd}"] = (lambda f=release, v=odd: f(v, 1.0), ValueError)
            cases[f"{release.__name__} with {odd}"] = (lambda f=release, v=odd: f(np.array([1.0, v]), 1.0), ValueError)
    return refused("noise: what is not finite", cases)


class _Run:
    """Something that holds a key."""


def _refused_in_child(key: Key) -> bool:
    try:
        noise.normal(key, 0, "a", (3,))
    except noise.ForkError:
        return True
    return os.getpid() < 0


SCENES = (
    Scene("noise: samplers", "noise", samplers_have_their_laws),
    Scene("noise: tensors", "noise", tensor_noise_is_a_function, long=True),
    Scene("noise: draws", "noise", draws_are_independent),
    Scene("noise: keys", "noise", keys_stay_secret),
)
