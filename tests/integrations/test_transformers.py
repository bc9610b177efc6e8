"""Hugging Face's Trainer, private: per-example losses, what is logged, and a run that is killed and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

for package in ("transformers", "peft", "accelerate"):
    pytest.importorskip(package, reason=f"needs {package}: pip install 'tacit[transformers]'")

from tests.integrations.trainer_run import build, collate, sequences, trainer  # noqa: E402

from tacit import accounting as acc  # noqa: E402
from tacit.accounting.errors import PrivacyWarning  # noqa: E402
from tacit.integrations.losses import per_example_loss, token_losses  # noqa: E402
from tacit.integrations.transformers import make_private  # noqa: E402
from tacit.ledger import Ledger  # noqa: E402
from tacit.ledger.surroundings import SearchRefused  # noqa: E402
from tacit.sgd import BatchMixing  # noqa: E402

ROOT = Path(__file__).parents[2]


def test_the_loss_of_an_example_does_not_depend_on_the_others():
    model, rows = build().eval(), sequences(6, 3)
    together = per_example_loss(model, collate(rows))
    alone = torch.cat([per_example_loss(model, collate([row])) for row in rows])
    assert torch.allclose(together, alone, atol=1e-5)
    # What the model itself returns for a single example is the mean over its own tokens.
    own = torch.stack([model(**collate([row])).loss for row in rows])
    assert torch.allclose(together, own, atol=1e-5)


def test_ignored_tokens_have_no_part_in_a_loss():
    logits = torch.randn(3, 5, 7)
    labels = torch.randint(7, (3, 5))
    labels[0, 2:] = labels[2] = -100
    found = token_losses(logits, labels, shift=False)
    assert torch.allclose(found[0], F.cross_entropy(logits[0, :2], labels[0, :2]))
    assert torch.allclose(found[1], F.cross_entropy(logits[1], labels[1]))
    assert found[2] == 0


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
def test_heads_have_the_loss_that_the_model_gives_a_single_example(head):
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2 if head == "ForQuestionAnswering" else 3,
    )
    model = getattr(transformers, f"Bert{head}")(config).eval()
    batch = {"input_ids": torch.randint(30, (4, 6)), "attention_mask": torch.ones(4, 6, dtype=torch.long)}
    if head == "ForQuestionAnswering":
        batch |= {"start_positions": torch.tensor([1, 2, 3, 9]), "end_positions": torch.tensor([2, 3, 4, 9])}
    else:
        batch["labels"] = torch.randint(3, (4, 6) if head == "ForTokenClassification" else (4,))
    found = per_example_loss(model, batch)
    for k in range(3):
        alone = model(**{name: value[k : k + 1] for name, value in batch.items()}).loss
        assert torch.allclose(found[k], alone, atol=1e-5)


def test_a_step_is_the_clipped_sum_of_the_draw_whatever_its_pieces(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = trainer(tmp_path, steps=1, target_epsilon=None, noise_multiplier=0.0)
    model = made.model
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    seen, before = [], {n: p.detach().clone() for n, p in model.named_parameters()}
    step = made.privacy_callback.step
    made.privacy_callback.step = lambda m, inputs, context: seen.append(inputs) or step(m, inputs, context)
    grads = {}
    release = made.private_run.__class__._before

    def keep(self, optimizer, args, kwargs):
        told = release(self, optimizer, args, kwargs)
        grads.update({n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad})
        return told

    made.private_run._before = keep.__get__(made.private_run)
    made.train()
    assert len(seen) == 2
    twin = build()
    twin.load_state_dict(before, strict=False)
    twin.eval()
    wanted = {n: torch.zeros_like(p) for n, p in twin.named_parameters() if p.requires_grad}
    for batch in seen:
        for k in range(len(batch["input_ids"])):
            twin.zero_grad()
            per_example_loss(twin, {n: v[k : k + 1] for n, v in batch.items()}).sum().backward()
            own = {n: p.grad for n, p in twin.named_parameters() if p.requires_grad}
            norm = torch.stack([g.norm() for g in own.values()]).norm()
            for n, g in own.items():
                wanted[n] += g * min(1.0, 1.0 / float(norm)) / 16
    size = torch.stack([w.norm() for w in wanted.values()]).norm()
    assert size > 0
    assert all(float((grads[n] - w).norm()) < 1e-3 * float(size) for n, w in wanted.items())


def run(folder, mode):
    command = [sys.executable, "-m", "tests.integrations.trainer_run", str(folder), mode]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_ends_where_it_would_have_ended(tmp_path):
    folders = {name: tmp_path / name for name in ("whole", "killed")}
    for folder in folders.values():
        folder.mkdir()
    whole, killed = run(folders["whole"], "whole"), run(folders["killed"], "killed")
    try:
        assert any(line == "READY\n" for line in killed.stdout)
    finally:
        killed.kill()
        _, errors = killed.communicate()
    assert killed.returncode == -9, errors
    _, errors = whole.communicate()
    assert whole.returncode == 0, errors
    assert (folders["killed"] / "run.key").exists()
    resumed = run(folders["killed"], "resumed")
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    one, two = (torch.load(folder / "weights.pt") for folder in folders.values())
    assert all(torch.equal(one[n], two[n]) for n in one)
    told = [json.loads((folder / "told.json").read_text()) for folder in folders.values()]
    assert told[0]["epsilon"] == told[1]["epsilon"]
    assert 3.99 < told[0]["epsilon"] <= 4.0
    assert told[0]["steps"] == told[1]["steps"] == 16
    # The key ends with the run, and nothing of the training batches is in the logs.
    assert not any((folder / "run.key").exists() for folder in folders.values())
    logged = {name for entry in told[0]["logs"] for name in entry}
    assert {"epsilon", "eval_loss", "learning_rate"} <= logged
    assert not {"loss", "train_loss", "grad_norm"} & logged
    saved = json.loads((folders["whole"] / "out" / "checkpoint-8" / "trainer_state.json").read_text())
    assert saved["total_flos"] == 0
    assert "6b6b6b" not in json.dumps(saved)


def test_bf16_evaluation_and_accumulation_work_together(tmp_path):
    made = trainer(tmp_path, steps=4, bf16=True)
    made.train()
    assert made.privacy.claim <= 4.0
    assert made.evaluate()["eval_loss"] > 0
    assert made.private_run.loop.steps == 4


def test_what_cannot_be_right_is_refused(tmp_path):
    made = trainer(tmp_path, steps=2)
    with pytest.raises(ValueError, match="already"):
        make_private(made, target_epsilon=1.0, target_delta=1e-5)
    with pytest.raises(ValueError, match="one of the two"):
        trainer(tmp_path, noise_multiplier=1.0)


def test_a_loss_of_the_trainers_own_is_not_dropped_in_silence(tmp_path):
    from transformers import Trainer, TrainingArguments

    class Weighted(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return 2 * model(**inputs).loss

    args = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    settings = {"train_dataset": sequences(20, 1), "data_collator": collate}
    by_function = Trainer(build(), args, compute_loss_func=lambda out, labels, **_: out.loss, **settings)
    for made in (Weighted(build(), args, **settings), by_function):
        with pytest.raises(ValueError, match="a loss of its own"):
            make_private(made, target_epsilon=1.0, target_delta=1e-5)
        assert make_private(made, target_epsilon=1.0, target_delta=1e-5, loss=per_example_loss) is made


# -- what is claimed, over all runs ------------------------------------------------------------------------------------


def quiet(folder, steps=2, **options):
    """A trainer that neither evaluates nor saves, so that it is quick."""
    made = trainer(folder, steps=steps, **options)
    made.args.eval_strategy = made.args.save_strategy = "no"
    return made


def test_every_call_of_train_is_in_what_is_claimed(tmp_path):
    made = quiet(tmp_path)
    made.train()
    assert 3.999 < made.privacy.claim <= 4.0
    with pytest.warns(PrivacyWarning, match=r"above target_epsilon=4"):
        made.train()
    step = acc.PoissonSampled(acc.Gaussian(made.private_run.loop.noise_multiplier), 0.16)
    assert made.privacy.claim == pytest.approx(acc.epsilon(step * 4, 1e-5).upper, rel=1e-6)
    assert made.state.log_history[-1]["epsilon"] == made.privacy.claim > 4.5
    assert made.state.total_flos == 0  # a count of operations would tell the sizes of batches


def test_a_search_over_a_private_trainer_is_refused(tmp_path):
    made = quiet(tmp_path)
    before = [p.detach().clone() for p in made.model.parameters()]
    for search in (lambda: made.hyperparameter_search(n_trials=2), lambda: made.train(trial={"learning_rate": 0.1})):
        with pytest.raises(SearchRefused, match=r"tacit\.tuning"):
            search()
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))


@pytest.mark.parametrize("how", ["stopped", "broken"])
def test_however_a_run_ends_its_plan_is_claimed_and_its_key_and_charge_are_in_order(tmp_path, how):
    from transformers import TrainerCallback

    class End(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2 and how == "stopped"

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                raise OSError("the disk went away")

    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-4)
    made = quiet(tmp_path, steps=4, ledger=ledger, dataset="people")
    made.add_callback(End())
    if how == "stopped":
        with pytest.warns(PrivacyWarning, match="2 of 4 planned steps"):
            made.train()
        assert made.state.log_history[-1]["epsilon"] == made.privacy.claim
    else:
        with pytest.raises(OSError, match="disk"):
            made.train()
    assert 3.999 < made.privacy.claim <= 4.0
    assert not (tmp_path / "run.key").exists()  # no checkpoint holds the run
    (charge,) = ledger.history("people")
    assert charge.confirmed
    made.private_run.stop("a time limit", looked_at_results=False)
    assert made.privacy.claim < 3.5


def test_values_that_others_log_are_withheld_unless_they_are_public(tmp_path):
    made = quiet(tmp_path, public_logs=["temperature"])
    with pytest.warns(PrivacyWarning, match="train_accuracy"):
        made.log({"train_accuracy": 0.9, "loss": 0.1, "temperature": 2.0})
    assert made.evaluate()["eval_loss"] > 0
    with pytest.warns(PrivacyWarning, match="known_loss"):
        assert made.evaluate(made.train_dataset, metric_key_prefix="known")["known_loss"] > 0
    seen = {name for entry in made.state.log_history for name in entry}
    assert {"temperature", "eval_loss"} <= seen
    assert not {"train_accuracy", "loss", "known_loss"} & seen


def padded_left(rows):
    """As :func:`collate`, and without position_ids: GPT-2 then counts positions from padding."""
    made = collate(rows)
    for k, row in enumerate(rows):
        shift = made["input_ids"].shape[1] - len(row["input_ids"])
        for name, value in made.items():
            made[name][k] = value[k].roll(shift)
    return made


def mean_over_padding(model, inputs):
    """One loss per example that counts padding, as many as the longest example of the batch has tokens."""
    logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, :-1]
    each = F.cross_entropy(logits.flatten(0, 1), inputs["labels"][:, 1:].flatten(), reduction="none")
    return each.view(len(logits), -1).mean(1)


@pytest.mark.parametrize(("collator", "loss"), [(padded_left, None), (collate, mean_over_padding)])
def test_padding_that_reaches_a_loss_is_refused(tmp_path, collator, loss):
    made = trainer(tmp_path, steps=2, loss=loss)
    made.data_collator = collator
    with pytest.raises(BatchMixing, match="padded"):
        made.train()
