"""The fastest of several exact ways is measured once, checked, kept, and can be pinned."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from tacit.sgd.kernels import autotune, products, weighted

FACTORS = torch.ones(4, 6, 3), torch.ones(4, 6, 5)


def answer(left, right):
    return left.sum() + right.sum()


def wrong(left, right):
    return answer(left, right) + 1


def broken(left, right):
    raise RuntimeError("out of shared memory")


class Bench:
    """Ways with known times, by a clock that only their runs move."""

    def __init__(self, path, times, seconds=1.0):
        self.now, self.times, self.measured = 0.0, times, []
        self.ways = {name: self.way(name, function) for name, function in WAYS.items()}
        self.chooser = autotune.Chooser(autotune.TuningRecord.read(path), self.timer, lambda: self.now, seconds)

    def way(self, name, function):
        def run(*tensors):
            self.last = name
            return function(*tensors)

        return run

    def timer(self, run, seconds):
        run()
        self.measured.append(self.last)
        self.now += 10 * self.times[self.last]
        return self.times[self.last]

    def pick(self, factors=FACTORS, kind="norms"):
        return self.chooser.pick(kind, self.ways, "plain", torch.equal, factors)


WAYS = {"usual": answer, "wrong": wrong, "broken": broken, "quick": answer, "plain": answer}
TIMES = {"usual": 3e-3, "wrong": 1e-3, "quick": 2e-3, "plain": 4e-3}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "choices.json"


def test_the_fastest_right_way_is_taken_and_the_record_says_what_was_left_out(path):
    bench = Bench(path, TIMES)
    assert bench.pick() == "quick"
    assert bench.measured == ["usual", "quick", "plain"]
    (entry,) = autotune.TuningRecord.read(path).entries.values()
    assert entry["left_out"] == {"wrong": "wrong", "broken": "RuntimeError: out of shared memory"}
    assert entry["microseconds"] == {"usual": 3000.0, "quick": 2000.0, "plain": 4000.0}


def test_a_later_run_takes_the_same_way_without_measuring(path):
    Bench(path, TIMES).pick()
    later = Bench(path, TIMES | {"usual": 1e-6})
    assert later.pick() == "quick"
    assert later.measured == []


def test_batches_of_about_the_same_size_are_not_measured_again(path):
    bench = Bench(path, TIMES)
    bench.pick()
    bench.pick((torch.ones(3, 7, 3), torch.ones(3, 7, 5)))
    assert len(bench.measured) == 3
    bench.pick((torch.ones(3, 7, 4), torch.ones(3, 7, 5)))
    assert len(bench.measured) == 6


def test_a_difference_as_small_as_noise_changes_nothing(path):
    assert Bench(path, TIMES | {"quick": 2.95e-3}).pick() == "usual"


def test_measuring_ends_when_its_time_is_over(path):
    bench = Bench(path, TIMES, seconds=0.025)
    assert bench.pick() == "usual"  # ten runs of it take 30 ms: nothing else is tried
    (entry,) = autotune.TuningRecord.read(path).entries.values()
    assert entry["left_out"]["quick"] == "no time left"
    assert bench.pick(kind="sum") == "usual"
    assert bench.measured == ["usual"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 0, "choices": {}}', '{"version": 1, "choices": {}}', '{"version": 2, "choices": 3}'],
)
def test_a_file_that_cannot_be_read_is_measured_anew(path, text):
    path.parent.mkdir()
    path.write_text(text)
    assert Bench(path, TIMES).pick() == "quick"
    assert len(json.loads(path.read_text())["choices"]) == 1


def test_two_processes_keep_both_what_they_found(path):
    one, two = Bench(path, TIMES), Bench(path, TIMES)
    one.pick()
    two.pick(kind="sum")
    assert len(autotune.TuningRecord.read(path).entries) == 2


def test_a_folder_that_cannot_be_written_does_no_harm(path):
    path.parent.write_text("a file where the folder should be")
    bench = Bench(path, TIMES)
    assert bench.pick() == bench.pick() == "quick"
    assert len(bench.measured) == 3


def test_the_environment_turns_it_off_or_names_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TACIT_CHOICES", raising=False)
    assert autotune.place() == tmp_path / "tacit" / "choices.json"
    monkeypatch.setenv("TACIT_CHOICES", "default")
    assert autotune.place() is None
    assert autotune.Chooser(None).pick("norms", WAYS, "plain", torch.equal, FACTORS) == "usual"
    monkeypatch.setenv("TACIT_CHOICES", "pinned.json")
    assert autotune.place().name == "pinned.json"
    monkeypatch.setenv("TACIT_CHOICES", "off")
    with pytest.raises(ValueError, match="'default' or the name of a"):
        autotune.place()


def test_a_forced_way_is_taken_on_any_device():
    left, right = (torch.randn(3, 8, n) for n in (20, 30))
    assert not autotune.chooses("norms", left)
    with autotune.forced(norms="gram by products in 1"):
        assert autotune.chooses("norms", left)
        by_gram = products.factor_norms(left, right)
    assert torch.allclose(by_gram, products.factor_norms(left, right), rtol=1e-5)


def test_numbers_are_made_up_in_the_same_order_and_within_a_limit():
    large = torch.empty(64, 10, 6).transpose(1, 2)
    (some,) = autotune.made_up(large, most=64 * 6 * 4 * 10)
    assert some.shape == (64, 6, 10)
    assert some.stride() == large.stride()
    assert some.std() > 0.9
    (few,) = autotune.made_up(large, most=1000)
    assert few.shape == (4, 6, 10)
    assert autotune.made_up(large, most=100) is None


def test_made_up_numbers_differ_and_no_part_of_a_product_or_gram_matrix_is_negligible():
    left, right = autotune.made_up(torch.empty(2, 64, 48), torch.empty(2, 64, 48))
    assert not torch.equal(left, right)
    whole = products.factor_norms(left, right)[:, 0]
    grams = (left @ left.mT) * (right @ right.mT)
    for i in range(0, 64, 16):
        for j in range(0, 64, 16):
            assert (grams[:, i : i + 16, j : j + 16].sum((1, 2)) > 0.02 * whole).all()


def test_sums_that_cut_off_are_right_and_sums_that_leave_out_a_token_or_round_a_factor_are_not():
    left, right, scale = autotune.made_up(torch.empty(4, 256, 40), torch.empty(4, 256, 30), torch.empty(4))
    left, right = left.bfloat16(), right.bfloat16()
    wanted = products.weighted_product(left, right, scale)
    check = partial(weighted._sums_agree, terms=1024)
    assert check(wanted * (1 - 1024 * autotune.CUT_OFF), wanted)
    assert not check(wanted - scale[1] * left[1, 7, :, None].float() * right[1, 7].float(), wanted)
    rounded = (left.float() * scale[:, None, None]).bfloat16().float()
    assert not check(torch.einsum("btp,btq->pq", rounded, right.float()), wanted)
    one_element = wanted.clone()
    one_element[3, 5] += 0.02 * wanted.norm() / wanted.numel() ** 0.5
    assert not check(one_element, wanted)
