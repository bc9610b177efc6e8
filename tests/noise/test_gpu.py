"""Tensor noise on a GPU: the same bits as on a CPU."""

import math

import pytest
import torch

from tacit.noise import Key
from tacit.noise.tensor import add_normal_, add_normal_many_, backend, normal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
KEY = Key(bytes(range(32)))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.cpu().view(torch.int32), other.cpu().view(torch.int32))


@pytest.mark.parametrize("offset", [0, 1, 511, 4095, 2**33 + 5, 2**41 - 3])
@pytest.mark.parametrize("count", [1, 33, 4096, 1_000_003])
def test_cpu_and_gpu_give_the_same_bits(offset, count):
    assert backend("cuda") == "triton"
    assert same_bits(
        normal(KEY, 1, "w", count, offset=offset, device="cuda"), normal(KEY, 1, "w", count, offset=offset)
    )


def test_a_hundred_million_elements_with_their_tails_are_the_same():
    for start in range(0, 100_000_000, 20_000_000):
        gpu = normal(KEY, 2, "w", 20_000_000, offset=start, device="cuda")
        assert same_bits(gpu, normal(KEY, 2, "w", 20_000_000, offset=start))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_sums_are_the_same(dtype):
    start = torch.linspace(-3, 3, 100_003).to(dtype)
    cpu = add_normal_(start.clone(), KEY, 3, "w", 0.7, offset=9)
    gpu = add_normal_(start.cuda(), KEY, 3, "w", 0.7, offset=9)
    assert torch.equal(gpu.cpu(), cpu)


def test_strided_shards_are_the_same():
    whole = normal(KEY, 4, "w", (300, 1000), device="cuda")
    part = normal(KEY, 4, "w", (300, 77), offset=123, strides=(1000, 1), device="cuda")
    assert same_bits(part, whole[:, 123:200].contiguous())
    wide = torch.zeros(300, 2000, device="cuda")[:, ::2]
    assert torch.equal(add_normal_(wide, KEY, 4, "w", 1.0), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_all_parameters_together_are_the_same(dtype):
    shapes = [(1000, 77), (77,), (), (0,), (5, 4096), (3,)]
    names = [f"layer{i}" for i in range(len(shapes))]
    scales = [0.1 + i for i in range(len(shapes))]
    cpu, gpu = ([torch.ones(shape, dtype=dtype, device=d) for shape in shapes] for d in ("cpu", "cuda"))
    add_normal_many_(cpu, KEY, 6, names, scales)
    for divisor in (1.0, 1.0, 16.0):  # the second time with the programs' table in its cache
        gpu = [torch.ones_like(g) for g in gpu]
        add_normal_many_(gpu, KEY, 6, names, scales, divisor=divisor)
        cpu = [c / divisor for c in cpu]
        assert all(torch.equal(one, other.cpu()) for one, other in zip(cpu, gpu, strict=True))


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("divisor", [1.0, 3.7])
def test_results_of_another_type_are_those_in_place_rounded_once_more(source, divisor):
    """Types mixed in one call, in place and elsewhere, with and without a whole number of programs, in any order."""
    shapes = [(1000, 77), (77,), (), (0,), (5, 4096), (3,), (64, 100), (200, 30)]
    types = [torch.bfloat16, torch.float16, torch.bfloat16, torch.bfloat16, torch.float32, source, torch.bfloat16,
             torch.float64]  # fmt: skip
    names = [f"layer{i}" for i in range(len(shapes))]

    def sums():
        made = [torch.linspace(-3, 3, math.prod(s), device="cuda").reshape(s).to(source) for s in shapes]
        made[6] = made[6].t().contiguous().t()
        return made

    wanted, given, before = sums(), sums(), sums()
    into = [torch.full_like(g, math.nan, dtype=dtype) for g, dtype in zip(given, types, strict=True)]
    into[5] = given[5]
    offsets = [17 * i for i in range(len(shapes))]
    add_normal_many_(wanted, KEY, 6, names, 0.7, offsets=offsets, divisor=divisor)
    add_normal_many_(given, KEY, 6, names, 0.7, offsets=offsets, divisor=divisor, into=into)
    for i, w in zip(into, wanted, strict=True):
        assert torch.equal(i, w.to(i.dtype))
    # The kernel reads a sum whose result goes elsewhere, and leaves it: nothing is written twice.
    assert all(torch.equal(given[k], before[k]) for k in (0, 1, 2))
    assert not torch.equal(given[5], before[5])


def test_noise_is_not_captured_in_a_graph():
    out = torch.zeros(1000, device="cuda")
    add_normal_(out, KEY, 5, "w", 1.0)

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            out.add_(1)
            add_normal_(out, KEY, 5, "w", 1.0)

    with pytest.raises(RuntimeError, match="CUDA graph"):
        capture()


def test_a_call_that_is_made_again_gets_the_noise_of_its_own_key_step_and_tensors():
    """A run makes the same call at every step, and what is remembered of it must not outlive what it was about."""
    shapes, names, other = [(1000, 77), (77,), (5, 4096)], ["a", "b", "c"], Key(bytes(32))

    def fresh(dtype=torch.float32):
        return [torch.zeros(s, device="cuda", dtype=dtype) for s in shapes]

    def wanted(key, step, called, scale, divisor=1.0):
        expected = [torch.zeros(s) for s in shapes]
        add_normal_many_(expected, key, step, called, scale, divisor=divisor)
        return expected

    def right(tensors, expected):
        return all(torch.equal(t.cpu(), e.to(t.dtype)) for t, e in zip(tensors, expected, strict=True))

    same = fresh()
    calls = [(KEY, 0, names, 1.0), (KEY, 1, names, 1.0), (other, 1, names, 1.0), (KEY, 1, names[::-1], 1.0),
             (KEY, 2, names, 0.5), (KEY, 3, names, 0.5, 4.0), (KEY, 4, names, 0.5, 4.0)]  # fmt: skip
    for key, step, called, scale, *divisor in calls:
        for tensor in same:
            tensor.zero_()
        add_normal_many_(same, key, step, called, scale, divisor=(*divisor, 1.0)[0])
        assert right(same, wanted(key, step, called, scale, *divisor))
    elsewhere = fresh()  # other tensors
    add_normal_many_(elsewhere, KEY, 5, names, 0.5, divisor=4.0)
    assert right(elsewhere, wanted(KEY, 5, names, 0.5, 4.0))
    old = elsewhere[0].data
    elsewhere[0].data = torch.zeros_like(old)  # the same object with other memory
    before = old.clone()
    for tensor in elsewhere:
        tensor.zero_()
    add_normal_many_(elsewhere, KEY, 6, names, 0.5, divisor=4.0)
    assert right(elsewhere, wanted(KEY, 6, names, 0.5, 4.0))
    assert torch.equal(old, before)
    narrow = fresh(torch.bfloat16)
    for step in (7, 8):
        sums = fresh()
        add_normal_many_(sums, KEY, step, names, 0.5, divisor=4.0, into=narrow)
        assert right(narrow, wanted(KEY, step, names, 0.5, 4.0))
