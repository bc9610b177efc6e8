"""PromptPATE: one record reaches one teacher, a prefix is encoded once, and an answer is charged once."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.prompts import tiny
from tests.prompts.server import serving

from tacit.ledger import Ledger
from tacit.noise import Key
from tacit.pate import ConfidentGNMax
from tacit.prompts import (
    Endpoint,
    EndpointError,
    LanguageModel,
    Prompt,
    PromptError,
    PromptTeachers,
    Template,
    Verbalizer,
    calibrated,
    choose,
    students,
)
from tacit.prompts.students import committee

ASK = Template("review: {text} . sentiment :", instruction="which sentiment is it?")
WORDS = Verbalizer({"no": "bad", "yes": "good"})
KEY = Key(bytes(range(32)))
QUERIES = [text for text, _ in tiny.reviews(9, seed=3)]


@pytest.fixture(scope="module")
def language():
    return LanguageModel(tiny.llama(context=256), tiny.tokenizer(), batch_size=4)


@pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])
def test_a_prefix_that_is_encoded_once_scores_like_the_whole_prompt(build):
    model = LanguageModel(build(), tiny.tokenizer(), batch_size=4)
    shown = tiny.reviews(3, seed=8)
    kept = model.log_probabilities(ASK, WORDS, QUERIES, shown)
    whole = model.log_probabilities(ASK, WORDS, QUERIES, shown, cached=False)
    assert kept == pytest.approx(whole, abs=2e-5)
    # And like each query alone, without padding.
    alone = [model.log_probabilities(ASK, WORDS, [q], shown, cached=False)[0] for q in QUERIES]
    assert kept == pytest.approx(np.array(alone), abs=2e-5)


class Watched(LanguageModel):
    """A model that remembers what it said behind each prompt."""

    def log_probabilities_of(self, template, verbalizer, texts, prompts):
        found = super().log_probabilities_of(template, verbalizer, texts, prompts)
        self.said = getattr(self, "said", {}) | {tuple(p): f.tobytes() for p, f in zip(prompts, found, strict=True)}
        return found


def test_what_a_teacher_says_has_not_one_bit_of_another_teachers_texts():
    language = LanguageModel(tiny.llama(), tiny.tokenizer())
    private, said = tiny.reviews(160, seed=4, longest=30), []
    parts = PromptTeachers(language, ASK, WORDS, private, n=8, key=KEY)._demonstrations
    widest = max(range(8), key=lambda i: sum(len(text) for text, _ in parts[i]))
    gone = max(parts[widest], key=lambda row: len(row[0]))
    for rows in (private, [row for row in private if row != gone]):
        model = Watched(
            tiny.llama(context=256, width=64).bfloat16(), tiny.tokenizer(), batch_size=512
        )  # room for all of them
        teachers = PromptTeachers(model, ASK, WORDS, rows, n=8, key=KEY)
        teachers.vote(QUERIES)
        said.append([model.said[shown] for shown in teachers._demonstrations])
    assert [i for i in range(8) if said[0][i] != said[1][i]] == [widest]


class Oracle:
    """A scorer of one's own: it finds the class whose number the text is."""

    def log_probabilities(self, template, verbalizer, texts, demonstrations=()):
        return -np.abs(np.array([[float(text)] for text in texts]) - np.arange(len(verbalizer.classes)))


def test_more_classes_than_a_byte_has_numbers(tmp_path):
    words = Verbalizer.of([f"word{i}" for i in range(150)])
    private = [(str(i % 150), i % 150) for i in range(600)]
    for _ in range(2):  # also from a checkpoint
        teachers = PromptTeachers(Oracle(), ASK, words, private, n=2, key=KEY)
        votes = teachers.vote(["3", "140"], checkpoint=tmp_path / "votes")
        assert votes.counts.argmax(axis=1).tolist() == [3, 140]
        assert votes.counts.max(axis=1).tolist() == [2, 2]


@pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])
@pytest.mark.parametrize("instruction", ["which sentiment is it?", ""])
def test_prompts_that_share_a_pass_score_like_each_alone(build, instruction, monkeypatch):
    rows = tiny.reviews(12, seed=1)
    prompts = [(), *(tuple(rows[i : i + 1 + i % 3]) for i in range(8))]
    template = Template(ASK.body, instruction)
    model = build()
    alone = LanguageModel(model, tiny.tokenizer(), batch_size=1)
    many = LanguageModel(model, tiny.tokenizer(), batch_size=4 * len(QUERIES))
    expected = np.stack([alone.log_probabilities(template, WORDS, QUERIES, shown) for shown in prompts])
    assert many.log_probabilities_of(template, WORDS, QUERIES, prompts) == pytest.approx(expected, abs=1e-4)
    monkeypatch.setattr("tacit.prompts.models.TEXTS", 4)  # texts in three parts by length
    assert many.log_probabilities_of(template, WORDS, QUERIES, prompts) == pytest.approx(expected, abs=1e-4)
    votes = [
        PromptTeachers(asked, template, WORDS, tiny.reviews(60), n=10, key=Key(bytes(32))).vote(QUERIES).counts
        for asked in (alone, many)
    ]
    assert (votes[0] == votes[1]).all()


def test_a_masked_model_is_asked_at_its_mask():
    import torch

    model = LanguageModel(tiny.bert(), tiny.tokenizer(), batch_size=4)
    template = Template("{text} . it was {mask} .")
    found = model.log_probabilities(template, WORDS, QUERIES)
    ids = tiny.tokenizer()(template.query(QUERIES[0], "[MASK]"))["input_ids"]
    at = ids.index(tiny.tokenizer().mask_token_id)
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor([ids])).logits[0, at].log_softmax(0)
    expected = [float(logits[tiny.tokenizer().convert_tokens_to_ids(w)]) for w in ("bad", "good")]
    assert found[0] == pytest.approx(expected, abs=1e-5)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 119), st.booleans(), st.integers(1, 2))
def test_one_record_changes_one_teacher(number, per_class, shots):
    model = LanguageModel(tiny.llama(context=256), tiny.tokenizer())
    data, key = tiny.reviews(120), Key(bytes(range(32)))
    without = [row for row in data if row != data[number]]  # equal records are one record, wherever they stand

    def shown(rows):
        made = PromptTeachers(model, ASK, WORDS, rows, shots, 12, per_class=per_class, key=key)
        return made._demonstrations

    one, other = shown(data), shown(list(reversed(without)))
    assert sum(a != b for a, b in zip(one, other, strict=True)) <= 1
    everyone = [row for part in one for row in part]
    assert len(everyone) == len(set(everyone))  # disjoint
    for part in one:
        counts = [sum(label == c for _, label in part) for c in WORDS.classes]
        assert max(counts) <= shots if per_class else len(part) <= shots


def test_records_of_one_person_are_with_one_teacher(language):
    data = tiny.reviews(200)
    owners = [i % 40 for i in range(200)]
    with pytest.raises(PromptError, match="missing ids"):
        PromptTeachers(language, ASK, WORDS, data, 1, 10, groups=[None, *owners[1:]])
    teachers = PromptTeachers(language, ASK, WORDS, data, 1, 10, groups=owners)
    for owner in range(40):
        mine = {row for row, who in zip(data, owners, strict=True) if who == owner}
        others = {row for row, who in zip(data, owners, strict=True) if who != owner}
        own = mine - others  # texts that nobody else has
        assert sum(any(row in part for row in own) for part in teachers._demonstrations) <= 1
    assert teachers.vote(QUERIES).unit == "person"


