"""An officer finds on the report which columns were used, what was released, how much ε is, and twenty answers."""

from __future__ import annotations

import dataclasses
import json
import re
import sys

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.ledger import EvaluationData, Ledger
from tacit.linear_model import LinearRegression, LogisticRegression, linear, logistic
from tacit.report import (
    Evaluation,
    PublicSource,
    Run,
    Statement,
    describe_fit,
    make_card,
    make_page,
    read_card,
    words,
    write_card,
    write_page,
)
from tacit.report.deployments import DEPLOYMENTS
from tacit.report.officer import QUESTIONS
from tacit.report.pdf import NoPrinter, write_pdf
from tacit.report.registry import OPEN, RegistryAnswers, make_record, to_yaml
from tacit.report.texts import catalogue, numbers, say, translated
from tacit.report.votes import SANITISED
from tacit.report.words import size
from tacit.runs.settings import Settings
from tacit.schema import Categorical, Numeric, Schema, Unit
from tacit.sgd.training.probes import Probes
from tests.report.common import run
from tests.report.test_page import browser, read

ROWS = 4000
SCHEMA = Schema(
    (
        Numeric("age", 18, 95, description="only <adults> are asked"),
        Categorical("ward", ["north", "model"], description="the code book"),
        Numeric("income", 0, 100_000, target=True),
    ),
    Unit("person"),
    "clinic",
)
#: What runs and commands call a purpose where nobody stated one.
PURPOSES = (
    Settings("x.csv", epsilon=1.0, delta=1e-6, epochs=1).purpose,
    "private regression",
    "private tuning",
    "private prompt by teachers' votes",
    "labels by teachers' noisy votes",
    "private training, 1,200 steps",
    "",
)
STATED = {
    "purpose": "how income grows with age",
    "tuning": "none",
    "uncovered": (),
    "public_sources": (),
    "pretrained": (),
    "statement": Statement("central: the office", "the coefficients, to everybody", "dpo@example.org"),
}


def fitted(ledger: Ledger | None = None) -> LinearRegression:
    generator = np.random.default_rng(0)
    age, ward = generator.uniform(18, 90, ROWS), generator.choice(["north", "model"], ROWS)
    income = 500 * age + 3000 * (ward == "north") + generator.normal(0, 5000, ROWS)
    charged = {} if ledger is None else {"ledger": ledger, "dataset": "clinic"}
    pl = pytest.importorskip("polars")
    table = pl.DataFrame({"age": age, "ward": ward, "income": income})
    return LinearRegression(2.0, 1e-6, bounds=SCHEMA, **charged).fit(table, None)


@pytest.fixture(scope="module")
def fit():
    ledger = Ledger()
    ledger.register("clinic", unit="person", epsilon=5, delta=1e-5)
    return fitted(ledger)


@pytest.fixture(scope="module")
def card(fit):
    return make_card(describe_fit(fit, "income by age", **STATED))


@pytest.fixture(scope="module")
def page(card):
    return make_page(card)


def table(page: str, origin: str) -> list[str]:
    return [text for text, where in read(page).pieces if where == origin]


def test_the_columns_stand_on_the_page_with_bounds_and_the_reason_for_them(page):
    found = table(page, "data.columns")
    for text in ("age", "18 … 95", "only <adults> are asked", "north, model, other", "target", "no reason is stated"):
        assert text in found, text
    assert "<adults>" not in page  # it is text, not an element


def test_the_released_coefficients_are_those_of_the_fit_with_their_intervals_and_their_charge(fit, card, page):
    told = {one["name"]: one for one in card["released"]["coefficients"]}
    assert told["age"]["value"] == fit.coef_[0]
    with pytest.warns(acc.PrivacyWarning, match="the noise hides"):
        ends = fit.confidence_interval(0.95)
    assert [told["age"]["lower"], told["age"]["upper"]] == ends[0].tolist()
    assert told["intercept"]["value"] == fit.intercept_
    assert card.source("released").startswith("charged to clinic (charge ")
    assert size(fit.coef_[0]) in table(page, "released")
    assert not re.search(r"\de[+-]", "".join(table(page, "released")))  # no number is written as a program writes it


