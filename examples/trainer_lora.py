"""Fine-tune a language model with Hugging Face's Trainer and LoRA, privately: two more lines.

    python -m examples.trainer_lora

A small GPT-2 with random weights learns to count; only its adapters are trained. Interrupt it and run it with
``--resume``: it goes on where its checkpoint is. Needs transformers, peft and accelerate.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import torch


def sequences(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Numbers that count up from somewhere, of different lengths."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 13, (count,), generator=g).tolist()
    starts = torch.randint(0, 30, (count,), generator=g).tolist()
    return [{"input_ids": [(s + k) % 40 for k in range(n)]} for s, n in zip(starts, lengths, strict=True)]


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Padded to twelve tokens; padding has no label."""
    ids, labels = torch.zeros(len(rows), 12, dtype=torch.long), torch.full((len(rows), 12), -100)
    for k, row in enumerate(rows):
        n = len(row["input_ids"])
        ids[k, :n] = labels[k, :n] = torch.tensor(row["input_ids"])
    return {"input_ids": ids, "labels": labels, "attention_mask": (labels != -100).long()}


def main(folder: str, resume: bool) -> None:
    """Train, and print what was spent."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from tacit.integrations.transformers import make_private

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    lora = LoraConfig(r=8, target_modules=["c_attn", "c_fc", "lm_head"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = get_peft_model(GPT2LMHeadModel(config), lora)
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=25,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        learning_rate=2e-2,
        logging_steps=10,
        save_steps=10,
        eval_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model, arguments, train_dataset=sequences(500, 1), eval_dataset=sequences(64, 2), data_collator=collate
    )
    make_private(trainer, target_epsilon=5.0, target_delta=1e-5, max_grad_norm=1.0)
    trainer.train(resume_from_checkpoint=resume)
    print(f"evaluation loss {trainer.evaluate()['eval_loss']:.3f}; {trainer.privacy}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where checkpoints go (default: a temporary folder)")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            main(options.folder or temporary, options.resume)
    except ModuleNotFoundError as error:
        print(f"skipped: this example needs {error.name} (pip install 'tacit[transformers]')")
        sys.exit(0)