def test_votes_become_labels_that_are_charged_and_a_student_prompt(language, tmp_path):
    ledger = Ledger()
    ledger.register("reviews", epsilon=100.0, delta=1e-5)
    queries = [text for text, _ in tiny.reviews(40, seed=4)]
    votes = PromptTeachers(language, ASK, WORDS, tiny.reviews(150), 1, 30, calibration="batch").vote(queries)
    assert (votes.teachers, votes.partition, votes.counts.sum(1).tolist()) == (30, "keyed", [30] * 40)
    answers = ConfidentGNMax(threshold=18, check_noise=8, vote_noise=5, classes=2).answer(
        votes, queries=40, delta=1e-6, ledger=ledger, dataset="reviews"
    )
    assert ledger.budget("reviews").charges == 1
    texts, labels, _ = answers.labelled()
    labelled = [(text, WORDS.classes[i]) for text, i in zip(texts, labels, strict=True)]
    student = choose(language, ASK, WORDS, labelled, candidates=6, calibration="contextual")
    assert {text for text, _ in student.demonstrations} <= set(queries)  # no private text leaves
    student.save(tmp_path / "prompt.json")
    again = Prompt.load(tmp_path / "prompt.json")
    assert again.predict(language, queries) == student.predict(language, queries)
    assert ledger.budget("reviews").charges == 1  # the student is free
    low, high = student.accuracy(language, tiny.reviews(30, seed=9)).interval
    assert 0 <= low < high <= 1


def test_the_chosen_prompt_is_the_one_that_answers_best(language):
    # Labelled by one known prompt: the search must find a prompt that agrees with it more than the bare template does.
    texts = [text for text, _ in tiny.reviews(120, seed=6)]
    known = Prompt(ASK, WORDS, tuple(tiny.reviews(2, seed=21)))
    labelled = list(zip(texts, known.predict(language, texts), strict=True))
    bare = Prompt(ASK, WORDS).accuracy(language, labelled)
    for unlabelled in ([], [text for text, _ in tiny.reviews(50, seed=31)]):
        chosen = choose(language, ASK, WORDS, labelled, candidates=24, unlabelled=unlabelled)
        assert chosen.accuracy(language, labelled).value >= bare.value


def test_several_prompts_answer_together_here_and_over_http(language, tmp_path):
    labelled, unlabelled = tiny.reviews(60, seed=6), [text for text, _ in tiny.reviews(30, seed=31)]
    given = {"shots": (1, 2), "candidates": 24, "calibration": "batch", "unlabelled": unlabelled}
    student = choose(language, ASK, WORDS, labelled, members=3, **given)
    alone = choose(language, ASK, WORDS, labelled, **given)
    assert student.members[0] == alone  # the first of them is the prompt that would have been chosen alone
    assert len({prompt.demonstrations for prompt in student.members}) == 3
    each = np.stack([prompt.scores(language, QUERIES) for prompt in student.members])
    each -= np.log(np.exp(each).sum(2, keepdims=True))
    assert student.scores(language, QUERIES) == pytest.approx(each.mean(0), abs=1e-6)
    # Each member's own leaning is taken out: on the public texts it favours no class.
    for prompt in student.members:
        assert prompt.offset == calibrated(language, prompt, "batch", unlabelled).offset
    student.save(tmp_path / "prompt.json")
    assert Prompt.load(tmp_path / "prompt.json") == student
    with serving(language) as server:
        endpoint = Endpoint(server.url, "tiny", top=50)
        assert student.scores(endpoint, QUERIES[:4]) == pytest.approx(student.scores(language, QUERIES[:4]), abs=1e-3)


def test_a_file_of_one_prompt_is_read_as_before_and_a_committee_has_one_template(language, tmp_path):
    file = tmp_path / "prompt.json"
    one = Prompt(ASK, WORDS, tuple(tiny.reviews(2)), (-0.5, -0.9))
    one.save(file)
    about = json.loads(file.read_text())
    assert set(about) == {"template", "verbalizer", "first_token", "demonstrations", "offset"}
    assert Prompt.load(file) == one == committee([one])
    file.write_text(json.dumps({**about, "others": ["more"]}))
    with pytest.raises(PromptError, match="not a saved prompt"):
        Prompt.load(file)
    with pytest.raises(PromptError, match="one template"):
        committee([one, Prompt(Template("{text} Mood:"), WORDS)])
    with pytest.raises(PromptError, match="positive"):
        choose(language, ASK, WORDS, tiny.reviews(8), members=0)


