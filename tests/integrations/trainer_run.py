"""A small GPT-2 with LoRA, fine-tuned by ``Trainer``: run as a program by the tests, which kill it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import logging

from tacit.integrations.transformers import make_private


def sequences(count, seed):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 12, (count,), generator=g).tolist()
    starts = torch.randint(0, 20, (count,), generator=g).tolist()
    return [{"input_ids": [(s + k) % 40 for k in range(n)]} for s, n in zip(starts, lengths, strict=True)]


def collate(rows):
    """Padded to the longest of the batch, so that shapes change from batch to batch."""
    width = max(len(row["input_ids"]) for row in rows)
    ids, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), -100)
    seen = torch.zeros(len(rows), width, dtype=torch.long)
    for k, row in enumerate(rows):
        n = len(row["input_ids"])
        ids[k, :n] = labels[k, :n] = torch.tensor(row["input_ids"])
        seen[k, :n] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": seen}


def build():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    lora = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM", lora_dropout=0.1)
    return get_peft_model(GPT2LMHeadModel(config), lora)


def trainer(folder, steps=16, bf16=False, **options):
    args = TrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=steps,
        learning_rate=1e-2,
        logging_steps=4,
        save_steps=4,
        eval_strategy="steps",
        eval_steps=8,
        report_to=[],
        use_cpu=True,
        bf16=bf16,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    made = Trainer(build(), args, train_dataset=sequences(100, 1), eval_dataset=sequences(16, 2), data_collator=collate)
    return make_private(
        made, **{"target_epsilon": 4.0, "target_delta": 1e-5, "key_file": folder / "run.key", **options}
    )


def main(folder, mode):
    """``whole``, ``killed`` (waits after step 10 to be killed) or ``resumed``; all with the same key."""
    from transformers import TrainerCallback

    import tacit.noise.keys as keys

    keys.fresh_bytes = lambda count: b"k" * count
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    made = trainer(folder)

    class Wait(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if mode == "killed" and state.global_step == 10:
                print("READY", flush=True)
                sys.stdin.read()

    made.add_callback(Wait())
    made.train(resume_from_checkpoint=mode == "resumed")
    weights = {n: p.detach() for n, p in made.model.named_parameters() if p.requires_grad}
    torch.save(weights, folder / "weights.pt")
    told = {"epsilon": made.privacy.claim, "steps": made.state.global_step, "logs": made.state.log_history}
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