def test_what_was_not_charged_is_public_as_an_output_of_the_mechanism():
    made = make_card(describe_fit(fitted(), "no ledger", **STATED))
    assert made.source("released") == "public: output of the mechanism that the stated guarantee covers"


def test_a_classifier_lists_its_classes_and_coefficients():
    x = np.random.default_rng(0).uniform(0, 1, (3000, 2))
    made = LogisticRegression(epsilon=4.0, bounds=(0, 1), classes=[0, 1]).fit(x, (x[:, 0] > 0.5).astype(int))
    shown = make_card(describe_fit(made, "classes"))
    assert len(shown["released"]["coefficients"]) == 3
    assert shown["data"]["columns"][-1]["labels"] == ["0", "1"]


def test_no_mechanism_is_written_as_a_program_writes_it(page):
    trained = make_page(make_card(run(Ledger())))
    names = [name for name in acc.__all__ if name[0].isupper()]
    for text in [text for made in (page, trained) for text, _ in read(made).pieces]:
        assert not re.search(rf"\b({'|'.join(names)})\(", text), text
    assert "Gaussian noise of" in page


def test_what_is_assumed_of_a_sampler_is_said_only_where_one_ran(page):
    assert "the sampler that ran" not in page
    assert "the sampler that ran" in make_page(make_card(run(Ledger())))


def test_what_is_assumed_of_the_noise_is_what_drew_it(card):
    trained = make_card(run(Ledger()))
    for one, said, other in ((card, "operating system", "its key"), (trained, "its key", "operating system")):
        assumed = " ".join(one["accountant"]["assumptions"])
        assert said in assumed
        assert other not in assumed


def test_that_nothing_else_was_released_is_stated_in_a_word_and_hides_no_note_of_the_fit(fit):
    assert Run("a", acc.Laplace(1.0), delta=0.0, uncovered=("nothing",)).uncovered == ()
    assert Run("a", acc.Laplace(1.0), delta=0.0).uncovered is None
    loose = LinearRegression(1.0, 1e-6, bounds=(0, 1), target_bounds=(0, 1))
    loose.fit(np.linspace(0, 1, 500)[:, None], np.linspace(0, 1, 500))
    loose.privacy_.details["assumptions"] = ("NOT covered: the bounds",)
    for stated, told in ((("nothing",), ()), (("a map",), ("a map",)), (None, ())):
        given = {} if stated is None else {"uncovered": stated}
        assert describe_fit(loose, "a", **given).uncovered == ("NOT covered: the bounds", *told)


def test_how_much_epsilon_is_follows_from_the_certified_profile(card, page):
    best = acc.delta(acc.from_dict(card["mechanism"]["description"]), 0.0).upper
    shown = float(re.search(r'<b><span data-from="guarantee.profile">([\d.]+)%', page)[1]) / 100
    assert 0.5 + best / 2 <= shown <= 0.5 + best / 2 + 0.0012


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize(("adjacency", "counted"), [("add-remove", False), ("zero-out", True), ("replace-one", True)])
def test_who_knows_all_other_records_is_not_said_to_doubt_presence_where_the_number_is_public(
    adjacency, counted, language
):
    bare = Run("a", acc.Gaussian(3.0, unit="patient"), delta=1e-6, adjacency=adjacency, records_public=counted)
    made = make_page(make_card(bare), language)
    presence = {"en": "in the data", "de": "in den Daten"}[language]
    hidden = {"en": "not that they are among the data", "de": "nicht dass sie dabei sind"}[language]
    public = {"en": "number of records is treated as public.", "de": "Zahl der Datensätze gilt als öffentlich."}
    assert (public[language] in made) == counted
    assert (presence in made) == (adjacency == "add-remove")
    assert (hidden in made) == counted
    if language == "de":
        names = set(re.findall(r"<code>([^<]+)</code>", made)) | {"Privacy report: a"}
        assert not untranslated(make_page(make_card(bare)), names)
        assert made.count("An attacker who") == 1  # in the card, as its file has it


