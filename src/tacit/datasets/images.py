"""How are the image sets read?

From their published formats: the idx files of MNIST and Fashion-MNIST, and for CIFAR-10 a NumPy archive, the binary
batches or the Python batches. Every header, shape, label and class count is checked.
"""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.datasets.catalog import Entry
from tacit.datasets.dataset import Dataset, Images, entry
from tacit.datasets.errors import BrokenFileError
from tacit.datasets.locate import obtain, read_checked
from tacit.datasets.tables import assemble

_IDX_BYTES = 0x08


def parse_idx(content: bytes, path: Path) -> NDArray[np.uint8]:
    """An array out of an idx file: two zero bytes, the type, the number of dimensions, their sizes, the values.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), Path("three")).tolist()
    [7, 8, 9]
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_BYTES:
        raise BrokenFileError(f"{path} is not an idx file of bytes")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise BrokenFileError(f"{path} is truncated: its header is incomplete")
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    values = np.frombuffer(content, dtype=np.uint8, offset=header)
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise BrokenFileError(
            f"{path} is truncated: {values.size} bytes of pixels or labels where it announces {shape}"
        )
    return values.reshape(shape)


def _images(images: NDArray[Any], labels: NDArray[Any], shape: tuple[int, ...], path: Path) -> Images:
    if images.shape[1:] != shape or labels.shape != images.shape[:1] or images.dtype != np.uint8:
        raise BrokenFileError(f"{path}: images of shape {images.shape} and labels of shape {labels.shape} do not fit")
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) <= 9:
        raise BrokenFileError(f"{path}: a label is not one of the ten classes")
    return Images(images, labels.astype(np.int64))


def _mnist_like(known: Entry, data_dir: str | Path | None, *, download: bool) -> Dataset:
    found = obtain(known, data_dir, download=download)
    arrays = [parse_idx(read_checked(f, p), p) for f, p in zip(found.files, found.paths, strict=True)]
    splits = {
        "train": _images(arrays[0], arrays[1], (28, 28), found.paths[0]),
        "test": _images(arrays[2], arrays[3], (28, 28), found.paths[2]),
    }
    return assemble(known, splits, found.paths)


def mnist(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Handwritten digits: 60,000 + 10,000 images of 28 x 28.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        Splits ``train`` and ``test`` of :class:`Images`.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("mnist").rows
        {'train': 60000, 'test': 10000}
    """
    return _mnist_like(entry("mnist"), data_dir, download=download)


def fashion_mnist(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Images of clothes: 60,000 + 10,000 of 28 x 28.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        Splits ``train`` and ``test`` of :class:`Images`.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("fashion_mnist").rows
        {'train': 60000, 'test': 10000}
    """
    return _mnist_like(entry("fashion_mnist"), data_dir, download=download)


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not expected")
    return text.encode("latin-1")


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can make numpy arrays of plain types and nothing else: a pickle can otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2 to read
            return _encode_latin1
        raise pickle.UnpicklingError(f"the batch asks for {module}.{name}, which has no place in a batch of pictures")


def parse_cifar_python(content: bytes, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A batch of the Python version: a pickled dictionary of ``data`` (rows x 3072, channels first) and ``labels``."""
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        data, labels = np.asarray(fields["data"]), np.asarray(fields["labels"], dtype=np.int64)
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, ValueError, TypeError, IndexError) as error:
        raise BrokenFileError(f"{path}: a batch cannot be read: {error}") from error
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise BrokenFileError(f"{path}: a batch holds {data.dtype} values of shape {data.shape}")
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def parse_cifar_binary(content: bytes, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A batch of the binary version: records of one label and 3,072 pixels, channels first."""
    if not content or len(content) % 3073:
        raise BrokenFileError(f"{path}: a batch is truncated ({len(content)} bytes are not whole records)")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return pixels, records[:, 0].astype(np.int64)


def _cifar_archive(content: bytes, path: Path) -> dict[str, Images]:
    binary = "binary" in path.name
    folder, ending = ("cifar-10-batches-bin", ".bin") if binary else ("cifar-10-batches-py", "")
    parse = parse_cifar_binary if binary else parse_cifar_python
    splits: dict[str, Images] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for split, names in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
                parts = []
                for name in names:
                    member = archive.extractfile(f"{folder}/{name}{ending}")
                    if member is None:
                        raise KeyError(name)
                    parts.append(parse(member.read(), path))
                images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                splits[split] = _images(images, labels, (32, 32, 3), path)
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise BrokenFileError(f"{path} is not a readable CIFAR-10 archive: {error}") from error
    return splits


def _cifar_npz(content: bytes, path: Path) -> dict[str, Images]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            read = {name: arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BrokenFileError(f"{path} is not a readable CIFAR-10 archive: {error}") from error
    return {
        split: _images(read[f"x_{split}"], read[f"y_{split}"].reshape(-1), (32, 32, 3), path)
        for split in ("train", "test")
    }


def cifar10(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Small colour photographs: 50,000 + 10,000 of 32 x 32 x 3, equally many of each of ten classes.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        Splits ``train`` and ``test`` of :class:`Images`.

    Raises:
        BrokenFileError: If the file cannot be read, or the classes are not equally large.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("cifar10").rows
        {'train': 50000, 'test': 10000}
    """
    known = entry("cifar10")
    found = obtain(known, data_dir, download=download)
    content = read_checked(found.files[0], found.paths[0])
    read = _cifar_npz if found.paths[0].suffix == ".npz" else _cifar_archive
    splits = read(content, found.paths[0])
    dataset = assemble(known, splits, found.paths)
    for split in splits.values():
        counts = np.bincount(split.labels, minlength=10)
        if len(set(counts.tolist())) != 1:
            raise BrokenFileError(f"{found.paths[0]}: the ten classes do not have the same number of pictures")
    return dataset
