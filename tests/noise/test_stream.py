"""The definition of the keyed streams: the cipher, the transform, and the two CPU implementations."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.noise import native, stream

KEY = np.arange(1, 9, dtype=np.uint32) * np.uint32(0x9E3779B1)


def test_with_twenty_rounds_the_cipher_is_chacha20_of_rfc_8439():
    # Section 2.3.2: key 00..1f, block counter 1, nonce 00:00:00:09:00:00:00:4a:00:00:00:00. In the layout used here the
    # 64-bit counter covers the first nonce word, and the last nonce word is zero in both.
    key = np.frombuffer(bytes(range(32)), "<u4").astype(np.uint32)
    counter = np.array([1 | (0x09000000 << 32)], np.uint64)
    block = stream.blocks(key, 0x4A000000, counter, rounds=20)[:, 0]
    assert block.astype("<u4").tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def test_with_twelve_rounds_the_cipher_is_chacha12():
    # draft-strombergson-chacha-test-vectors-01, TC1: all-zero key and nonce, 12 rounds, 256-bit key, first block.
    block = stream.blocks(np.zeros(8, np.uint32), 0, np.zeros(1, np.uint64), rounds=12)[:, 0]
    assert (
        block.astype("<u4")
        .tobytes()
        .hex()
        .startswith("9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f")
    )


def reference(a: int, b: int, digits: int) -> tuple[float, float]:
    """What gauss() approximates, in arbitrary precision: the centre of the cell that the words name."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(a | 1) / mpmath.mpf(2) ** digits))
        low = ((b << 2) | 2) & 0xFFFFFFFF
        x = mpmath.mpf(low - 2**32 if low >= 2**31 else low) / 2**31
        cosine = radius * mpmath.cos(mpmath.pi / 4 * x) * (-1 if b >> 31 else 1)
        sine = radius * mpmath.sin(mpmath.pi / 4 * x)
    return (float(sine), float(cosine)) if (b >> 30) & 1 else (float(cosine), float(sine))


WORD = st.integers(0, 2**32 - 1)
EXTREME = st.sampled_from(
    [0, 1, 2, 2**16, 2**30, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1, 2863311530, 1431655765]
)


@given(WORD | EXTREME, WORD | EXTREME, st.sampled_from([32, 48, 64, 80, 96]))
def test_the_transform_is_box_muller_to_four_parts_in_ten_million(a, b, digits):
    ours = [
        float(v[0])
        for v in stream.gauss(np.array([a], np.uint32), np.array([b], np.uint32), np.array([digits], np.int32))
    ]
    exact = reference(a, b, digits)
    radius = math.hypot(*exact)
    # A radius word below 8 only occurs in the event of probability 2^-80 that tail_delta pays for.
    tolerance = 4e-7 if a >= 8 else 2e-6
    assert max(abs(ours[0] - exact[0]), abs(ours[1] - exact[1])) <= tolerance * radius


@given(st.integers(0, 2**16 - 1) | st.sampled_from([0, 1]), WORD | EXTREME | st.integers(0, 2**16), WORD | EXTREME)
def test_a_short_radius_word_is_continued_by_the_tail_words(a, high, low):
    t, digits = stream.extend_tail(np.array([a], np.uint32), np.array([high], np.uint32), np.array([low], np.uint32))
    whole = (a << 64) | (high << 32) | low
    assert int(t[0]) == whole >> (96 - int(digits[0]))
    # The cell is small compared with the number, unless the event that tail_delta pays for happened.
    assert int(t[0]) >= 2**16 or whole < 2**16


def test_the_largest_reachable_deviate_is_beyond_eleven_sigma():
    first, second = stream.gauss(np.array([0], np.uint32), np.array([0], np.uint32), np.array([96], np.int32))
    assert max(abs(first[0]), abs(second[0])) > 11.5


def test_long_words_are_left_as_they_are():
    a = np.array([2**16, 2**20, 2**32 - 1], np.uint32)
    t, digits = stream.extend_tail(a, a, a)
    assert np.array_equal(t, a)
    assert np.all(digits == 32)