def test_this_run_stands_among_deployments_of_others_in_the_order_of_epsilon(page):
    rows = re.findall(r"<tr>.*?</tr>", page[page.index("Next to what others published") :].split("</table>")[0])[1:]
    epsilons = [float(re.sub(r"<[^>]+>", "", row.split("</td>")[2])) for row in rows]
    assert epsilons == sorted(epsilons)
    assert len(epsilons) == len(DEPLOYMENTS) + 1
    (own,) = [row for row in rows if "this run" in row]
    assert 'data-from="guarantee.epsilon.claimed">2<' in own
    none = make_page(make_card(Run("bare", acc.Gaussian(0.0), delta=1e-6)))
    assert "this run" in none[none.index("Next to what others published") :].split("</table>")[0].split("<tr>")[-1]


def test_the_file_says_what_a_program_would_and_the_page_does_not():
    chosen = acc.Selected(acc.PoissonSampled(acc.Gaussian(3.0), 0.1) * 20 + acc.ApproxDP(0.0, 1e-20), gamma=0.5)
    text = make_page(make_card(Run("search", chosen, delta=1e-6)))
    body = " ".join(
        piece for piece, _ in read(text[: text.index("<h2>The privacy card")] + "</main></body></html>").pieces
    )
    assert "the best of 2 runs on average (geometric), each of them: 20 times: Gaussian noise of 3" in body
    assert "a failure with a chance of at most 1e-20" in body
    assert not re.search(r"[A-Z][a-z]+\(|=0\.|gamma|mean 10|deltas", body)


def test_what_a_fit_assumes_of_its_rows_is_said_on_its_report(card, page):
    assert "Each row counts as a different person." in table(page, "accountant.assumptions")
    rows = describe_fit(fitted(), "rows")
    assert "At most" not in make_page(make_card(rows))
    several = dataclasses.replace(rows, parameters={"max_rows": 4})
    assert "At most 4 rows of one person take part." in table(make_page(make_card(several)), "mechanism.parameters")


def test_what_there_is_not_is_not_said_to_be_kept(page):
    trained = make_page(make_card(run(Ledger())))
    bare = make_page(make_card(Run("bare", acc.Laplace(5.0), delta=1e-6)))
    keys = [("key of the noise" in made, "owner, analyst and auditor" in made) for made in (page, trained, bare)]
    assert keys == [(False, True), (True, True), (False, False)]


def test_each_of_twenty_questions_has_an_answer(card):
    assert len(QUESTIONS) == 20
    for made in (card, make_card(run(Ledger())), make_card(Run("bare", acc.Gaussian(0.0), delta=1e-6))):
        text = make_page(made)
        rows = re.findall(r"<tr>(?:(?!</tr>).)*?muted(?:(?!</tr>).)*?<a href=\"#\w+\">more</a>.*?</tr>", text)
        assert len(rows) == 20
        for row in rows:
            answer = re.sub(r"<[^>]+>", "", row.split("</td>")[2])
            assert len(answer.strip()) > len("more"), row
            (place,) = re.findall(r'href="#(\w+)"', row)
            assert f'id="{place}"' in text


