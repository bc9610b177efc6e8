"""PromptDPSGD: every adapter is clipped example by example, starts where its text would, and leaves as peft has it."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.prompts import tiny

from tacit import sgd
from tacit.ledger import EvaluationData, Ledger
from tacit.prompts import LanguageModel, LanguageModelError, PromptError, Template, Verbalizer, tune
from tacit.prompts.adapters import AdaptedModel, adapt
from tacit.prompts.tuning import LabelLoss, TextLoss, labelled, unlabelled
from tacit.sgd.gradients.engine import Engine
from tacit.sgd.training.kept import ORDER

peft = pytest.importorskip("peft")

ASK = Template("review: {text} . sentiment :", instruction="which sentiment is it?")
WORDS = Verbalizer({"no": "bad", "yes": "good"})
CASES = {
    "soft": (tiny.llama, ASK, {}),
    "prefix": (tiny.llama, ASK, {}),
    "lora": (tiny.llama, ASK, {}),
    "soft-gpt2": (tiny.gpt2, ASK, {}),
    "prefix-gpt2": (tiny.gpt2, ASK, {}),
    "lora-gpt2": (tiny.gpt2, ASK, {}),
    "soft-bert": (tiny.bert, Template("{text} . it was {mask} ."), {}),
    "lora-bert": (tiny.bert, Template("{text} . it was {mask} ."), {}),
}


def adapted(case: str):
    build, template, more = CASES[case]
    language = LanguageModel(build().double(), tiny.tokenizer())
    model = adapt(language, case.partition("-")[0], start="which sentiment is it?", rank=2, **more).double()
    torch.manual_seed(1)
    with torch.no_grad():  # away from LoRA's start, where half of the gradients are zero
        for p in model.parameters():
            if p.requires_grad:
                p += 0.3 * torch.randn_like(p)
    return LanguageModel(model, tiny.tokenizer()), template


def alone(model, loss, rows, i):
    """The gradient of one example by itself, without padding."""
    length = int(rows["attention_mask"][i].sum())
    one = {k: v[i : i + 1, :length] if v.dim() == 2 else v[i : i + 1] for k, v in rows.items()}
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss(model, one).sum(), list(weights.values()))
    return dict(zip(weights, found, strict=True))


def compare(language, loss, rows, tolerance):
    model = AdaptedModel(language.model)
    clip = 0.05
    result = sgd.clipped_grad(model, loss, rows, clip)
    expected = {}
    for i in range(len(rows["input_ids"])):
        gradient = alone(model, loss, rows, i)
        norm = torch.sqrt(sum(g.square().sum() for g in gradient.values()))
        assert float(result.norms[i]) == pytest.approx(float(norm), rel=tolerance)
        for name, g in gradient.items():
            expected[name] = expected.get(name, 0) + g * min(1.0, clip / float(norm))
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, g in expected.items():
        assert float((result.sums[name] - g).abs().max()) < tolerance * scale, name


@pytest.mark.parametrize("case", CASES)
def test_each_example_is_clipped_as_if_it_were_alone(case):
    language, template = adapted(case)
    rows = labelled(language, template, WORDS, tiny.reviews(6))
    assert rows["attention_mask"].sum(1).unique().numel() > 2  # padded to different extents
    # The sums leave in float32; the label loss computes in it.
    compare(language, LabelLoss(tuple(language.check(template, WORDS))), rows, 2e-5)


@pytest.mark.parametrize("case", ["soft", "prefix", "prefix-gpt2"])
def test_a_prompt_is_a_selection_of_its_weights_however_many_examples_share_it(case):
    # By the derivative of the whole batch's prompt, memory would grow with the square of the batch.
    language, template = adapted(case)
    rows = labelled(language, template, WORDS, tiny.reviews(6))
    model = AdaptedModel(language.model)
    sgd.clipped_grad(model, LabelLoss(tuple(language.check(template, WORDS))), rows)
    (plan,) = Engine.of(model).plans.values()
    assert not plan.materialised


@pytest.mark.parametrize("case", ["soft", "prefix", "lora"])
def test_continued_texts_are_clipped_as_if_they_were_alone(case):
    language, _ = adapted(case)
    rows = unlabelled(language, Template("review: {text} ."), [text for text, _ in tiny.reviews(5)])
    compare(language, TextLoss(), rows, 2e-5)


@pytest.mark.parametrize("method", ["soft", "prefix"])
def test_a_prompt_starts_where_its_text_in_front_would_be(method):
    texts = [text for text, _ in tiny.reviews(7)]
    plain = LanguageModel(tiny.llama(), tiny.tokenizer())
    hard = plain.log_probabilities(ASK, WORDS, texts)
    model = adapt(plain, method, start=ASK.instruction + ASK.separator)
    soft = LanguageModel(model, tiny.tokenizer())
    assert soft.log_probabilities(Template(ASK.body), WORDS, texts) == pytest.approx(hard, abs=1e-5)


@pytest.mark.parametrize("method", ["soft", "prefix", "lora"])
def test_tuning_keeps_its_guarantee_and_the_folder_loads_without_tacit(method, tmp_path):
    data, public = tiny.reviews(60), tiny.reviews(40, seed=5)
    base = tiny.llama()
    base.save_pretrained(tmp_path / "base")
    ledger = Ledger()
    ledger.register("reviews", epsilon=10.0, delta=1e-4, fingerprint=data)
    done = tune(
        base,
        tiny.tokenizer(),
        ASK,
        WORDS,
        data,
        method=method,
        epsilon=8.0,
        delta=1e-4,
        steps=3,
        batch_size=30,
        learning_rate=0.05,
        clip_norm=1.0,
        evaluate=EvaluationData.declared_public(public, because="simulated"),
        ledger=ledger,
        dataset="reviews",
    )
    assert done.privacy.upper <= 8.0
    assert [record.data for record in ledger.history("reviews")] == [ledger.dataset("reviews").fingerprint]
    assert 0 <= done.metrics[-1]["accuracy"] <= 1
    folder = done.save(tmp_path / "adapter")
    expected = done.log_probabilities([text for text, _ in public])

    import transformers

    again = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(folder)
    )
    found = LanguageModel(again, tiny.tokenizer()).log_probabilities(done.template, WORDS, [t for t, _ in public])
    assert found == pytest.approx(expected, abs=1e-5)
    kinds = {p.name for p in folder.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "prompt.json"} <= kinds
    assert sum(p.stat().st_size for p in folder.glob("*.safetensors")) < 100_000  # the adapter alone


def test_tuning_learns_what_the_texts_say():
    data, public = tiny.reviews(200, longest=3), tiny.reviews(200, seed=5, longest=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sgd.PrivacyWarning)  # no noise here, to see that it learns at all
        done = tune(
            tiny.llama(width=32), tiny.tokenizer(), ASK, WORDS, data, method="lora", noise_multiplier=0.0, delta=1e-4,
            steps=20, batch_size=100, learning_rate=0.03, clip_norm=1.0, physical_batch=130, modules="all-linear",
        )  # fmt: skip
    right = sum(a == b for a, (_, b) in zip(done.predict([t for t, _ in public]), public, strict=True))
    assert right / len(public) > 0.85


def test_a_killed_run_goes_on_from_the_adapters_checkpoint(tmp_path):
    data = tiny.reviews(60)

    def run(**more):
        return tune(
            tiny.llama(), tiny.tokenizer(), ASK, WORDS, data, method="lora", noise_multiplier=1.0, delta=1e-4,
            steps=6, batch_size=20, checkpoint=tmp_path / "run.pt", key_file=tmp_path / "key", checkpoint_every=1,
            **more,
        )  # fmt: skip

    class Killed(Exception):
        pass

    def killing(model, batch):
        if killing.after == 0:
            raise Killed
        killing.after -= 1
        return 0.0

    killing.after = 3
    test = EvaluationData.declared_public(data[:4], because="simulated")
    with pytest.raises(Killed):
        run(evaluate=test, evaluate_every=1, metric=killing)
    assert (tmp_path / "run.pt").stat().st_size < 200_000
    done = run()
    assert done.fit.training.steps_executed == 6
    assert "as planned" in str(done.privacy)


def test_what_cannot_be_tuned_is_refused_with_what_to_do():
    def run(model=None, template=ASK, words=WORDS, data=None, **more):
        settings = {"epsilon": 3.0, "delta": 1e-4, "steps": 1, "batch_size": 2} | more
        return tune(model or tiny.llama(), tiny.tokenizer(), template, words, data or tiny.reviews(8), **settings)

    with pytest.raises(PromptError, match="one token of this model: 'very good' is very·good"):
        run(words={"no": "bad", "yes": "very good"})
    with pytest.raises(PromptError, match="first token of each"):
        run(words={"no": "bad", "yes": "very good"})
    with pytest.raises(PromptError, match="begin with the same token"):
        run(words=Verbalizer({"no": "very bad", "yes": "very good"}, first_token=True))
    with pytest.raises(PromptError, match="no token for the label word"):
        run(words={"no": "bad", "yes": "splendid"})
    with pytest.raises(PromptError, match="a prompt has more tokens than the 60 that the model takes"):
        run(method="soft", virtual_tokens=4, data=[("film " * 70, "no")] * 8)
    with pytest.raises(PromptError, match=r"needs \{mask\}"):
        run(model=tiny.bert())
    with pytest.raises(PromptError, match=r"without \{mask\}"):
        run(template="{text} it was {mask}")
    with pytest.raises(PromptError, match="exactly once"):
        run(template="review: text. sentiment:")
    with pytest.raises(PromptError, match="label that no class"):
        run(data=[("film", "maybe")] * 8)
    with pytest.raises(PromptError, match="method must be one of"):
        run(method="magic")
    with pytest.raises(PromptError, match="leave no room"):
        run(method="soft", virtual_tokens=64)
    with pytest.raises(PromptError, match="prefix tuning needs a model that continues"):
        run(model=tiny.bert(), template="{text} it was {mask} .", method="prefix")
    with pytest.raises(LanguageModelError, match="tokenizer"):
        tune(tiny.llama(), None, ASK, WORDS, tiny.reviews(8), epsilon=1.0, delta=1e-4)
    assert run(words=Verbalizer({"no": "bad", "yes": "very good"}, first_token=True)).privacy.upper <= 3.0


def test_chunks_keep_the_order_of_the_texts_and_an_announced_number_sets_the_batch():
    """Chunks in the order of length, or a batch size by the true number, would depend on other people's texts."""
    data, own = tiny.reviews(40), tiny.tokenizer()
    more = {"noise_multiplier": 1.0, "delta": 1e-4, "steps": 1, "method": "soft"}
    with pytest.warns(sgd.PrivacyWarning, match="chunks"):
        done = tune(tiny.llama(), own, ASK, WORDS, data, sampler="chunks", batch_size=10, **more).fit.training
    lengths = done.records.tree["attention_mask"].sum(1).tolist()
    assert lengths == [len(own(ASK.query(text))["input_ids"]) for text, _ in data] != sorted(lengths)
    sizes = {
        tune(tiny.llama(), own, ASK, WORDS, some, size=80, **more).fit.training.plan.sampler.batch_size
        for some in (data, data[:30])
    }
    assert sizes == {20}


