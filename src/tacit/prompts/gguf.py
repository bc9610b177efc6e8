"""How is a quantised model file read with torch and numpy alone?

GGUF holds tensors in blocks of 32 weights. Read here are the kinds that SmolLM2's file has (F32, F16, Q8_0 and Q4_1)
and the Llama layout of names, into an ordinary model of ``transformers``. A file may lie in pieces
(``NAME.gguf.part0``, ``NAME.gguf.part1``, …) where one file is too large to carry.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.prompts.errors import LanguageModelError

#: The scalar kinds of the format's metadata, by their number: struct code and width.
_SCALARS = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
_STRING, _ARRAY = 8, 9
#: Tensor kinds: name, weights in a block, bytes of a block.
_KINDS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}

#: Llama's names in the file, and in ``transformers``.
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def split(path: Path, folder: Path, size: int = 48 << 20) -> list[Path]:
    """Write a file as pieces of at most ``size`` bytes; :func:`read` takes any of them for the whole."""
    folder.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes()
    pieces = []
    for number, start in enumerate(range(0, len(content), size)):
        piece = folder / f"{path.name}.part{number}"
        piece.write_bytes(content[start : start + size])
        pieces.append(piece)
    return pieces


def find(folder: Path) -> Path | None:
    """The GGUF file of a folder, or the name that its pieces share; None where there is none."""
    whole = sorted(folder.glob("*.gguf"))
    if whole:
        return whole[0]
    first = sorted(folder.glob("*.gguf.part0"))
    return first[0].with_suffix("") if first else None


def _content(path: Path) -> NDArray[np.uint8]:
    if path.is_file():
        return np.memmap(path, dtype=np.uint8, mode="r")
    pieces = sorted(path.parent.glob(f"{path.name}.part*"), key=lambda p: int(p.suffix.removeprefix(".part")))
    if not pieces:
        raise LanguageModelError(f"there is no model file {path}")
    return np.concatenate([np.fromfile(piece, dtype=np.uint8) for piece in pieces])


class _Cursor:
    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data, self.at = memoryview(data), 0  # type: ignore[arg-type]

    def take(self, code: str, width: int) -> Any:
        found = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += width
        return found

    def text(self) -> str:
        length = self.take("Q", 8)
        self.at += length
        return self.data[self.at - length : self.at].tobytes().decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.take("I", 4), self.take("Q", 8)
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise LanguageModelError(f"the model file has metadata of an unknown kind {kind}")
        return self.take(*_SCALARS[kind])


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata, and tensors as float32, of a GGUF file or of its pieces."""
    data = _content(path)
    if len(data) < 24 or data[:4].tobytes() != b"GGUF":
        raise LanguageModelError(f"{path} is no GGUF file")
    cursor = _Cursor(data)
    cursor.at = 4
    if (version := cursor.take("I", 4)) not in (2, 3):
        raise LanguageModelError(f"{path} is GGUF of version {version}; versions 2 and 3 can be read")
    count, pairs = cursor.take("Q", 8), cursor.take("Q", 8)
    meta = {cursor.text(): cursor.value(cursor.take("I", 4)) for _ in range(pairs)}
    listed = []
    for _ in range(count):
        name = cursor.text()
        shape = [cursor.take("Q", 8) for _ in range(cursor.take("I", 4))]
        listed.append((name, shape[::-1], cursor.take("I", 4), cursor.take("Q", 8)))
    align = meta.get("general.alignment", 32)
    start = (cursor.at + align - 1) // align * align
    tensors = {}
    for name, shape, kind, offset in listed:
        if kind not in _KINDS:
            raise LanguageModelError(f"{path}: tensor {name} is quantised in a way that is not read here (kind {kind})")
        word, per_block, width = _KINDS[kind]
        size = int(np.prod(shape)) // per_block * width
        raw = data[start + offset : start + offset + size]
        if len(raw) < size:
            raise LanguageModelError(f"{path} is cut short: fetch it again")
        tensors[name] = torch.from_numpy(_floats(np.asarray(raw), word).reshape(shape))
    return meta, tensors


def _floats(raw: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """The weights of some blocks. Q8_0: scale, 32 bytes. Q4_1: scale, least value, 16 bytes of two weights each."""
    if kind == "F32":
        return raw.copy().view("<f4")
    if kind == "F16":
        return raw.copy().view("<f2").astype(np.float32)
    blocks = raw.reshape(-1, 34 if kind == "Q8_0" else 20)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    if kind == "Q8_0":
        return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)
    least = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    packed = blocks[:, 4:]
    both = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return (both * scale + least).reshape(-1)


def state_dict(tensors: dict[str, Tensor], heads: int, kv_heads: int) -> dict[str, Tensor]:
    """The tensors of a Llama file under the names, and in the order of rows, that ``transformers`` uses."""
    found = {}
    for name, value in tensors.items():
        inside = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        short = inside[2] if inside else name.removesuffix(".weight")
        if short not in _NAMES:
            raise LanguageModelError(f"the model file has a tensor {name!r} that a Llama model has not")
        if short in ("attn_q", "attn_k"):  # the file has the two halves of a rotation side by side
            count = heads if short == "attn_q" else kv_heads
            rows, width = value.shape
            value = value.reshape(count, rows // count // 2, 2, width).swapaxes(1, 2).reshape(rows, width)
        found[(f"model.layers.{inside[1]}." if inside else "") + _NAMES[short] + ".weight"] = value
    if "lm_head.weight" not in found:
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return found


def load(path: Path, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a Llama GGUF file, with ``config.json`` from ``folder``."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    # Of how the file was packed; the weights are plain numbers from here on.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    meta, tensors = read(path)
    if meta.get("general.architecture") != "llama":
        raise LanguageModelError(f"{path} holds a {meta.get('general.architecture')} model; Llama models are read here")
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    state = state_dict(tensors, config.num_attention_heads, config.num_key_value_heads)
    missing, unexpected = model.load_state_dict({k: v.to(dtype) for k, v in state.items()}, strict=False)
    if missing or unexpected:
        raise LanguageModelError(f"{path} does not fit its config.json: {[*missing, *unexpected][:3]}")
    return model.eval()