def test_a_question_without_an_answer_is_marked_before_the_signature(card):
    marked = "to be answered before anybody signs"
    full = describe_fit(fitted(), "full", **STATED)
    test = EvaluationData.declared_public([0, 1], because="a published benchmark")
    full = dataclasses.replace(
        full,
        data="the survey",
        records_public=False,
        columns=tuple(dict(column) | {"why": "the code book"} for column in full.columns),
        evaluations=(Evaluation("accuracy", test.metric("accuracy", 0.5)),),
    )
    assert marked not in make_page(make_card(full))
    reasons = dataclasses.replace(full, columns=describe_fit(fitted(), "full").columns)
    estimate = Evaluation(SANITISED, test.metric("e", 0.5), model="release")  # of ε, and of no accuracy
    for less in (
        *(dataclasses.replace(full, purpose=purpose) for purpose in PURPOSES),
        reasons,
        dataclasses.replace(full, evaluations=()),
        dataclasses.replace(full, evaluations=(estimate,)),
        *(
            dataclasses.replace(full, **{used: (PublicSource("a sample", "evaluation"), PublicSource("b", "x", "no"))})
            for used in ("public_sources", "pretrained")
        ),
    ):
        made = make_page(make_card(less))
        assert made.count(marked) == 1, less
        german = make_page(make_card(less), "de")
        assert not re.search(r"not stated|same people|what for|given by a person", german.split("Unterzeichnet")[0])
    known = dataclasses.replace(full, public_sources=(PublicSource("a sample", "evaluation", "yes"),))
    assert "a sample (may contain the same people: yes)" in make_page(make_card(known))
    assert marked not in make_page(make_card(known))
    bare = make_page(make_card(Run("bare", acc.Laplace(5.0), delta=1e-6)))
    assert bare.count(marked) == 12
    assert "Signature" in bare[bare.rindex(marked) :]


def answer(page: str, question: str) -> str:
    """What stands beside a question."""
    (found,) = re.findall(rf"<tr>(?:(?!</tr>).)*?{re.escape(question)}.*?</tr>", page)
    return re.sub(r"<[^>]+>", " ", found.split("</td>")[2])


def test_whether_the_bits_of_the_noise_can_leak_is_answered_by_how_it_was_drawn(page):
    question = "How is noise drawn, and can its bits leak?"
    assert "they show nothing that the price does not count" in answer(page, question)
    trained = make_card(run())
    assert "that the last bits show no more is not proven" in answer(make_page(trained), question)
    assert "nicht bewiesen" in make_page(trained, "de")
    tuned = dataclasses.replace(
        run(), generator="training: ChaCha12, keyed; score, number of runs and choice: exact, from the operating system"
    )
    assert "not proven" in answer(make_page(make_card(tuned)), question)
    bare = answer(make_page(make_card(Run("bare", acc.Laplace(5.0), delta=1e-6))), question)
    assert "what its bits can show is not stated" in bare
    assert "to be answered before anybody signs" in bare


def test_for_whom_it_is_accurate_is_answered_by_subgroup():
    said = answer(make_page(make_card(run())), "Is it accurate enough for its purpose, and for whom?")
    assert " ".join(said.split()) == ("accuracy : 81.2% by subgroup: sex = &lt;female&gt; , accuracy : 75.0% more")


def test_every_reason_for_no_intervals_and_every_probe_is_said_in_german():
    reasons = (linear.CLIPS, *(getattr(logistic, name) for name in ("CLIPS", "FEW", "NOISY", "PURE", "SEVERAL")))
    said = [say(f"there are no intervals for this fit: {why}".split(". ")[0], "de") for why in reasons]
    said += [say(f"{words.UNREACHED}{Probes(every, 20.0).words(50)}.", "de") for every in (1, 64)]
    said += [say("[0.99, 1.01]", "de"), say("public: these neighbours have it in common", "de")]
    for text in said:
        assert not re.search(r"\b(the|than|for|with|one|of|these|by)\b|, 1", text), text


def test_why_a_value_may_be_published_is_said_once():
    card = make_card(run())
    assert card["accesses"].source("records") == "public: these neighbours have it in common"


def test_nobody_is_said_to_have_written_bounds_without_a_look_at_the_data(card, page):
    assert not re.search(r"without (the data|looking)", page[: page.index("What was released")])
    assert "tacit did not compute them from these rows" in page
    assert "not computed by tacit" in card["data"].source("columns")


def test_a_budget_is_shown_as_it_was_set(page):
    assert "budget: ε = 5, δ = 1e-5" in page
    assert "1.001e-5" not in page


def test_a_card_of_before_still_has_a_page(card, tmp_path):
    path = write_card(card, tmp_path / "privacy.json")
    old = json.loads(path.read_text())
    del old["released"], old["data"]["columns"]
    old["sources"] = {k: v for k, v in old["sources"].items() if k not in ("released", "data.columns")}
    path.write_text(json.dumps(old))
    assert "The columns are not listed" in make_page(read_card(path))


