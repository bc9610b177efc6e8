"""A quantised file is read block by block as it was written, whole or in pieces."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from tests.prompts import tiny

from tacit.prompts import LanguageModelError, Prompt, Template, Verbalizer, gguf, load


def written(path, kind, values, meta=()):
    """One tensor of 2 x 64 weights in a GGUF file, packed as the format says."""
    number, data = kind, b""
    for block in values.reshape(-1, 32):
        if number == 8:  # Q8_0
            scale = np.float16(np.abs(block).max() / 127)
            data += scale.tobytes() + np.round(block / np.float32(scale)).astype(np.int8).tobytes()
        elif number == 3:  # Q4_1
            scale, least = np.float16((block.max() - block.min()) / 15), np.float16(block.min())
            q = np.clip(np.round((block - np.float32(least)) / np.float32(scale)), 0, 15).astype(np.uint8)
            data += scale.tobytes() + least.tobytes() + (q[:16] | q[16:] << 4).tobytes()
        else:
            data += block.astype("<f4" if number == 0 else "<f2").tobytes()

    def text(words):
        return struct.pack("<Q", len(words)) + words.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("some.list") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    head += text("blk.0.attn_v.weight") + struct.pack("<IQQIQ", 2, 64, 2, number, 0)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


@pytest.mark.parametrize(("kind", "error"), [(0, 0.0), (1, 2e-3), (8, 0.02), (3, 0.25)])
def test_weights_come_back_up_to_their_quantisation(tmp_path, kind, error):
    values = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    written(tmp_path / "model.gguf", kind, values)
    meta, tensors = gguf.read(tmp_path / "model.gguf")
    assert meta == {"general.architecture": "llama", "some.list": ["a", "b"]}
    found = tensors["blk.0.attn_v.weight"].numpy()
    assert found.shape == (2, 64)
    assert np.abs(found - values).max() <= error
    pieces = gguf.split(tmp_path / "model.gguf", tmp_path / "pieces", 100)
    assert len(pieces) > 2
    again = gguf.read(gguf.find(tmp_path / "pieces"))[1]["blk.0.attn_v.weight"]
    assert torch.equal(again, tensors["blk.0.attn_v.weight"])


def test_what_is_no_model_file_is_refused(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"something else, long enough for a header")
    with pytest.raises(LanguageModelError, match="is no GGUF file"):
        gguf.read(tmp_path / "a.gguf")
    written(tmp_path / "b.gguf", 0, np.ones((2, 64), np.float32))
    whole = (tmp_path / "b.gguf").read_bytes()
    (tmp_path / "b.gguf").write_bytes(whole[:-8])
    with pytest.raises(LanguageModelError, match="cut short"):
        gguf.read(tmp_path / "b.gguf")
    with pytest.raises(LanguageModelError, match="no model file"):
        gguf.read(tmp_path / "c.gguf")


def test_a_folder_is_loaded_and_a_missing_one_is_named(tmp_path):
    tiny.llama().save_pretrained(tmp_path / "llm")
    tiny.tokenizer().save_pretrained(tmp_path / "llm")
    found = load(tmp_path / "llm").log_probabilities(
        Template("{text} . it was"), Verbalizer.of(["bad", "good"]), ["film"]
    )
    assert found.shape == (1, 2)
    tiny.bert().save_pretrained(tmp_path / "bert")
    tiny.tokenizer().save_pretrained(tmp_path / "bert")
    assert load(tmp_path / "bert").masked
    (tmp_path / "empty").mkdir()
    with pytest.raises(LanguageModelError, match="no language model could be loaded"):
        load(tmp_path / "empty")


@pytest.fixture(scope="module")
def smollm2():
    try:
        return load("smollm2", batch_size=16)
    except LanguageModelError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.data
def test_smollm2_is_read_as_transformers_reads_it(smollm2):
    pytest.importorskip("gguf")
    import transformers

    from tacit.datasets.catalog import MODELS
    from tacit.datasets.locate import locate

    file = locate(MODELS["smollm2"]).paths[0]
    other = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    ours, theirs = smollm2.model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
@pytest.mark.data
def test_smollm2_knows_a_good_review_without_examples(smollm2):
    from tacit import datasets

    try:
        rows = datasets.sst2(download=False)["validation"][:64]
    except datasets.MissingDataError as error:
        pytest.skip(str(error))
    prompt = Prompt(Template("Review: {text}\nSentiment:"), Verbalizer.of(["negative", "positive"]))
    assert prompt.accuracy(smollm2, rows).value > 0.7  # 80% on 300 of them