def tail_element() -> int:
    """An element whose radius came from the tail stream."""
    for chunk in range(20):
        counters = np.arange(chunk * 32_768, (chunk + 1) * 32_768, dtype=np.uint64)
        short = np.argwhere(stream.blocks(KEY, stream.MAIN, counters)[:8] < stream.TAIL_BOUND)
        if len(short):
            word, block = (int(v) for v in short[0])
            return (chunk * 1024 + block // 32) * 512 + word * 32 + block % 32
    raise AssertionError("no tail draw in ten million")


def needs_compiler() -> native.Native:
    library, why = native.load()
    if library is None and ("TACIT_NATIVE=0" in why or "no C compiler found" in why):
        pytest.skip(why)
    assert library is not None, why  # a compiler whose code is wrong is no reason to look away
    return library


@pytest.mark.parametrize("offset", [0, 1, 511, 512, 12_345, 2**36 - 3, 2**41 + 77, 2**61])
@pytest.mark.parametrize("count", [1, 31, 513, 70_000])
def test_compiled_and_numpy_code_give_the_same_bits(offset, count):
    library = needs_compiler()
    ours, defined = np.empty(count, np.float32), np.empty(count, np.float32)
    library.normal(KEY, offset, count, ours.ctypes.data)
    stream.fill_normal(KEY, offset, defined)
    assert np.array_equal(ours.view(np.uint32), defined.view(np.uint32))


@pytest.mark.parametrize(("offset", "count"), [(0, 1), (255, 3), (2**40 + 9, 70_001), (5, 0)])
def test_compiled_and_numpy_code_give_the_same_words(offset, count):
    library = needs_compiler()
    assert np.array_equal(library.words64(KEY, offset, count), stream.words64(KEY, offset, count))


def test_compiled_and_numpy_code_agree_in_the_tail():
    library = needs_compiler()
    element = tail_element()
    ours, defined = np.empty(3, np.float32), np.empty(3, np.float32)
    library.normal(KEY, element - 1, 3, ours.ctypes.data)
    stream.fill_normal(KEY, element - 1, defined)
    assert np.array_equal(ours.view(np.uint32), defined.view(np.uint32))
    partner = np.empty(1, np.float32)
    stream.fill_normal(KEY, element + 256, partner)
    assert math.hypot(float(defined[1]), float(partner[0])) > 4.7


def test_threads_do_not_change_the_bits():
    library = needs_compiler()
    one, many = np.empty(1_200_007, np.float32), np.zeros(1_200_007, np.float32)
    library.normal(KEY, 99, one.size, one.ctypes.data, threads=1)
    library.normal(KEY, 99, many.size, many.ctypes.data, threads=3)
    assert np.array_equal(one.view(np.uint32), many.view(np.uint32))


@pytest.mark.parametrize("environment", [{"TACIT_NATIVE": "0"}, {"CC": "/nonexistent", "PATH": "/nonexistent"}])
def test_without_a_compiler_the_numbers_are_the_same(environment):
    code = (
        "import torch; from tacit.noise import Key; from tacit.noise.tensor import *\n"
        "assert backend().startswith('numpy'), backend()\n"
        "t = torch.ones(3000, dtype=torch.float32)\n"
        "add_normal_(t, Key(bytes(32)), 1, 'w', 0.7, offset=5)\n"
        "n = normal(Key(bytes(32)), 1, 'w', (40, 7), offset=3, strides=(100, 1))\n"
        "print(t.numpy().tobytes().hex()[-4000:] + n.numpy().tobytes().hex())"
    )
    script = [sys.executable, "-c", code]
    plain = subprocess.run(script, env={**os.environ, **environment}, capture_output=True, text=True, check=True).stdout
    import torch

    from tacit.noise import Key, tensor

    tensor_sum = tensor.add_normal_(torch.ones(3000), Key(bytes(32)), 1, "w", 0.7, offset=5)
    strided = tensor.normal(Key(bytes(32)), 1, "w", (40, 7), offset=3, strides=(100, 1))
    assert plain.strip() == tensor_sum.numpy().tobytes().hex()[-4000:] + strided.numpy().tobytes().hex()


def test_an_unwritable_or_shared_cache_folder_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tacit").mkdir(mode=0o777)
    (tmp_path / "tacit").chmod(0o777)
    assert native._private_folder() != tmp_path / "tacit"
    (tmp_path / "tacit").chmod(0o700)
    assert native._private_folder() == tmp_path / "tacit"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    assert native._private_folder().is_dir()


def test_the_gpu_kernel_gives_the_same_bits_when_interpreted():
    """Triton's interpreter runs the kernel's operations on the CPU: its logic is checked without a GPU."""
    pytest.importorskip("triton")
    element = tail_element()
    code = f"""
import numpy as np, torch
from tacit.noise import cuda, stream
key = np.arange(1, 9, dtype=np.uint32) * np.uint32(0x9E3779B1)
for offset, count in ((0, 5000), (37, 9000), (511, 1), (2**40 + 513, 20_000), (2**37 - 700, 5000), ({element} - 1, 3)):
    ours, defined = torch.full((count,), 7.0), np.empty(count, np.float32)
    cuda.fill(key, offset, ours)
    stream.fill_normal(key, offset, defined)
    assert np.array_equal(ours.numpy().view(np.uint32), defined.view(np.uint32)), offset
sizes, offsets, scales = (10, 5000, 1, 9000), (0, 511, 2**41 + 3, 77), (1.0, 0.5, 3.25, 0.125)
keys = [key + np.uint32(i) for i in range(4)]
sums = [torch.ones(size) for size in sizes]
means = [torch.ones(size) for size in sizes]
cuda.Many(sums, offsets, scales).launch(keys)
cuda.Many(means, offsets, scales, 3.7).launch(keys)
for ours, mean, words, offset, scale in zip(sums, means, keys, offsets, scales):
    defined = np.empty(len(ours), np.float32)
    stream.fill_normal(words, offset, defined)
    assert np.array_equal(ours.numpy(), 1 + defined * np.float32(scale)), offset
    assert np.array_equal(mean.numpy(), ours.numpy() * np.float32(1 / 3.7)), offset
for dtype in (torch.float16, torch.bfloat16):
    exact, narrow = [torch.ones(size) for size in sizes], [torch.full((size + 1,), 7.0, dtype=dtype) for size in sizes]
    cuda.Many(exact, offsets, scales, 3.7, into=[n[:-1] for n in narrow]).launch(keys)
    for source, found, mean in zip(exact, narrow, means):
        # The interpreter cuts the last bits off where a GPU rounds to bfloat16.
        cut = (mean.view(torch.int32) & -65536).view(torch.float32).to(dtype)
        assert torch.equal(found[:-1], mean.to(dtype)) or dtype == torch.bfloat16 and torch.equal(found[:-1], cut)
        assert float(found[-1]) == 7.0 and bool((source == 1).all())  # written is the target, and nothing else
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": "1"}, check=True)