def test_a_persons_texts_stay_together_whatever_their_lengths():
    data = tiny.reviews(40)
    owners = [i % 8 for i in range(40)]
    done = tune(
        tiny.llama(), tiny.tokenizer(), ASK, WORDS, data, method="soft", epsilon=8.0, delta=1e-4, steps=1,
        batch_size=4, groups=owners, max_rows=2,
    )  # fmt: skip
    assert "one person" in str(done.privacy)
    training = done.fit.training
    rows = training.records.tree
    lengths = rows["attention_mask"].sum(1)
    assert bool((lengths.diff() >= 0).all())  # short texts first, so that a physical batch needs little padding
    words = [tuple(ids[:n].tolist()) for ids, n in zip(rows["input_ids"], lengths.tolist(), strict=True)]
    own = tiny.tokenizer()
    expected = [sorted(own(ASK.query(t))["input_ids"] for (t, _), o in zip(data, owners, strict=True) if o == who)
                for who in range(8)]  # fmt: skip
    found = []
    for who in range(8):
        mine = training.units.order[training.units.starts[who] : training.units.starts[who + 1]]
        found.append(sorted(list(words[i]) for i in mine))
    assert sorted(found) == sorted(expected)


def tuned(ids, longer=0, **more):
    """The text of number 5 says ``longer`` more words."""
    texts = [
        (f"{'dull' if k % 2 else 'great'} film" + " plot" * (k % 4 + longer * (k == 5)), "no" if k % 2 else "yes")
        for k in range(24)
    ]
    terms = {"noise_multiplier": 9.0, "epsilon": None, "delta": 1e-6, "steps": 1, "batch_size": 2, "compile": False}
    return tune(tiny.llama(), tiny.tokenizer(), ASK, WORDS, texts, method="soft", groups=ids, **{**terms, **more})


