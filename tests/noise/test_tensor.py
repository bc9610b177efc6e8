"""Tensor noise: its distribution, its independence, and the same value for any sharding."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import tacit.noise
from tacit.noise import Key, add_laplace, tensor
from tacit.noise.tensor import add_normal_, normal, tail_delta, tail_mass

KEY = Key(bytes(range(32)))


def test_the_noise_is_standard_normal():
    assert stats.kstest(normal(KEY, 0, "w", 1_000_000).double().numpy(), "norm").pvalue > 1e-3


def test_mean_variance_and_fourth_moment_are_right_to_a_thousandth():
    size, total, squares, fourth = 20_000_000, 0.0, 0.0, 0.0
    for start in range(0, size, 4_000_000):
        z = normal(KEY, 1, "w", 4_000_000, offset=start).double()
        total, squares, fourth = total + float(z.sum()), squares + float((z**2).sum()), fourth + float((z**4).sum())
    assert abs(total / size) < 4 / math.sqrt(size)
    assert abs(squares / size - 1) < 1e-3
    assert abs(fourth / size / 3 - 1) < 4 * math.sqrt(96 / 9 / size)


@pytest.mark.parametrize("position", range(0, 512, 37))
def test_every_place_of_a_tile_is_standard_normal(position):
    z = normal(KEY, 2, "w", (4000,), offset=position, strides=(512,))
    assert stats.kstest(z.double().numpy(), "norm").pvalue > 1e-4


def tail_counts(elements: int, step: int, levels: list[float]) -> list[int]:
    counts = np.zeros(len(levels), int)
    chunk = 10_000_000
    for start in range(0, elements, chunk):
        z = normal(KEY, step, "tail", chunk, offset=start).abs()
        z = z[z > levels[0]]
        counts += [int((z > level).sum()) for level in levels]
    return counts.tolist()


def test_the_tails_have_the_right_mass():
    levels = [4.0, 4.5, 5.0]
    for level, count in zip(levels, tail_counts(100_000_000, 3, levels), strict=True):
        assert stats.poisson.sf(count - 1, 1e8 * 2 * stats.norm.sf(level)) > 1e-4
        assert stats.poisson.cdf(count, 1e8 * 2 * stats.norm.sf(level)) > 1e-4


@pytest.mark.slow
def test_the_tails_have_the_right_mass_beyond_six_sigma():
    levels = [5.0, 5.5, 6.0]
    for level, count in zip(levels, tail_counts(10_000_000_000, 4, levels), strict=True):
        assert stats.poisson.sf(count - 1, 1e10 * 2 * stats.norm.sf(level)) > 1e-4
        assert stats.poisson.cdf(count, 1e10 * 2 * stats.norm.sf(level)) > 1e-4


N = 400_000


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, "w", 0), (1, "w", 0)),
        ((0, "w", 0), (2**40, "w", 0)),
        ((0, "w", 0), (0, "v", 0)),
        ((0, 0, 0), (0, 1, 0)),
        ((0, 0, 0), (0, "0", 0)),
        ((0, "w", 0), (0, "w", N)),
        ((0, "w", 0), (0, "w", 1)),
        ((0, "w", 0), (0, "w", 32)),
        ((0, "w", 0), (0, "w", 256)),
        ((0, "w", 0), (0, "w", 512)),
    ],
)
def test_steps_parameters_and_shards_are_independent(first, second):
    """Correlations of values, squares and signs stay within their sampling error 1 / sqrt(n)."""
    a, b = (normal(KEY, step, name, N, offset=offset).double() for step, name, offset in (first, second))
    for transform in (lambda z: z, lambda z: (z**2 - 1) / math.sqrt(2), torch.sign, lambda z: (z.abs() > 2).double()):
        x, y = transform(a), transform(b)
        assert abs(float(torch.corrcoef(torch.stack((x, y)))[0, 1])) < 4.5 / math.sqrt(N)


def test_different_keys_give_independent_noise():
    a, b = normal(Key(bytes(32)), 0, "w", N), normal(Key(bytes(31) + b"\1"), 0, "w", N)
    assert abs(float(torch.corrcoef(torch.stack((a, b)))[0, 1])) < 4.5 / math.sqrt(N)


def test_many_small_parameters_are_as_normal_together_as_one_large_one():
    z = torch.cat([normal(KEY, step, f"layer{i}.bias", 10) for step in range(100) for i in range(100)])
    assert stats.kstest(z.double().numpy(), "norm").pvalue > 1e-3


@given(
    total=st.integers(1, 5000),
    offset=st.integers(0, 2000) | st.integers(2**32 - 3000, 2**32 + 3000) | st.integers(0, 2**60),
    cuts=st.lists(st.integers(0, 5000), max_size=6),
    step=st.integers(0, 2**64 - 1),
)
def test_any_split_into_ranges_gives_the_same_bits(total, offset, cuts, step):
    whole = normal(KEY, step, "w", total, offset=offset)
    bounds = [0, *sorted(min(cut, total) for cut in cuts), total]
    parts = [normal(KEY, step, "w", stop - start, offset=offset + start) for start, stop in itertools.pairwise(bounds)]
    assert torch.equal(torch.cat(parts).view(torch.int32), whole.view(torch.int32))


@given(st.data())
def test_any_rectangular_shard_of_a_tensor_gives_the_same_bits(data):
    shape = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    whole = normal(KEY, 5, "w", shape)
    window, steps = [], []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        window.append(slice(start, data.draw(st.integers(start, size)), data.draw(st.integers(1, 3))))
        steps.append(window[-1].step)
    strides = list(whole.stride())
    part = whole[tuple(window)]
    offset = sum(piece.start * stride for piece, stride in zip(window, strides, strict=True))
    ours = normal(
        KEY, 5, "w", part.shape, offset=offset, strides=[s * stride for s, stride in zip(steps, strides, strict=True)]
    )
    assert torch.equal(ours, part)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_adding_in_place_is_adding_the_scaled_noise_rounded_once(dtype):
    start = torch.linspace(-3, 3, 2500).to(dtype)
    noisy = add_normal_(start.clone(), KEY, 6, "w", 0.75, offset=11)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = start.to(wide) + normal(KEY, 6, "w", 2500, offset=11).to(wide) * 0.75
    assert noisy.dtype == dtype
    assert torch.equal(noisy, expected.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_order_does_not_matter(dtype, monkeypatch):
    monkeypatch.setattr(tensor, "_CHUNK", 1000)
    plain = torch.zeros(8, 3, 20, 20, dtype=dtype)
    expected = add_normal_(plain.clone(), KEY, 7, "conv", 2.0)
    for other in (
        plain.contiguous(memory_format=torch.channels_last),
        plain.transpose(0, 1).contiguous().transpose(0, 1),
        torch.zeros(8, 3, 20, 40, dtype=dtype)[..., ::2],
        torch.zeros(1, 8, 3, 20, 40, dtype=dtype)[..., 1::2][0],
    ):
        assert not other.is_contiguous()
        assert torch.equal(add_normal_(other, KEY, 7, "conv", 2.0), expected)


def test_sharded_sums_are_the_whole_sum():
    whole = add_normal_(torch.full((4097,), 0.3), KEY, 8, "w", 1.3)
    parts = [add_normal_(torch.full((n,), 0.3), KEY, 8, "w", 1.3, offset=o) for o, n in ((0, 1000), (1000, 3097))]
    assert torch.equal(torch.cat(parts), whole)


def test_noising_all_parameters_together_is_noising_each():
    shapes = {"weight": (30, 40), "bias": (40,), "scalar": (), "empty": (0, 3)}
    each = [add_normal_(torch.ones(shape), KEY, 8, name, 0.5 + len(name)) for name, shape in shapes.items()]
    together = [torch.ones(shape) for shape in shapes.values()]
    tensor.add_normal_many_(together, KEY, 8, list(shapes), [0.5 + len(name) for name in shapes])
    assert all(torch.equal(one, other) for one, other in zip(each, together, strict=True))


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
def test_noisy_sums_in_another_type_are_those_in_place_rounded_once_more(source):
    """Some in place, some elsewhere, in any memory order; what was in the target before is gone."""
    types = [torch.bfloat16, torch.float16, source, torch.float32, torch.bfloat16, torch.float16]
    shapes = [(30, 41), (7,), (5, 6), (), (0, 3), (40, 9)]
    names = [f"layer{i}" for i in range(len(shapes))]

    def sums():
        made = [torch.full(shape, 0.3, dtype=source) for shape in shapes]
        return [*made[:-1], made[-1].t().contiguous().t()]

    wanted, given = sums(), sums()
    into = [torch.full_like(g, math.nan, dtype=dtype) for g, dtype in zip(given, types, strict=True)]
    into[2], into[0] = given[2], torch.full((41, 30), math.nan, dtype=torch.bfloat16).t()
    tensor.add_normal_many_(wanted, KEY, 8, names, 1.5, divisor=3.7)
    tensor.add_normal_many_(given, KEY, 8, names, 1.5, divisor=3.7, into=into)
    assert [i.dtype for i in into] == types
    assert all(torch.equal(i, w.to(i.dtype)) for i, w in zip(into, wanted, strict=True))


def test_results_go_only_where_every_element_has_room():
    def add(target):
        tensor.add_normal_many_([torch.zeros(3)], KEY, 8, ["w"], 1.0, into=target)

    with pytest.raises(ValueError, match="same length"):
        add([])
    for wrong in (torch.zeros(4), torch.zeros(3, 1), torch.zeros(3, device="meta")):
        with pytest.raises(ValueError, match="cannot be written"):
            add([wrong])
    with pytest.raises(TypeError, match="floating-point"):
        add([torch.zeros(3, dtype=torch.int32)])


def test_two_parameters_never_share_a_name():
    with pytest.raises(ValueError, match="same parameter name"):
        tensor.add_normal_many_([torch.zeros(3), torch.zeros(3)], KEY, 8, ["w", "w"], 1.0)
    with pytest.raises(ValueError, match="same length"):
        tensor.add_normal_many_([torch.zeros(3)], KEY, 8, ["w", "v"], 1.0)
    # Shards of one parameter have one name and different offsets.
    halves = [torch.zeros(3), torch.zeros(3)]
    tensor.add_normal_many_(halves, KEY, 8, ["w", "w"], 1.0, offsets=[0, 3])
    assert torch.equal(torch.cat(halves), normal(KEY, 8, "w", 6))


def test_trainable_tensors_and_scalars_can_be_noised():
    weight = torch.nn.Parameter(torch.zeros(5))
    add_normal_(weight, KEY, 9, "w", 1.0)
    assert torch.equal(weight.detach(), normal(KEY, 9, "w", 5))
    scalar = add_normal_(torch.zeros(()), KEY, 9, "w", 1.0)
    assert float(scalar) == float(normal(KEY, 9, "w", 1)[0])
    assert normal(KEY, 9, "w", ()).shape == ()
    assert normal(KEY, 9, "w", (3, 0)).shape == (3, 0)
    assert add_normal_(torch.zeros(0), KEY, 9, "w", 1.0).numel() == 0


@given(st.floats(1e-30, 1e30))
def test_the_scale_is_never_rounded_down(scale):
    used = tensor._round_up(scale)
    assert scale <= used <= scale * (1 + 2.0**-22)
    assert float(np.float32(used)) == used


def test_no_full_size_temporary_is_made(monkeypatch):
    """Adding to a large tensor of another type allocates chunks only."""
    sizes = []
    empty = torch.empty
    monkeypatch.setattr(tensor.torch, "empty", lambda *a, **k: sizes.append(a[0]) or empty(*a, **k))
    monkeypatch.setattr(tensor, "_CHUNK", 4096)
    add_normal_(torch.zeros(100_000, dtype=torch.bfloat16), KEY, 10, "w", 1.0)
    add_normal_(torch.zeros(100_000), KEY, 10, "w", 1.0)
    assert sizes
    assert max(sizes) <= 4096


@pytest.mark.parametrize(
    "call",
    [
        lambda: normal(KEY, 0, "w", (-1,)),
        lambda: normal(KEY, 0, "w", 3, offset=-1),
        lambda: normal(KEY, -1, "w", 3),
        lambda: normal(KEY, 0, "w", 3, offset=2**62),
        lambda: normal(KEY, 0, "w", (3, 3), strides=(3,)),
        lambda: normal(KEY, 0, "w", (3,), strides=(-1,)),
        lambda: add_normal_(torch.zeros(3), KEY, 0, "w", math.nan),
        lambda: add_normal_(torch.zeros(3), KEY, 0, "w", -1.0),
        lambda: add_normal_(torch.zeros(3), KEY, 0, "w", math.inf),
        lambda: add_normal_(torch.zeros(3), KEY, 0, "w", 1e39),
        lambda: tail_mass(-1),
        lambda: tail_delta(1, -0.5),
        lambda: tail_delta(1, math.nan),
    ],
)
def test_senseless_arguments_are_refused(call):
    with pytest.raises(ValueError):
        call()


def test_noise_for_integers_is_refused():
    with pytest.raises(TypeError, match="floating-point"):
        add_normal_(torch.zeros(3, dtype=torch.int64), KEY, 0, "w", 1.0)


def test_the_missing_mass_of_the_tail_is_tiny_and_adds_up():
    assert tail_mass(0) == tail_delta(0, 1.0) == tail_delta(0, math.inf) == 0
    assert tail_mass(10**13) == 10**13 * 2.0**-80
    assert tail_mass(2**90) == tail_delta(2**90, 0.0) == tail_delta(1, math.inf) == 1.0
    # A billion parameters for ten thousand steps at epsilon 3 cost less than a thousandth of delta = 1e-6.
    assert tail_delta(10**13, 3.0) < 1e-9
    assert tail_delta(10**13, 0.0) == 2 * tail_mass(10**13)


def test_compiled_training_code_never_bakes_the_noise_in():
    """Under torch.compile each call must still draw the noise of its own step."""
    compiled = torch.compile(lambda t, step: add_normal_(t * 1.0, KEY, step, "w", 1.0), backend="eager")
    for step in range(3):
        assert torch.equal(compiled(torch.zeros(100), step), normal(KEY, step, "w", 100))


def test_laplace_noise_of_tensors_is_that_of_the_exact_sampler():
    sums = [torch.randn(3, 4), torch.randn(5, dtype=torch.float64), torch.empty(0)]
    before = [s.clone() for s in sums]
    tensor.add_laplace_many_(sums, KEY, 3, 2.0)
    again = [s.clone() for s in before]
    tensor.add_laplace_many_(again, KEY, 3, 2.0)
    assert all(torch.equal(a, b) for a, b in zip(sums, again, strict=True))
    flat = np.concatenate([s.double().numpy().ravel() for s in before])
    wanted = add_laplace(flat, 2.0, source=tensor._KeyedWords(KEY, 3))
    noisy = torch.cat([s.double().ravel() for s in sums]).numpy()
    assert np.array_equal(noisy, np.r_[np.float32(wanted[:12]), wanted[12:]])
    other = [s.clone() for s in before]
    tensor.add_laplace_many_(other, KEY, 4, 2.0)
    assert not any(torch.equal(a, b) for a, b in zip(sums[:2], other[:2], strict=True))
    tensor.add_laplace_many_([], KEY, 5, 2.0)


def test_laplace_noise_of_tensors_has_its_scale():
    values = torch.zeros(20_000)
    tensor.add_laplace_many_([values], KEY, 0, 3.0)
    assert float(values.abs().mean()) == pytest.approx(3.0, rel=0.05)
    assert float(values.median()) == pytest.approx(0.0, abs=0.15)


def test_tensor_noise_is_exported_and_loads_torch_when_it_is_asked_for():
    assert tacit.noise.add_normal_ is tensor.add_normal_
    assert set(tacit.noise.__all__) <= set(dir(tacit.noise))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import tacit.noise as noise\n"
        "noise.add_laplace(1.0, 2.0)\n"
        "try: noise.add_normal_\n"
        "except ImportError: print('asked for')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert told.stdout.strip() == "asked for", told.stderr
