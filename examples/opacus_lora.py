"""A transformer with LoRA adapters in Opacus' words: only the import is another.

    python -m examples.opacus_lora --engine tacit
    python -m examples.opacus_lora --engine opacus

A small BERT with random weights learns whether two kinds of tokens are in balance; only its adapters and its head are
trained. Needs transformers and peft.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def sentences(count: int, seed: int) -> TensorDataset:
    """Token ids with a mask for padding, and whether there are more low ones than high ones."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, 40, (count, 12), generator=g)
    lean = torch.rand(count, 1, generator=g)
    ids = torch.where(torch.rand(count, 12, generator=g) < lean, ids % 18 + 4, ids % 18 + 22)
    mask = (torch.arange(12) < torch.randint(6, 13, (count, 1), generator=g)).long()
    ids = ids * mask
    low, high = ((ids >= 4) & (ids < 22)).sum(1), (ids >= 22).sum(1)
    return TensorDataset(ids, mask, (low > high).long())


def network() -> nn.Module:
    """BERT of two layers, with adapters on its attention."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], task_type="SEQ_CLS")
    return get_peft_model(BertForSequenceClassification(config), lora)


def train(
    engine: str, *, records: int = 800, epochs: int = 4, batch_size: int = 80, seed: int = 0
) -> tuple[float, float]:
    """Accuracy on other sentences and ε."""
    if engine == "opacus":
        from opacus import PrivacyEngine
    else:
        from tacit.opacus import PrivacyEngine

    torch.manual_seed(seed)
    model = network().train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    criterion = nn.CrossEntropyLoss()
    privacy_engine = PrivacyEngine()
    model, optimizer, loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(sentences(records, 1), batch_size=batch_size),
        noise_multiplier=0.8,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for ids, mask, labels in loader:
            optimizer.zero_grad()
            criterion(model(input_ids=ids, attention_mask=mask).logits, labels).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        ids, mask, labels = sentences(500, 2).tensors
        accuracy = (model(input_ids=ids, attention_mask=mask).logits.argmax(1) == labels).float().mean().item()
    return accuracy, privacy_engine.get_epsilon(delta=1e-5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["tacit", "opacus"], default="tacit")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    warnings.simplefilter("ignore" if options.engine == "opacus" else "default")
    try:
        accuracy, epsilon = train(options.engine, epochs=options.epochs)
    except ModuleNotFoundError as error:
        sys.exit(print(f"skipped: this example needs {error.name} (pip install 'tacit[transformers]')"))
    print(f"{options.engine}: test accuracy {accuracy:.3f}, ε = {epsilon:.3f} at δ = 1e-5")
