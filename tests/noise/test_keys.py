"""Keys: from entropy, in their own file, never exported, destroyed at the end."""

import copy
import errno
import os
import pickle
import stat
import subprocess
import sys

import numpy as np
import pytest

from tacit.noise import Key, KeyFileError, keys


def test_two_keys_are_never_the_same():
    assert len({Key.generate().fingerprint() for _ in range(100)}) == 100


def test_a_saved_key_comes_back_and_only_its_owner_can_read_the_file(tmp_path):
    key = Key.generate()
    old = os.umask(0)
    try:
        key.save(tmp_path / "run.key")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "run.key").stat().st_mode) == 0o600
    assert Key.load(tmp_path / "run.key") == key


def test_saving_never_overwrites(tmp_path):
    path = tmp_path / "run.key"
    Key.generate().save(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        Key.generate().save(path)
    assert path.read_bytes() == before
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        Key.generate().save(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o610])
def test_a_key_that_others_can_reach_is_refused(tmp_path, mode):
    Key.generate().save(tmp_path / "run.key")
    os.chmod(tmp_path / "run.key", mode)
    with pytest.raises(KeyFileError, match="other users"):
        Key.load(tmp_path / "run.key")


def test_what_is_not_a_key_is_refused(tmp_path):
    path = tmp_path / "run.key"
    for content in (b"", b"x" * 48, b"tacit secret k1\n" + bytes(31), b"tacit secret k1\n" + bytes(33)):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(KeyFileError, match="not a tacit key"):
            Key.load(path)
    with pytest.raises(FileNotFoundError):
        Key.load(tmp_path / "missing")
    with pytest.raises(OSError):
        Key.load(tmp_path)
    with pytest.raises(ValueError, match="32 bytes"):
        Key(b"short")


def test_destroying_a_key_wipes_memory_and_file(tmp_path):
    path = tmp_path / "run.key"
    key = Key.generate()
    key.save(path)
    secret = key._secret
    os.link(path, tmp_path / "second name")  # shows what the file held when it was unlinked
    content = path.read_bytes()
    key.destroy()
    assert key.destroyed
    assert not any(secret)
    assert not path.exists()
    assert (tmp_path / "second name").read_bytes() != content
    assert content[16:] not in (tmp_path / "second name").read_bytes()
    key.destroy()  # a second time is harmless
    for use in (
        lambda: key.derive("noise"),
        lambda: key.stream("normal", 0, 0),
        lambda: key.save(path),
        key.fingerprint,
    ):
        with pytest.raises(ValueError, match="destroyed"):
            use()
    assert repr(key) == "<Key destroyed>"


def test_a_loaded_key_destroys_its_file(tmp_path):
    path = tmp_path / "run.key"
    Key.generate().save(path)
    with Key.load(path):
        assert path.exists()
    assert not path.exists()


def test_a_key_cannot_be_pickled_or_copied_into_a_checkpoint():
    key = Key.generate()
    for export in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"key\.save"):
            export(key)
    with pytest.raises(TypeError, match=r"key\.save"):
        pickle.dumps({"optimizer": [key]})
    with pytest.raises(TypeError):
        hash(key)


def test_a_printed_key_shows_no_secret():
    secret = bytes(range(32))
    text = f"{Key(secret)!r} {Key(secret)} {Key(secret).fingerprint()}"
    assert secret.hex() not in text
    assert not any(secret[i : i + 4].hex() in text for i in range(29))


def test_purposes_steps_and_parameters_have_unrelated_streams():
    key = Key(bytes(range(32)))
    triples = [
        (purpose, step, parameter)
        for purpose in ("normal", "uniform", "norma")
        for step in (0, 1, 256, 2**63)
        for parameter in (0, 1, "0", "1", "l", "w.weight", "", "i0", "s0", -1)
    ]
    streams = {key.stream(*triple).tobytes() for triple in triples}
    assert len(streams) == len(triples)
    assert key.derive("noise") != key.derive("sampler")
    assert key.derive("noise") != key
    assert np.array_equal(key.stream("normal", 3, "w"), Key(bytes(range(32))).stream("normal", 3, "w"))


@pytest.mark.parametrize("step", [-1, 2**64])
def test_steps_out_of_range_are_refused(step):
    with pytest.raises(ValueError, match="step"):
        Key(bytes(32)).stream("normal", step, 0)


KILLED = """
import os, signal, sys
from tacit.noise import Key
path, last, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
key = Key.generate()
if what == "destroy":
    key.save(path)
calls = 0
def dying(call):
    def wrapper(*arguments, **options):
        global calls
        result = call(*arguments, **options)
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return wrapper
for name in ("open", "write", "fsync", "link", "unlink", "replace", "close"):
    setattr(os, name, dying(getattr(os, name)))
getattr(key, what)(*([path] if what == "save" else []))
"""


@pytest.mark.parametrize("what", ["save", "destroy"])
def test_a_kill_after_any_system_call_leaves_a_whole_key_or_none(tmp_path, what):
    for last in range(1, 20):
        path = tmp_path / f"{what}-{last}.key"
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(last), what], check=False)
        Key.sweep(path)
        if path.exists():
            Key.load(path).destroy()
        assert list(tmp_path.iterdir()) == []
        if done.returncode == 0:
            break
        assert done.returncode == -9
    assert last > 4


def test_a_file_system_without_second_names_keeps_keys_too(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    key = Key.generate()
    key.save(tmp_path / "run.key")
    assert Key.load(tmp_path / "run.key") == key
    with pytest.raises(FileExistsError):
        Key.generate().save(tmp_path / "run.key")
    assert [p.name for p in tmp_path.iterdir()] == ["run.key"]


class Run:
    """Something that draws noise."""


def test_a_key_serves_one_run_of_a_process_whichever_object_holds_it():
    first, second, key = Run(), Run(), Key.generate()
    key.claim(first)
    key.claim(first)
    for same in (key, Key(key.reveal())):
        with pytest.raises(ValueError, match="two runs with the same noise reveal how their data differ"):
            same.claim(second)
    del first
    with pytest.raises(ValueError, match="uses this key, or used it"):
        key.claim(second)
    key.derive("another").claim(second)


def test_a_key_that_is_trusted_or_repeatable_serves_again():
    key = Key.generate()
    key.claim(Run())
    resumed, test = Run(), Key(key.reveal(), repeatable=True)
    key.claim(resumed, trusted=True)
    key.claim(resumed)
    test.claim(Run())
    test.derive("noise").claim(Run())
    test.derive("noise").claim(Run())


def test_few_names_of_keys_are_remembered_and_no_secret(monkeypatch):
    monkeypatch.setattr(keys, "_claimed", {})
    monkeypatch.setattr(keys, "_REMEMBERED", 3)
    run, made = Run(), [Key.generate() for _ in range(5)]
    for key in made:
        key.claim(run)
    assert list(keys._claimed) == [key.fingerprint() for key in made[2:]]