def test_wrong_labels_do_not_decide_by_how_surprising_they_are():
    """A prompt that is sure and right nine times in ten comes before one that is never sure and right eight times."""
    sure, even = (("a", "bad"),), (("b", "good"),)

    class Two:
        def log_probabilities(self, template, verbalizer, texts, demonstrations=()):
            if not demonstrations:
                return np.log(np.full((len(texts), 2), 0.5))
            right = [int(text.split()[1]) for text in texts]
            wrong = 10 if demonstrations == sure else 5
            high = 0.9999 if demonstrations == sure else 0.6
            found = np.full((len(texts), 2), 1 - high)
            for i, text in enumerate(texts):
                number = int(text.split()[0])
                found[i, right[i] if number % wrong else 1 - right[i]] = high
            return np.log(found)

    judges = [(f"{i} {i // 10 % 2}", WORDS.classes[i // 10 % 2]) for i in range(40)]
    prompts = [Prompt(ASK, WORDS), Prompt(ASK, WORDS, even), Prompt(ASK, WORDS, sure)]
    found = students._ranked(Two(), prompts, judges, "none")
    assert [prompt.demonstrations for prompt in found] == [sure, even, ()]


def test_calibration_takes_out_what_a_prompt_says_to_nothing(language):
    prompt = calibrated(language, Prompt(ASK, WORDS), "batch", QUERIES)
    shares = np.exp(prompt.scores(language, QUERIES))
    assert prompt.offset is not None
    assert calibrated(language, prompt, "none").offset is None
    raw = np.exp(Prompt(ASK, WORDS).scores(language, QUERIES))
    lean = (raw / raw.sum(1, keepdims=True)).mean(0)
    assert shares == pytest.approx(raw / lean, rel=1e-6)
    with pytest.raises(PromptError, match="calibration must be one of"):
        calibrated(language, prompt, "magic")


def test_a_vote_that_was_cut_short_goes_on_and_its_file_is_private(language, tmp_path, monkeypatch):
    key, file = Key.generate(), tmp_path / "votes"
    whole = PromptTeachers(language, ASK, WORDS, tiny.reviews(100), 1, 8, key=key).vote(QUERIES)
    teachers = PromptTeachers(language, ASK, WORDS, tiny.reviews(100), 1, 8, key=key)
    ballot, count = teachers._ballot, [0]

    def failing(shown, queries):
        if count[0] == 5:
            raise EndpointError("gone")
        count[0] += 1
        return ballot(shown, queries)

    monkeypatch.setattr(teachers, "_ballot", failing)
    with pytest.raises(EndpointError):
        teachers.vote(QUERIES, checkpoint=file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with file.open("ab") as torn:
        torn.write(b"\n5 0001")  # as a kill leaves it
    again = PromptTeachers(language, ASK, WORDS, tiny.reviews(100), 1, 8, key=key)
    asked = [0]
    ballot2 = again._ballot
    monkeypatch.setattr(again, "_ballot", lambda *a: (asked.__setitem__(0, asked[0] + 1), ballot2(*a))[1])
    assert (again.vote(QUERIES, checkpoint=file).counts == whole.counts).all()
    assert asked[0] == 3
    with pytest.raises(PromptError, match="other teachers, queries, settings or another key"):
        PromptTeachers(language, ASK, WORDS, tiny.reviews(100), 1, 8).vote(QUERIES, checkpoint=file)


def test_bad_teachers_are_refused(language):
    with pytest.raises(PromptError, match="need at least 400 private records, and there are fewer"):
        PromptTeachers(language, ASK, WORDS, tiny.reviews(100), 1, 200)
    with pytest.raises(PromptError, match="there are no queries"):
        PromptTeachers(language, ASK, WORDS, tiny.reviews(100), 1, 5).vote([])
    small = LanguageModel(tiny.llama(context=40), tiny.tokenizer())
    with pytest.raises(PromptError, match=r"more tokens than the 40 that the model takes"):
        PromptTeachers(small, ASK, WORDS, tiny.reviews(100), 3, 2).vote(QUERIES)


@pytest.mark.parametrize("way", ["completions", "chat"])
def test_an_endpoint_scores_like_the_model_behind_it(language, way):
    shown = tiny.reviews(2, seed=8)
    with serving(language) as server:
        endpoint = Endpoint(server.url, "tiny", way=way, top=1000, key="secret", pause=0.01)
        found = endpoint.log_probabilities(ASK, WORDS, QUERIES, shown)
        assert server.asked[0][1]["Authorization"] == "Bearer secret"
    assert found == pytest.approx(language.log_probabilities(ASK, WORDS, QUERIES, shown), abs=1e-4)


def test_an_endpoint_in_trouble_is_asked_again_and_nothing_is_charged(language, tmp_path):
    ledger, key, file = Ledger(), Key.generate(), tmp_path / "votes"
    ledger.register("reviews", epsilon=100.0, delta=1e-5)
    vote = ConfidentGNMax(threshold=3, check_noise=8, vote_noise=5, classes=2)
    with serving(language) as server:

        def patient(**patience):
            return Endpoint(
                server.url, "tiny", top=1000, pause=0.01, parallel=1, key="a secret of the user", **patience
            )

        server.trouble = [503, "slow", None, "drop", "nonsense"]
        expected = PromptTeachers(language, ASK, WORDS, tiny.reviews(40), 1, 4, key=key).vote(QUERIES)
        # On a busy machine a good answer may be late, too; it is then asked for once more.
        hurried = PromptTeachers(patient(timeout=0.5, attempts=8), ASK, WORDS, tiny.reviews(40), 1, 4, key=key)
        assert (hurried.vote(QUERIES).counts == expected.counts).all()
        assert not server.trouble
        endpoint = patient(timeout=60.0, attempts=3)
        teachers = PromptTeachers(endpoint, ASK, WORDS, tiny.reviews(40), 1, 4, key=key)
        # For good: two teachers are done, then nothing answers.
        server.trouble = [*([None] * 2 * len(QUERIES)), *([500] * 100)]
        with pytest.raises(EndpointError, match="no usable answer in 3 attempts; the last trouble was: 500") as told:
            teachers.vote(QUERIES, checkpoint=file)
        assert "film" not in str(told.value)
        assert ledger.budget("reviews").charges == 0
        server.trouble, server.asked = [], []
        votes = teachers.vote(QUERIES, checkpoint=file)
        assert len(server.asked) == 2 * len(QUERIES)  # the other two teachers only
        assert (votes.counts == expected.counts).all()
        vote.answer(votes, queries=len(QUERIES), delta=1e-6, ledger=ledger, dataset="reviews")
        assert ledger.budget("reviews").charges == 1
        server.trouble, server.asked = [401], []
        with pytest.raises(EndpointError, match="401") as told:
            endpoint.log_probabilities(ASK, WORDS, QUERIES[:1])
        assert len(server.asked) == 1  # what cannot succeed is not tried again
        assert "secret" not in str(told.value)
        with pytest.raises(EndpointError, match=r"no \{mask\}"):
            endpoint.log_probabilities(Template("{text} {mask}"), WORDS, QUERIES)
    with pytest.raises(EndpointError, match="no usable answer in 2 attempts"):
        Endpoint(server.url, "tiny", attempts=2, pause=0.01).log_probabilities(ASK, WORDS, QUERIES[:1])


@pytest.mark.parametrize("masked", [False, True])
def test_a_prompt_has_the_tokens_that_its_tokenizer_puts_around_every_text(masked):
    from tokenizers.processors import TemplateProcessing

    words = tiny.tokenizer()
    ids = {name: words.convert_tokens_to_ids(name) for name in ("[CLS]", "[SEP]")}
    around = "[CLS] $A [SEP]" if masked else "[CLS] $A"
    words._tokenizer.post_processor = TemplateProcessing(single=around, special_tokens=list(ids.items()))
    model = LanguageModel(tiny.bert() if masked else tiny.llama(), words)
    template = Template("{text} . it was {mask} .") if masked else Template("{text} . it was")
    batch = model.encode(template, ["a film"], model.prefix_ids(template, WORDS, ()))
    assert batch["input_ids"][0].tolist() == words(template.query("a film", "[MASK]"))["input_ids"]
    label = int(batch["at"])
    assert words.convert_ids_to_tokens(int(batch["input_ids"][0, label])) == ("[MASK]" if masked else "was")
