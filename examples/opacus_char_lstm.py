"""Which language is this name from? A character LSTM in Opacus' words: only the import is another.

    python -m examples.opacus_char_lstm --engine tacit
    python -m examples.opacus_char_lstm --engine opacus

Opacus needs its own ``DPLSTM``; under ``tacit.opacus.layers`` the same name is torch's LSTM. The names are made up,
from the syllables of four made-up languages.
"""

from __future__ import annotations

import argparse
import random
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SYLLABLES = (
    ["ka", "ri", "mo", "ta", "shi", "no", "ha", "ru", "ke"],
    ["von", "berg", "stein", "mann", "hof", "er", "witz", "dorf"],
    ["ov", "ski", "dim", "vla", "ra", "sla", "ev", "mir", "yuk"],
    ["ello", "ino", "ari", "etta", "bia", "rossi", "ale", "gio"],
)
LENGTH = 14


def names(count: int, seed: int) -> TensorDataset:
    """Names as characters, padded with zeros, and their languages."""
    pick = random.Random(seed)
    rows, labels = [], []
    for _ in range(count):
        language = pick.randrange(len(SYLLABLES))
        name = "".join(pick.choice(SYLLABLES[language]) for _ in range(pick.randint(2, 3)))[:LENGTH]
        rows.append([ord(c) - 96 for c in name] + [0] * (LENGTH - len(name)))
        labels.append(language)
    return TensorDataset(torch.tensor(rows), torch.tensor(labels))


class CharLSTM(nn.Module):
    """Embedding, one LSTM layer, and a linear layer on its last state."""

    def __init__(self, recurrent: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(27, 16)
        self.rnn = recurrent(16, 32, batch_first=True)
        self.out = nn.Linear(32, len(SYLLABLES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(self.embed(x))
        return self.out(states[:, -1])


def train(
    engine: str, *, records: int = 800, epochs: int = 6, batch_size: int = 80, seed: int = 0
) -> tuple[float, float]:
    """Accuracy on other names and ε."""
    if engine == "opacus":
        from opacus.layers import DPLSTM

        from opacus import PrivacyEngine
    else:
        from tacit.opacus import PrivacyEngine
        from tacit.opacus.layers import DPLSTM

    torch.manual_seed(seed)
    model = CharLSTM(DPLSTM)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    criterion = nn.CrossEntropyLoss()
    privacy_engine = PrivacyEngine()
    model, optimizer, loader = privacy_engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(names(records, 1), batch_size=batch_size),
        target_epsilon=4.0,
        target_delta=1e-4,
        epochs=epochs,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        x, y = names(500, 2).tensors
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return accuracy, privacy_engine.get_epsilon(delta=1e-4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["tacit", "opacus"], default="tacit")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    warnings.simplefilter("ignore" if options.engine == "opacus" else "default")
    accuracy, epsilon = train(options.engine, epochs=options.epochs)
    print(f"{options.engine}: test accuracy {accuracy:.3f}, ε = {epsilon:.3f} at δ = 1e-4")
