"""A private run inside somebody else's loop refuses what it could not account for."""

from __future__ import annotations

import pytest

from tacit.integrations.run import PrivateRun
from tacit.noise import Key
from tacit.sgd.training.checkpoint import CheckpointError


def run(**changes):
    usual = {"noise_multiplier": 1.0, "target_epsilon": None, "target_delta": 1e-5, "max_grad_norm": 1.0}
    return PrivateRun(**(usual | changes))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, float("nan")])
def test_a_delta_that_is_no_probability_is_refused(delta):
    with pytest.raises(ValueError, match="target_delta"):
        run(target_delta=delta)


def test_the_key_of_another_run_is_not_taken(tmp_path):
    Key.generate().save(tmp_path / "key")
    with pytest.raises(CheckpointError, match="key of another run"):
        run()._old_key({"key_file": str(tmp_path / "key"), "key": "0" * 16, "stamp": ""})


def test_a_state_of_another_step_is_not_resumed():
    with pytest.raises(CheckpointError, match="not that of step 4"):
        run().resume({"accountant": {}, "steps": 3}, 4)
    run().resume({"accountant": {}, "steps": 4}, 4)
