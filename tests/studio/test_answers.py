"""What the studio answers is for what was asked, in every part of a page, and says so where there is no answer."""

from __future__ import annotations

import re

import pytest

from tacit import accounting as acc
from tacit.report.words import number, rounded
from tacit.studio import Studio, written
from tests.studio.test_http import SECRET, ask, client


def without_ledger(folder):
    return client(Studio(folder / "runs", None, "", secret=SECRET))


@pytest.mark.parametrize(("adjacency", "group"), [("replace-one", 1), ("add-remove", 3)])
def test_every_answer_about_a_run_is_for_the_neighbours_that_were_asked_about(tmp_path, adjacency, group):
    web = without_ledger(tmp_path)
    run, terms = acc.Gaussian(4.0) * 4, {"adjacency": adjacency, "group": group}
    values = {"noise": "4", "batch": "100", "records": "100", "epochs": "4"} | terms
    one = number(rounded(acc.epsilon(run, 1e-5, **terms).upper))
    assert f">{one}<" in ask(web, "cost/price", **values)["html"]
    drawn = ask(web, "cost/curves", **values)["html"]
    assert f"ε grows to {one} after 4 steps" in drawn
    line = re.search(r'<path class="line" d="M([^"]+)"', drawn)[1].split("L")
    assert [float(point.split(",")[0]) for point in line] == pytest.approx([76 + 526 * k / 4 for k in (1, 2, 3, 4)])
    risk = acc.risk(run, fpr=[0.01], prior=0.1, **terms)
    assert ask(web, "cost/attack", **values)["risk"]["advantage"][1] == pytest.approx(risk.advantage[1], rel=1e-6)
    shape = {"batch": 100, "examples": 100, "steps": 4, "delta": 1e-5, "group": group}
    found = acc.compare_samplers(acc.Gaussian(4.0), **shape).prices["poisson", adjacency]
    assert number(rounded(found.upper, 3)) in ask(web, "cost/samplers", **values)["html"]
    said = acc.compare(run, 1e-5, **terms)["rdp"].epsilon
    assert f">{number(rounded(said, 3))}<" in ask(web, "cost/accountants", **values)["html"]


def test_what_has_no_answer_says_so_in_words(tmp_path):
    web = without_ledger(tmp_path)
    for question in ("ledger/history", "ledger/planned"):
        assert "no ledger was given" in ask(web, question, dataset="people")["error"]
    owned = '[unit]\nname = "p"\ncolumn = "id"\n[columns.a]\nkind = "numeric"\nlower = 0\nupper = 1\n'
    owned += "[columns.b]\nkind = 'numeric'\nlower = 0\nupper = 1\ntarget = true\n"
    assert "one row for each unit" in ask(web, "expected/regression", schema=owned)["error"]
    form = {f"{part}[]": ["" if part != "name" else "age"] for part in written.PARTS}
    assert "whom does the guarantee protect" in ask(web, "schema/toml", **form, unit=" ")["error"]
