"""Is this message spam? A bag of word embeddings in Opacus' words: only the import is another.

    python -m examples.opacus_text --engine tacit
    python -m examples.opacus_text --engine opacus

Messages of different length go through ``nn.EmbeddingBag`` as one long row of words with offsets, as in torch's own
text tutorial. Data: the SMS Spam Collection where it is found (``TACIT_DATA``), otherwise made-up messages.
"""

from __future__ import annotations

import argparse
import random
import warnings
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader

WORDS = 1000
Messages = list[tuple[list[int], int]]


def hashed(text: str) -> list[int]:
    """Words as numbers below 1,000, by a hash: a public vocabulary."""
    return [zlib.crc32(word.encode()) % WORDS for word in text.lower().split()[:40]] or [0]


def messages(records: int) -> tuple[Messages, Messages]:
    """Training and test messages with 1 for spam."""
    from tacit import datasets

    try:
        found = datasets.sms_spam(download=False).splits["all"]
        every = [(hashed(text), int(label == "spam")) for text, label in found.select("text", "label").rows()]
    except datasets.DatasetError:
        pick = random.Random(0)
        ham, spam = ["see", "you", "at", "home", "later", "ok"], ["win", "free", "cash", "prize", "call", "now"]
        every = []
        for _ in range(3000):
            label = int(pick.random() < 0.3)
            words = [pick.choice(spam if label and pick.random() < 0.6 else ham) for _ in range(pick.randint(3, 12))]
            every.append((hashed(" ".join(words)), label))
    random.Random(1).shuffle(every)
    return every[:records], every[-800:]


def collate(batch: Messages) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All words in one row, where each message begins, and labels."""
    lengths = [0] + [len(words) for words, _ in batch[:-1]]
    text = torch.tensor([word for words, _ in batch for word in words], dtype=torch.long)
    return text, torch.tensor(lengths).cumsum(0), torch.tensor([label for _, label in batch])


class Bag(nn.Module):
    """The mean of word embeddings, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(WORDS, 16, mode="mean")
        self.out = nn.Linear(16, 2)

    def forward(self, text: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(text, offsets))


def train(
    engine: str, *, records: int = 1500, epochs: int = 4, batch_size: int = 100, seed: int = 0
) -> tuple[float, float]:
    """Accuracy on the test messages and ε."""
    if engine == "opacus":
        from opacus import PrivacyEngine
    else:
        from tacit.opacus import PrivacyEngine

    torch.manual_seed(seed)
    data, test = messages(records)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    criterion = nn.CrossEntropyLoss()
    privacy_engine = PrivacyEngine()
    model, optimizer, loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=batch_size, collate_fn=collate),
        noise_multiplier=0.8,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for text, offsets, labels in loader:
            optimizer.zero_grad()
            criterion(model(text, offsets), labels).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        text, offsets, labels = collate(test)
        accuracy = (model(text, offsets).argmax(1) == labels).float().mean().item()
    return accuracy, privacy_engine.get_epsilon(delta=1e-5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["tacit", "opacus"], default="tacit")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    warnings.simplefilter("ignore" if options.engine == "opacus" else "default")
    accuracy, epsilon = train(options.engine, epochs=options.epochs)
    print(f"{options.engine}: test accuracy {accuracy:.3f}, ε = {epsilon:.3f} at δ = 1e-5")