def test_the_new_entries_of_a_card_are_read_back(card, tmp_path):
    again = read_card(write_card(card, tmp_path / "privacy.json"))
    assert again["data"]["columns"] == card["data"]["columns"]
    assert again["released"] == card["released"]
    assert make_page(again) == make_page(card)


# -- languages ---------------------------------------------------------------------------------------------------------

#: What is the same in both languages.
SAME = {"How to DP-fy ML", "GDPR", "AUC", "rdp", "gdp"} | {one.who for one in DEPLOYMENTS}


def fixed(page: str) -> set[str]:
    """The fixed texts of a page: outside what names an entry of the card."""
    return {" ".join(text.split()) for text, where in read(page).pieces if not where and re.search("[a-z]{2}", text)}


def untranslated(page: str, paths: set[str]) -> set[str]:
    return {t for t in fixed(page) if say(t, "de") == t and t not in SAME | paths and not t.startswith("public: ")}


@pytest.mark.parametrize("kind", ["fit", "training", "nothing"])
def test_every_fixed_text_of_the_report_is_in_the_catalogue(kind, card):
    made = {"fit": lambda: card, "training": lambda: make_card(run(Ledger())), "nothing": lambda: None}
    one = made[kind]() or make_card(Run("bare", acc.Gaussian(0.0), delta=1e-6))
    text = make_page(one)
    assert not untranslated(
        text, set(re.findall(r"<code>([^<]+)</code>", text)) | {"Privacy report: " + one["run"]["name"]}
    )


def test_a_text_that_is_missing_from_the_catalogue_would_be_noticed():
    assert untranslated("<p>Something new</p>", set()) == {"Something new"}


def test_a_german_page_says_the_same_and_leaves_names_alone(card, page):
    german = make_page(card, "de")
    assert '<html lang="de">' in german
    assert "Was veröffentlicht wurde" in german
    assert "What was released" not in german
    # "model" is a word of the catalogue, and here the name of a ward.
    assert "north, model, other" in german
    names = re.compile(r'data-from="([^"]+)"')
    assert names.findall(page) == names.findall(german)
    assert re.sub(r"\D", "", read(page).pieces[0][0]) == re.sub(r"\D", "", read(german).pieces[0][0])


def test_what_a_person_wrote_cannot_become_an_element_by_translation():
    assert translated("<p>&lt;b&gt;not stated</p>", "de") == "<p>&lt;b&gt;not stated</p>"
    assert translated("<p>Charged to &amp; no</p>", "de") == "<p>Charged to &amp; no</p>"
    assert "<b>" not in translated("<p>one in &lt;b&gt;</p>", "de")


def test_places_of_a_text_are_the_places_of_its_translation():
    for english, german in catalogue()["de"].items():
        wanted = set(re.findall(r"\{(\w+)\}", english))
        assert set(re.findall(r"\{(\w+)\}", german)) <= wanted, english


def test_a_list_is_translated_member_by_member():
    made = acc.PoissonSampled(acc.Gaussian(2.0), 0.25) * 3 + acc.Laplace(4.0) + acc.ApproxDP(0.0, 1e-9)
    text = say(words.mechanism(made), "de")
    assert text.startswith("3-mal: Gaußsches Rauschen vom 2-Fachen der Sensitivität auf einer Stichprobe")
    assert text.endswith("; dann Laplace-Rauschen vom 4-Fachen der Sensitivität; dann ein Versagen mit einer "
                         "Wahrscheinlichkeit von höchstens 1e-9")  # fmt: skip
    both = "replace one person: ε ≤ 1.8; zero out one person: ε ≤ 0.9"
    assert (
        say(both, "de") == "eine Einheit (Person) durch eine andere ersetzt: ε ≤ 1.8; "
        "der Beitrag einer Einheit (Person) durch einen leeren ersetzt: ε ≤ 0.9"
    )


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_every_claim_and_its_terms_are_said_in_german(adjacency, group, delta):
    bound = acc.epsilon(acc.Laplace(3.0, unit="person"), delta, adjacency=adjacency, group=group)
    for counted in (False, True)[: 1 + (adjacency != "add-remove")]:
        said = say(words.claim(bound, counted=counted), "de")
        assert "Wahrscheinlichkeit" in said
        assert "Person" in said
        assert " the " not in said
    assert "Person" in say(bound.terms, "de")


