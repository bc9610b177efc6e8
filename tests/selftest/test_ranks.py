"""Real processes as ranks: what a failed start looks like, and what a failed rank looks like."""

from __future__ import annotations

import time

import pytest

from tacit.selftest.ranks import RankFailed, on_ranks, possible

pytestmark = pytest.mark.skipif(not possible(), reason="needs torch.distributed and fork")


def test_ranks_that_are_all_silent_are_started_anew(tmp_path):
    def work(rank):
        tried = tmp_path / f"tried-{rank}"
        if not tried.exists():
            tried.touch()
            time.sleep(300)
        return rank

    assert on_ranks(2, work, group=False, timeout=4.0) == [0, 1]  # long enough to be started on a busy machine


def test_a_rank_that_alone_is_silent_has_failed(tmp_path):
    def work(rank):
        (tmp_path / f"{rank}-{time.monotonic_ns()}").touch()
        time.sleep(300 * rank)

    with pytest.raises(RankFailed, match="rank 1 did not answer"):
        on_ranks(2, work, group=False, timeout=60.0, grace=0.5)
    assert len(list(tmp_path.iterdir())) == 2  # one start
