"""How does a CPU draw tensor noise fast? ``native.c``, compiled on first use where a C compiler is present.

The compiled code gives the same bits as ``stream.py`` (checked each time it is loaded) about thirty times faster.
Without a compiler, or with the environment variable ``TACIT_NATIVE=0``, the numpy code is used. The library is kept in
the user's cache folder, under a name that holds a hash of the source, the compiler and the processor.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tacit.noise import stream

# Contraction to fused multiply-add would change the last bits; errno and traps only stand in the way of vectorising.
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
#: Elements; below, starting a thread costs more than it saves.
PARALLEL_FROM = 1 << 19


class Native:
    """The loaded library.

    ``fill(key, offset, rows, stride, columns, address, pitch, add, scale)`` is the compiled function itself, which
    :meth:`normal` calls; ``key`` is eight 32-bit words, as bytes or by their address.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.fill = library.tacit_normal
        self.fill.restype = None
        self.fill.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_uint64] * 4,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_float,
        ]
        self._words64 = library.tacit_words64
        self._words64.restype = None
        self._words64.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 2, ctypes.c_void_p]
        self._below = library.tacit_below
        self._below.restype = ctypes.c_uint64
        self._below.argtypes = [ctypes.c_void_p, *[ctypes.c_uint64] * 3, ctypes.c_void_p]

    def normal(
        self,
        key: stream.Words,
        offset: int,
        columns: int,
        address: int,
        *,
        rows: int = 1,
        stride: int = 0,
        scale: float | None = None,
        threads: int = 1,
    ) -> None:
        """Writes (scale None) or adds scaled elements offset + row * stride + column to rows * columns floats."""
        add, factor = int(scale is not None), 1.0 if scale is None else scale
        words = np.ascontiguousarray(key, dtype=np.uint32)
        if rows > 1 or threads == 1 or columns < PARALLEL_FROM:
            self.fill(words.ctypes.data, offset, rows, stride, columns, address, columns, add, factor)
            return
        share = -(-columns // (threads * stream.TILE)) * stream.TILE
        workers = [
            threading.Thread(
                target=self.fill,
                args=(
                    words.ctypes.data,
                    offset + start,
                    1,
                    0,
                    min(share, columns - start),
                    address + 4 * start,
                    0,
                    add,
                    factor,
                ),
            )
            for start in range(0, columns, share)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def words64(self, key: stream.Words, offset: int, count: int) -> npt.NDArray[np.uint64]:
        """What stream.words64 defines."""
        words = np.ascontiguousarray(key, dtype=np.uint32)
        out = np.empty(count, np.uint64)
        self._words64(words.ctypes.data, offset, count, out.ctypes.data)
        return out

    def below(self, key: stream.Words, offset: int, count: int, threshold: int) -> npt.NDArray[np.int64]:
        """The numbers of the elements from ``offset`` on whose word of :meth:`words64` is below the threshold."""
        words = np.ascontiguousarray(key, dtype=np.uint32)
        out = np.empty(count, np.int64)
        found = self._below(words.ctypes.data, offset, count, threshold, out.ctypes.data)
        return out[:found]


def _compiler() -> str | None:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    return None


def _processor() -> str:
    """What -march=native depends on: a cache folder may be shared by different machines."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text().splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("model", "flags", "Features", "CPU"))}))
    return platform.processor()


def _private_folder() -> Path:
    """The cache folder, if only we can write to it (code is loaded from there), else a new temporary one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = base.stat()
        if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022 and os.access(base, os.W_OK):
            return base
    except OSError:
        pass  # no home folder, or a read-only one: compile for this process alone
    return Path(tempfile.mkdtemp(prefix="tacit-"))


@functools.cache
def load(rounds: int = stream.ROUNDS) -> tuple[Native | None, str]:
    """The compiled library, or None, and a sentence that says which and why.

    >>> library, why = load()
    >>> isinstance(why, str)
    True
    """
    if os.environ.get("TACIT_NATIVE") == "0":
        return None, "numpy: TACIT_NATIVE=0"
    compiler = _compiler()
    if compiler is None or os.name != "posix":
        return None, "numpy: no C compiler found"
    source = Path(__file__).with_name("native.c")
    flags = (*_FLAGS, f"-DROUNDS={rounds}")
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
        parts = (source.read_text(), version, _processor(), *flags)
        name = hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()
        folder = _private_folder()
        target = folder / f"noise-{name}.so"
        if not target.exists():
            # Compiled beside its final name and moved there whole, so that two processes never see half a file.
            with tempfile.TemporaryDirectory(dir=folder) as workshop:
                fresh = Path(workshop) / "noise.so"
                command = [compiler, *flags, "-o", str(fresh), str(source), "-lm"]
                subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
                os.replace(fresh, target)
        library = Native(ctypes.CDLL(str(target)))
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"numpy: compiling failed ({error})"
    if not _agrees(library, rounds):
        return None, "numpy: the compiled code does not agree with the definition"
    return library, f"native: {compiler}"


def _agrees(library: Native, rounds: int) -> bool:
    """Whether the library gives the bits that stream.py defines, on partial tiles and a tail draw (319,582)."""
    key = np.arange(1, 9, dtype=np.uint32) * np.uint32(0x9E3779B1)
    ours, expected = np.empty(100_000, np.float32), np.empty(100_000, np.float32)
    library.normal(key, 300_001, ours.size, ours.ctypes.data)
    stream.fill_normal(key, 300_001, expected, rounds)
    same = np.array_equal(ours.view(np.uint32), expected.view(np.uint32))
    words, half = stream.words64(key, 77, 3000, rounds), 2**63
    chosen = library.below(key, 77, 3000, half)
    same = same and np.array_equal(library.words64(key, 77, 3000), words)
    return bool(same and np.array_equal(chosen, 77 + np.flatnonzero(words < np.uint64(half))))