@pytest.mark.parametrize("missing", [None, float("nan")], ids=str)
def test_a_text_without_an_owner_is_refused(missing):
    """Texts are put in order of length, and an array of the ids would make "nan" a person."""
    ids = [missing if k == 5 else f"author {k % 6}" for k in range(24)]
    with pytest.raises(ValueError, match="missing ids"):
        tuned(ids)
    with pytest.raises(ValueError, match="for each text"):
        tuned([k % 6 for k in range(30)])


def test_mails_have_senders_and_receivers_and_what_they_say_does_not_decide_which_are_kept():
    """Wrong version: mails in order of their length, which decides who comes first in the greedy bound."""
    ids = [[f"author {k % 6}", f"reader {k % 5}"] for k in range(24)]
    kept = []
    for longer in (0, 30):
        done = tuned(ids, longer, draw="rows", max_rows=3, steps=None, epochs=1)
        training = done.fit.training
        rows = training.units.rows(ORDER).tolist()
        lengths = training.records.tree["attention_mask"].sum(1).tolist()
        kept.append([lengths[row] for row in rows if row != 5])
        assert (lengths[5] > 30) == (longer > 0)
    assert kept[0] == kept[1]
    assert lengths != sorted(lengths)
    assert (done.privacy.adjacency, training.plan.kept) == ("zero-out", 3)
    assert training.plan.sampler.size == len(training.units) < 24
    assert training.plan.steps == -(-len(training.units) // 2)
