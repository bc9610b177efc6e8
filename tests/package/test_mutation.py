"""Mutation testing: the rules make the wrong versions they name, and what is written about mutants is of this tree."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from types import SimpleNamespace

import pytest
from tools import slow
from tools.mutate import judge, power, record, rules, switch

WRONG = {
    "factor-two": ("return 2 * sensitivity", "return (sensitivity)"),
    "squared": ("return sigma ** 2", "return (sigma)"),
    "scaled": ("f(noise_multiplier=z)", "f(noise_multiplier=(lambda _v: _v if _v is None else _v * 0.5)(z))"),
    "factor": ("return z * clip_norm", "return (z)"),
    "unnoised": ("return total + noise", "return (total)"),
    "unclipped": ("return np.clip(x, 0, 1)", "return (x)"),
    "left-out": ("ledger.charge(step)", "pass"),
    "unguarded": ("if epsilon < 0: raise ValueError(1)", "if False: raise ValueError(1)"),
    "one-off": ("votes += 1", "pass"),
    "swapped": ("return max(spent)", "return min(spent)"),
    "boundary": ("return spent <= budget", "return spent < budget"),
    "adjacency": ('return adjacency == "replace-one"', "return False"),
    "reused": ("key.derive(step)", "key.derive(0)"),
    "unsummed": ("return delta + tail_delta", "return (delta)"),
}


def made(statement: str, rule: str) -> list[str]:
    source = f"def f(x, y):\n    {statement}\n"
    found = rules.mutants_in(source, "src/tacit/room/file.py", every=True)
    return [one.apply(source).splitlines()[1].strip() for one in found if one.rule == rule]


@pytest.mark.parametrize("rule", rules.RULES)
def test_a_rule_makes_the_wrong_version_that_it_is_named_after(rule):
    right, wrong = WRONG[rule]
    assert wrong in made(right, rule)


@pytest.mark.parametrize("rule", rules.RULES)
def test_a_rule_leaves_alone_what_does_not_carry_privacy(rule):
    plain = {"sensitivity": "page", "sigma": "page", "noise_multiplier": "page", "clip_norm": "page", "noise": "page"}
    plain |= {
        "np.clip": "np.flip",
        "ledger.charge": "ledger.show",
        "epsilon": "page",
        "votes": "pages",
        "spent": "pages",
    }
    plain |= {
        "adjacency": "page",
        "derive": "show",
        "tail_delta": "page",
        "delta": "page",
        "budget": "paper",
        "spent": "pages",
    }
    right = WRONG[rule][0]
    for word, other in plain.items():
        right = right.replace(word, other)
    assert made(right, rule) == []


def test_the_id_of_a_mutant_does_not_depend_on_the_rest_of_the_file():
    body = "def f(sigma):\n    return 2 * sigma\n"
    (one,) = rules.mutants_in(body, "src/tacit/room/file.py")
    (other,) = rules.mutants_in("X = 'é'\n\n\n" + body, "src/tacit/room/file.py")
    assert (one.id, one.line, other.line) == (other.id, 2, 5)
    assert other.apply("X = 'é'\n\n\n" + body).endswith("return (sigma)\n")
    with pytest.raises(ValueError, match="changed"):
        one.apply("X = 1\n" + body)


@pytest.fixture(scope="module")
def mutants():
    return {one.id: one for path in rules.files() for one in rules.mutants_of(path)}


def test_there_are_mutants_in_every_room_on_which_a_guarantee_rests(mutants):
    assert len(mutants) >= 500
    rooms = {one.room for one in mutants.values()}
    wanted = {"accounting", "integrations", "ledger", "linear_model", "noise", "opacus", "pate", "prompts"}
    assert wanted | {"report", "runs", "schema", "sgd", "tuning", "audit"} <= rooms


def test_a_file_with_switches_does_what_the_file_does_and_each_switch_what_its_mutant_does():
    source = '"""Text."""\n\nfrom __future__ import annotations\n\n\ndef total(rows, noise, spent):\n'
    source += "    spent += 2 * sum(\n        rows\n    )\n    return spent + noise * 2\n"
    every = dict(enumerate(rules.mutants_in(source, "src/tacit/room/file.py", every=True)))
    assert {one.rule for one in every.values()} >= {"unnoised", "factor-two", "unsummed"}
    asked = []

    def answer(text, on=None):
        space = {"_mutant_on": lambda number: asked.append(number) or number == on}
        exec(compile(text, "file.py", "exec"), space)
        return space["total"]([1.0, 2.0], 0.25, 10.0)

    text = switch.switched(source, every).replace("from mutant_switch import is_on as _mutant_on\n", "")
    assert answer(text) == answer(source) == 16.5
    assert set(asked) == set(every)
    for number, mutant in every.items():
        assert answer(text, number) == answer(mutant.apply(source))


def test_a_condition_that_names_a_value_can_be_switched():
    source = "def f(noise):\n    if most := max(noise, 0):\n        raise ValueError(most)\n"
    every = dict(enumerate(rules.mutants_in(source, "src/tacit/room/file.py", every=True)))
    assert every
    text = switch.switched(source, every).replace("from mutant_switch import is_on as _mutant_on\n", "")
    space = {"_mutant_on": lambda number: False}
    exec(compile(text, "file.py", "exec"), space)
    with pytest.raises(ValueError, match="3"):
        space["f"](3)


def test_a_statement_that_two_mutants_change_can_be_switched_by_either():
    source = "def f(ledger, log):\n    if ledger:\n        ledger.charge(\n            1\n        )\n    return log\n"
    (one,) = (m for m in rules.mutants_in(source, "src/tacit/room/file.py", every=True) if m.rule == "left-out")
    every = {0: one, 1: dataclasses.replace(one, new="ledger.charge(2)")}
    text = switch.switched(source, every).replace("from mutant_switch import is_on as _mutant_on\n", "")
    for on, wanted in ((None, [1]), (0, []), (1, [2])):
        space, log = {"_mutant_on": lambda number, on=on: number == on}, []
        exec(compile(text, "file.py", "exec"), space)
        assert space["f"](SimpleNamespace(charge=log.append), log) == wanted


def test_what_people_wrote_is_a_mutant_of_this_tree():
    found = rules.written()
    kept = tomllib.loads(rules.WRITTEN.read_text(encoding="utf-8"))["fault"]
    assert len({one.id for one in found}) == len(found) >= 0.8 * len(kept)
    for one in found:
        compile(one.apply((rules.ROOT / one.path).read_text(encoding="utf-8")), one.path, "exec")


def test_a_result_holds_until_its_test_changes_and_not_until_its_file_does():
    file = "import math\n\nBOUND = 3\n\n\ndef test_a():\n    assert BOUND\n\n\ndef test_b():\n    assert math.pi\n"
    one = record.digest("tests/x.py::test_a[1]", file)
    assert one == record.digest("tests/x.py::test_a[2]", file.replace("math.pi", "math.e") + "# a comment\n")
    assert one != record.digest("tests/x.py::test_a[1]", file.replace("BOUND = 3", "BOUND = 4"))
    assert one != record.digest("tests/x.py::test_b", file)
    assert record.digest("tests/none.py::test_a") == ""


def test_the_tests_of_a_mutant_are_those_that_asked_for_it(tmp_path, mutants):
    one, other = list(mutants.values())[:2]
    file = "tests/package/test_mutation.py"
    noted = {
        f"{file}::slower": {"outcome": "passed", "seconds": 1.0, "asked": [0, 1]},
        f"{file}::faster": {"outcome": "passed", "seconds": 0.1, "asked": [0]},
        f"{file}::broken": {"outcome": "failed", "seconds": 0.1, "asked": [0, 1]},
    }
    record.Record(tmp_path).add(file, noted, [one, other])
    known = record.Record(tmp_path)
    assert not known.stale(file)
    assert known.candidates(one) == [f"{file}::faster", f"{file}::slower"]
    assert known.candidates(other) == [f"{file}::slower"]


def test_an_explanation_is_of_a_mutant_that_there_is_and_not_of_one_that_is_caught(mutants):
    explained = tomllib.loads(judge.EXPLAINED.read_text(encoding="utf-8"))
    caught = json.loads(judge.CAUGHT_BY.read_text(encoding="utf-8"))
    assert all(len(why.split()) >= 4 for why in explained.values())
    assert not set(explained) & set(caught)
    # A function that was rewritten leaves its mutants behind; make mutants judges the new ones.
    assert len(set(caught) & set(mutants)) >= 0.8 * len(caught)
    assert len(set(explained) & set(mutants)) >= 0.8 * len(explained)


def test_a_mutant_that_is_not_noticed_fails_the_check_only_if_its_test_did_not_change(tmp_path, mutants, capsys):
    file = "tests/package/test_mutation.py"
    one, other = list(mutants.values())[:2]
    caught = {
        one.id: judge.Catch(f"{file}::test", record.digest(f"{file}::test"), one.digest),
        other.id: judge.Catch(f"{file}::test", "another hash", other.digest),
    }
    results = judge.Results(tmp_path / "results.jsonl")
    assert judge.verdict([other], results, caught) == 0
    assert "NOT NOTICED" in capsys.readouterr().out
    assert judge.verdict([one, other], results, caught) == 1
    results.add(one, "caught", f"{file}::another", {}, 0.1)
    assert judge.verdict([one, other], results, caught) == 0


def test_a_test_that_fails_by_luck_catches_nothing(tmp_path, mutants):
    one = next(iter(mutants.values()))
    tests = [f"tests/package/test_mutation.py::{name}" for name in ("lucky", "sure")]
    results = judge.Results(tmp_path / "results.jsonl")
    work = judge.Judge([one], [one], [], record.Record(tmp_path / "record"), results, 20.0, 1e18)
    work.more.append(work._trying(one, tests, {}, 0.0))
    often = {test: 0 for test in tests}
    while work.more:
        job = work.more.popleft()
        word, noted = "passed", {}
        for test in job.tests:
            often[test] += job.mutant >= 0
            bad = job.mutant >= 0 and (test == tests[1] or often[test] == 1)
            word = "failed" if bad else "passed"
            noted[test] = {"outcome": word}
            if bad:
                break
        job.done(word, noted, 0.1)
    assert results.get(one)["test"] == tests[1]
    assert often[tests[1]] == judge.TIMES


def test_slow_tests_that_never_passed_fail_nothing_and_the_turn_ends_in_time(monkeypatch, capsys):
    files, given = ["new.py", "good.py", "long.py"], []
    state = {"good.py": {"result": "passed", "seconds": 5}, "long.py": {"result": "passed", "seconds": 900}}
    monkeypatch.setattr(slow, "pieces", lambda: files)
    result = {"new.py": "failed", "good.py": "passed"}
    monkeypatch.setattr(slow, "run", lambda file, left: given.append(left) or {"result": result[file], "seconds": 1})
    assert slow.take_turns(state, 600.0) == 0
    assert "never ran before, so this does not fail the run" in capsys.readouterr().out
    assert len(given) == 2
    assert max(given) <= 600
    result["good.py"] = "failed"
    assert slow.take_turns(state, 600.0) == 1


def test_a_sample_is_the_same_for_the_same_seed(mutants):
    everything = list(mutants.values())
    one, same, other = (judge.sample(everything, 20, seed) for seed in ("a", "a", "b"))
    assert one == same != other
    assert judge.sample(everything[::-1], 20, "a") == one


def test_the_table_of_slow_tests_is_made_of_the_runs_that_are_recorded():
    state = json.loads(slow.STATE.read_text(encoding="utf-8"))
    rows = slow.table(state, sorted(state)).splitlines()
    assert set(rows) <= set(slow.PAGE.read_text(encoding="utf-8").splitlines()), "run python -m tools.slow"
    files = slow.pieces()
    assert {turn[0] for turn in (slow.turn(files, number) for number in range(len(files)))} == set(files)


def test_a_scene_that_did_not_notice_a_mutant_is_asked_again_when_the_source_changed():
    passed = {"caught": "", "passed": ["votes"], "state": "a"}
    assert power.known_of(passed, "a") == passed
    assert power.known_of(passed, "b") == power.known_of({}, "b") == {"caught": "", "passed": [], "state": "b"}
    caught = {"caught": "votes: noise", "passed": [], "state": "a"}
    assert power.known_of(caught, "b") == caught
