"""A CNN on handwritten digits, in Opacus' words: run it with either library, only the import is another.

    python -m examples.opacus_mnist --engine tacit
    python -m examples.opacus_mnist --engine opacus

The loop is the one of Opacus' MNIST tutorial, with BatchMemoryManager. Data: MNIST where it is found (``TACIT_DATA``),
otherwise the small digits that come with scikit-learn.
"""

from __future__ import annotations

import argparse
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digits(records: int) -> tuple[TensorDataset, TensorDataset]:
    """Training and test images, 28 x 28."""
    from tacit import datasets

    try:
        splits = datasets.mnist(download=False).splits
        x, a = (torch.tensor(splits[k].images).unsqueeze(1) / 255 for k in ("train", "test"))
        y, b = (torch.tensor(splits[k].labels) for k in ("train", "test"))
    except datasets.DatasetError:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        every = F.interpolate(torch.tensor(images).float().reshape(-1, 1, 8, 8) / 16, size=28)
        x, y, a, b = every[:1500], torch.tensor(labels[:1500]), every[1500:], torch.tensor(labels[1500:])
    return TensorDataset(x[:records], y[:records]), TensorDataset(a, b)


def network() -> nn.Module:
    """The network of Opacus' MNIST example: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def train(
    engine: str, *, records: int = 1000, epochs: int = 3, batch_size: int = 100, seed: int = 0
) -> tuple[float, float]:
    """Accuracy on the test set and ε."""
    if engine == "opacus":
        from opacus.utils.batch_memory_manager import BatchMemoryManager

        from opacus import PrivacyEngine
    else:
        from tacit.opacus import PrivacyEngine
        from tacit.opacus.utils.batch_memory_manager import BatchMemoryManager

    torch.manual_seed(seed)
    data, test = digits(records)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(data, batch_size=batch_size)
    criterion = nn.CrossEntropyLoss()

    privacy_engine = PrivacyEngine()
    model, optimizer, loader = privacy_engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    for _ in range(epochs):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=64, optimizer=optimizer) as pieces:
            for images, labels in pieces:
                optimizer.zero_grad()
                loss = criterion(model(images), labels)
                loss.backward()
                optimizer.step()
    model.eval()
    with torch.no_grad():
        x, y = test.tensors
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return accuracy, privacy_engine.get_epsilon(delta=1e-5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["tacit", "opacus"], default="tacit")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--records", type=int, default=1000)
    options = parser.parse_args()
    warnings.simplefilter("ignore" if options.engine == "opacus" else "default")
    accuracy, epsilon = train(options.engine, epochs=options.epochs, records=options.records)
    print(f"{options.engine}: test accuracy {accuracy:.3f}, ε = {epsilon:.3f} at δ = 1e-5")
