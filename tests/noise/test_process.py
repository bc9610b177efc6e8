"""A key is of no use in a fork of the process that made it, and safe from it."""

import os
import pickle

import pytest

from tacit.noise import ForkError, Key
from tacit.noise.entropy import SYSTEM, expanded, random_bits
from tacit.noise.sampling import uniform

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def in_a_fork(does):
    """What a forked child's call gives, or the name of its error."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = does()
        except BaseException as error:  # noqa: BLE001 it is told to the parent
            found = error
        os.write(there, pickle.dumps(found))
        os._exit(0)
    os.close(there)
    os.waitpid(child, 0)
    with os.fdopen(here, "rb") as pipe:
        return pickle.load(pipe)


@pytest.mark.parametrize(
    "use",
    [
        lambda key: uniform(key, 0, 4),
        lambda key: key.derive("noise"),
        lambda key: key.fingerprint(),
        lambda key: key.reveal(),
        lambda key: key.save("never-written.key"),
    ],
)
def test_a_key_is_refused_in_a_fork_and_goes_on_where_it_was_made(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key = Key.generate()
    refused = in_a_fork(lambda: use(key))
    assert isinstance(refused, ForkError)
    assert "Make the run (or load its key) in the process that trains it" in str(refused)
    use(key)


def test_a_key_in_a_file_can_be_loaded_by_another_process(tmp_path):
    key = Key.generate()
    key.save(tmp_path / "run.key")
    assert in_a_fork(lambda: Key.load(tmp_path / "run.key").fingerprint()) == key.fingerprint()


def test_a_fork_that_leaves_a_with_block_does_not_destroy_its_parents_key_file(tmp_path):
    def leave():
        with key:
            pass
        return key.destroyed, repr(key)

    key = Key.generate()
    key.save(tmp_path / "run.key")
    assert in_a_fork(leave) == (True, "<Key destroyed>")
    assert Key.load(tmp_path / "run.key") == key


def test_a_printed_key_of_another_process_is_no_error():
    key = Key.generate()
    assert in_a_fork(lambda: repr(key)) == "<Key of another process>"


def test_work_that_is_repeatable_under_a_secret_does_not_repeat_it_in_a_fork():
    with expanded(os.urandom(32)):
        random_bits(SYSTEM, 1)
        assert isinstance(in_a_fork(lambda: random_bits(SYSTEM, 1)), ForkError)
        assert isinstance(in_a_fork(Key.generate), ForkError)
    assert isinstance(in_a_fork(lambda: random_bits(SYSTEM, 1)), int)