def test_german_numbers():
    assert numbers("2.7183 and 1,000,000; 1e-6; 0.5%", "de") == "2,7183 and 1\u202f000\u202f000; 1e-6; 0,5\u202f%"
    assert numbers("tacit 0.2.0, SHA 1.2.3.4, 12,34", "de") == "tacit 0.2.0, SHA 1.2.3.4, 12,34"
    assert numbers("1,000.5", "en") == "1,000.5"


def test_an_unknown_language_is_refused(card):
    with pytest.raises(ValueError, match="there are en, de"):
        make_page(card, "xx")


# -- the registry -----------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("kind", ["fit", "training", "infinite", "pure"])
def test_a_record_follows_the_schema_of_the_registry(kind, card, data_folder):
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    rules = yaml.safe_load((data_folder / "registry" / "deployments-schema.yaml").read_text())
    made = {
        "fit": lambda: card,
        "training": lambda: make_card(run(Ledger())),
        "infinite": lambda: make_card(Run("none", acc.Gaussian(0.0), delta=1e-6)),
        "pure": lambda: make_card(Run("pure", acc.Laplace(1.0), delta=0.0)),
    }[kind]()
    record = yaml.safe_load(to_yaml(make_record(made, RegistryAnswers(("Office",), "Georgia", ("A. Lee",)))))
    jsonschema.validate(record, rules)
    assert record == make_record(made, RegistryAnswers(("Office",), "Georgia", ("A. Lee",)))
    stated = record["deployment"]["privacy_loss"]["privacy_parameters"]
    if kind == "infinite":
        assert "epsilon" not in stated
    else:
        assert stated["epsilon"] == float(made["guarantee"]["epsilon"]["claimed"])


def test_what_a_card_cannot_know_is_marked_and_not_guessed(card):
    basic = make_record(card)["deployment"]["basic"]
    assert (basic["data_curators"], basic["data_product_region"]) == ([OPEN], OPEN)
    assert make_record(card)["deployment"]["administrative"]["registry_authors"] == [OPEN]
    assert RegistryAnswers(region="x").open() == ["curators", "authors"]


@pytest.mark.parametrize("text", ["a: b", "- x", "# no", "yes", "1e5", "\u2028\u0085\x00\t", "'\"\\", "{a: 1}", "😀"])
def test_any_text_comes_back_from_yaml_as_it_was(text):
    yaml = pytest.importorskip("yaml")
    plain = {"a": text, "b": {"c": [text, text]}, "d": 1e-06, "e": 1.5, "f": 2, "g": 1e22}
    assert yaml.safe_load(to_yaml(plain)) == plain


# -- on paper ---------------------------------------------------------------------------------------------------------


@browser
def test_a_report_is_printed(card, tmp_path):
    made = write_pdf(write_page(card, tmp_path / "report.html"), tmp_path / "report.pdf")
    content = made.read_bytes()
    assert content.startswith(b"%PDF")
    assert content.rstrip().endswith(b"%%EOF")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.pdf"]


def test_without_a_browser_it_says_what_to_install(card, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPrinter, match="apt-get install chromium"):
        write_pdf(write_page(card, tmp_path / "report.html"), tmp_path / "report.pdf")


def test_a_browser_that_fails_leaves_nothing(card, tmp_path, monkeypatch):
    bad = tmp_path / "chromium"
    bad.write_text(f"#!{sys.executable}\nimport sys; sys.exit('no display')\n")
    bad.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPrinter, match="no display"):
        write_pdf(write_page(card, tmp_path / "report.html"), tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()
