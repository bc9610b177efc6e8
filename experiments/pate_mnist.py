"""What does PATE give on MNIST? 250 stacked convolutional teachers, noisy votes, a committee of students.

Papernot et al. (2018, table 1) report 98.5% at ε = 1.97, δ = 1e-5 (286 of 640 queries answered; threshold 200, noise
150 and 40; without privacy 99.2%). Here as there: the 60,000 training images are private, the first 9,000 test images
are public and unlabelled, the student is tested on the last 1,000. Two recipes are run on the same votes:
``published`` has the paper's queries, threshold and noises, ``chosen`` ours, which asks 2,000 queries and is stricter.
Teachers and student are ours in both. How the student is taught was chosen on training images
(:mod:`experiments.pate_recipe`); the labels of the test split are read when a student has been trained, to test it, and
nowhere else.

250 convolutional teachers take hours on two cores and two minutes on a GPU. In the short size teachers and student are
kernel machines on straightened pixels: votes, answers and prices are real, and the student is simple.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.table import Facts, Row, Table, markdown, mean_sd
from tacit.noise import Key
from tacit.pate import Answers, ConfidentGNMax, Teachers, VoteCounts, augment
from tacit.pate.learner import probabilities
from tacit.pate.stacked import StackedTeachers

ABOUT = "PATE on MNIST with the published parameters and with ours: 250 teachers, ε three ways"
FACTS = Facts(
    paper="Papernot et al. 2018 (Confident-GNMax), table 1",
    same="250 teachers, threshold 200, σ₁ = 150, σ₂ = 40, 640 queries, δ = 1e-5, the split of the images",
    differs="teachers are augmented, the student is a FixMatch committee (theirs: a GAN); ours also asks 2,000 queries",
    published="98.5% at ε = 1.97, 286 of 640 answered",
    ours=(
        ("published parameters:", {"part": "student", "name": "published"}, "accuracy"),
        ("at ε", {"part": "student", "name": "published"}, "theorem6"),
        ("2,000 queries:", {"part": "student", "asked": 2000}, "accuracy"),
        ("at ε", {"part": "student", "asked": 2000}, "theorem6"),
    ),
    page="pate",
    short="20 s on two quiet cores: 250 kernel machines as teachers",
    full="112 s for the teachers on one H200 (5 hours on two cores); 12 minutes a student on one core",
)
SEEDS = 3
TEACHERS, DELTA, PUBLIC = 250, 1e-5, 9_000
THRESHOLD, CHECK_NOISE, VOTE_NOISE = 200.0, 150.0, 40.0  # as in the paper's table 1
TEACHER: dict[str, Any] = {
    "steps": 2000, "batch_size": 48, "learning_rate": 2e-3, "weight_decay": 1e-3, "average": 0.995,
}  # fmt: skip
#: People are dealt out by this key, so that a repetition has the same parts. A real run draws its own.
PARTITION = bytes(range(32))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How many queries are asked, and how a student is taught. ``spread``: every so many public images are asked about,
    rather than the first ones. ``threshold`` and ``check_noise`` say how sure 250 teachers must be to answer (as in the
    paper's table 1 unless said). ``strength`` scales how much images are bent and hidden. ``crossed``: members of the
    first round see half of the labels each."""

    queries: int = 2_000
    spread: bool = True
    threshold: float = THRESHOLD
    check_noise: float = CHECK_NOISE
    members: int = 4
    rounds: int = 2
    steps: int = 2_500
    batch: int = 64
    sure: float = 0.95
    strength: float = 1.0
    crossed: bool = False

    def words(self) -> dict[str, Any]:
        """For a row."""
        return dataclasses.asdict(self)

    def asked(self, public: int) -> NDArray[np.int64]:
        """The public images in the order in which they are asked about: a choice that looks at no label and no vote.

        >>> Recipe(queries=2).asked(5)
        array([0, 2, 1, 3, 4])
        """
        first = np.arange(self.queries) * public // self.queries if self.spread else np.arange(self.queries)
        return np.concatenate([first, np.setdiff1d(np.arange(public), first)])

    def strong(self, x: Any) -> Any:
        """An image bent and partly hidden."""
        return augment.cutout(augment.elastic(x, strength=0.12 * self.strength, degrees=15.0), 0.25 * self.strength)

    def options(self) -> dict[str, Any]:
        """For the students."""
        return {
            "steps": self.steps, "batch_size": self.batch, "ratio": 4, "sure": self.sure, "strong": self.strong,
            "members": self.members, "rounds": self.rounds, "crossed": self.crossed, "half": True,
        }  # fmt: skip


#: The paper's queries, threshold and noises; the student is taught as ours is.
AS_PUBLISHED = Recipe(queries=640, spread=False, members=2, rounds=1, steps=3_000, batch=32)
#: What did best on training images with stand-in teachers (``pate_recipe``), as large as two cores train in an hour.
CHOSEN = Recipe(threshold=230.0, check_noise=120.0, members=2, rounds=1, steps=3_000, batch=32)
RECIPES = {"published": AS_PUBLISHED, "chosen": CHOSEN}
#: Of the short size: public images that its student labels by itself.
SELF_TAUGHT = 2_000
#: For seconds.
TINY = Recipe(queries=60, members=2, steps=4, batch=4)


class SeededSource:
    """Random words that can be drawn again, for published benchmark data. A real run uses the system's entropy."""

    word_bits = 64

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng([seed, 2018])

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next words."""
        return self._generator.integers(0, 2**64, size=count, dtype=np.uint64)


def run(table: Table) -> None:
    """Teachers and their votes once (kept beside the rows, for their owner alone), then a row for each recipe, seed."""
    data = made_up() if table.tiny else _mnist(table.path("mnist", "train-images-idx3-ubyte.gz").parent)
    torch.set_float32_matmul_precision("high")  # accuracy needs no more, and no noise is drawn on this device
    votes = kept_votes(table, data["public"])
    if votes is None:
        votes = _teach(table, data)
    for seed in range(table.seeds):
        for name, recipe in list(RECIPES.items())[: 1 if table.tiny else None]:
            chosen = TINY if table.tiny else recipe
            student_row(table, data, votes, chosen, seed, name=name)


def student_row(table: Table, data: dict[str, Any], votes: VoteCounts, recipe: Recipe, seed: int, **more: Any) -> Row:
    """The row of one draw of the noise."""
    measure = functools.partial(_measure, table, data, votes, recipe, seed)
    return table.row(measure, part="student", **more, recipe=recipe.words(), seed=seed)


def _mnist(folder: Path) -> dict[str, Any]:
    """Private, public and test rows; the labels of the test split are read by :func:`_truth`, when they are needed."""
    pictures = images(folder, "t10k")
    public, test = pictures[:PUBLIC], pictures[PUBLIC:]
    return {"x": images(folder, "train"), "y": labels(folder, "train"), "public": public, "test": test, "at": folder}


def made_up() -> dict[str, Any]:
    """A bright row for each class: enough to show that the experiment runs."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 500)
    x = 0.3 * rng.random((500, 1, 28, 28), dtype=np.float32)
    x[np.arange(500), 0, 4 + 2 * y] = 1.0
    pictures = torch.as_tensor(x)
    return {"x": pictures[:300], "y": y[:300], "public": pictures[300:400], "test": pictures[400:], "truth": y[300:]}


def _truth(data: dict[str, Any]) -> NDArray[np.int64]:
    return data["truth"] if "truth" in data else labels(data["at"], "t10k")


def _teach(table: Table, data: dict[str, Any]) -> VoteCounts:
    x, y, public = data["x"], data["y"], data["public"]
    count = 4 if table.tiny else TEACHERS
    found: list[VoteCounts] = []

    def measure() -> dict[str, Any]:
        began = time.perf_counter()
        asked = public
        if table.size == "short":
            teachers = Teachers(KernelMachine, (straight(x).numpy(), y), n=count, classes=10, key=Key(PARTITION)).fit()
            asked, network = straight(public).numpy(), KernelMachine.__name__
        else:
            make = unfolded if table.tiny else quicker(table.device)
            teachers, network = Teachers(make, (x, y), n=count, classes=10, key=Key(PARTITION)), make.__name__
            options = TEACHER | ({"steps": 4, "batch_size": 8} if table.tiny else {})
            together = None if table.device.startswith("cuda") else 10
            teachers.fit(augment=augment.elastic, device=table.device, together=together, **options)
        trained = time.perf_counter()
        found.append(dataclasses.replace(teachers.vote(asked), x=public))
        found[0].save(table.folder / "votes.npz")
        voted = time.perf_counter()
        shown = asked[:1000]
        seen = teachers.diagnostics(shown, _truth(data)[: len(shown)]).reveal()
        return {
            "teachers": count,
            "network": network,
            "teacher_accuracy": seen["accuracy_mean"],
            "teacher_accuracy_least": seen["accuracy_least"],
            "smallest_part": seen["smallest_part"],
            "largest_part": seen["largest_part"],
            "train_seconds": round(trained - began, 1),
            "vote_seconds": round(voted - trained, 1),
        }

    table.row(measure, part="teachers")
    # a row was there, but not its votes: teach again, without a second row
    if not found:
        measure()
    return found[0]


def straight(images: Any) -> Any:
    """Images with the slant of their strokes taken out, each by its own second moments; rows of pixels."""
    x = images[:, 0]
    mass = x.sum((1, 2)).clamp_min(1e-6)
    place = torch.linspace(-1, 1, 28)
    down, right = place[None, :, None], place[None, None, :]
    middle_down, middle_right = ((x * axis).sum((1, 2)) / mass for axis in (down, right))
    from_middle = down - middle_down[:, None, None], right - middle_right[:, None, None]
    both = (x * from_middle[0] * from_middle[1]).sum((1, 2)) / mass
    slant = both / ((x * from_middle[0] ** 2).sum((1, 2)) / mass).clamp_min(1e-6)
    turn = torch.zeros(len(x), 2, 3)
    turn[:, 0, 0] = turn[:, 1, 1] = 1.0
    turn[:, 0, 1], turn[:, 0, 2], turn[:, 1, 2] = slant, middle_right, middle_down
    grids = (nn.functional.affine_grid(part, [len(part), 1, 28, 28], align_corners=True) for part in turn.split(5_000))
    parts = zip(images.split(5_000), grids, strict=True)
    return torch.cat([nn.functional.grid_sample(a, grid, align_corners=True).flatten(1) for a, grid in parts])


class KernelMachine:
    """Kernel ridge regression of the classes on pixels: a teacher that is fitted in milliseconds."""

    width, ridge = 6.0, 0.1

    def fit(self, x: NDArray[Any], y: NDArray[Any]) -> KernelMachine:
        """Solve for the weights of the training images."""
        self._x = x
        target = np.eye(10)[np.asarray(y, np.int64)] - 0.1
        self._weights = np.linalg.solve(self._kernel(x) + self.ridge * np.eye(len(x)), target)
        return self

    def _kernel(self, x: NDArray[Any]) -> NDArray[Any]:
        squares = (x**2).sum(1)[:, None] + (self._x**2).sum(1) - 2 * x @ self._x.T
        return np.asarray(np.exp(-np.maximum(squares, 0) / (2 * self.width**2)))

    def predict(self, x: NDArray[Any]) -> NDArray[np.int64]:
        """The class with the largest score."""
        return np.asarray((self._kernel(x) @ self._weights).argmax(1), np.int64)


def kept_votes(table: Table, x: Any) -> VoteCounts | None:
    """The votes of an earlier run in the same folder, so that students can be trained without the teachers."""
    path = table.folder / "votes.npz"
    return VoteCounts.load(path, x=x) if path.exists() else None


def ask(votes: VoteCounts, recipe: Recipe, seed: int) -> Answers:
    """The teachers' answers, with the recipe's threshold and noises (for fewer teachers in proportion)."""
    scale = votes.teachers / TEACHERS
    aggregator = ConfidentGNMax(
        threshold=recipe.threshold * scale,
        check_noise=recipe.check_noise * scale,
        vote_noise=VOTE_NOISE * scale,
        classes=10,
    )
    order = recipe.asked(len(votes))
    queries = dataclasses.replace(votes, counts=votes.counts[order], x=votes.x[torch.from_numpy(order)])
    return aggregator.answer(queries, queries=recipe.queries, delta=DELTA, source=SeededSource(seed))


def _measure(table: Table, data: dict[str, Any], votes: VoteCounts, recipe: Recipe, seed: int) -> dict[str, Any]:
    test = data["test"]
    answers = ask(votes, recipe, seed)
    said = _self_taught(answers, test) if table.size == "short" else _committee(table, answers, test, recipe, seed)
    truth = _truth(data)
    given = answers.labels[answers.answered]
    asked = truth[: len(votes)][recipe.asked(len(votes))[: len(answers)]]
    return prices(answers) | {
        "answers_right": float((given == asked[answers.answered]).mean()),
        "accuracy": float((said == truth[-len(test) :]).mean()),
        "plurality_right": float((votes.counts.argmax(axis=1) == truth[: len(votes)]).mean()),
    }


def _committee(table: Table, answers: Answers, test: Any, recipe: Recipe, seed: int) -> NDArray[np.int64]:
    """What the committee of students says on the test images."""
    torch.manual_seed(seed)
    student = answers.fit(
        student_network,
        method="committee",
        device=table.device,
        graph=table.device.startswith("cuda"),
        seed=seed,
        **recipe.options(),
    )
    return np.asarray(probabilities(student, test.to(table.device)).argmax(1).cpu().numpy())


def _self_taught(answers: Answers, test: Any) -> NDArray[np.int64]:
    """What a kernel machine says that learned the answers, then what it says itself of other public images."""
    known, labels, rest = answers.labelled()
    x, more = straight(known).numpy(), straight(rest[:SELF_TAUGHT]).numpy()
    first = KernelMachine().fit(x, labels)
    second = KernelMachine().fit(np.concatenate([x, more]), np.concatenate([labels, first.predict(more)]))
    return second.predict(straight(test).numpy())


def prices(answers: Answers) -> dict[str, Any]:
    """All three accounts. These data are a public benchmark; of private data the last two stay with the operator."""
    accounts = answers.accounts
    assert accounts.exact is not None
    return {
        "asked": len(answers),
        "answered": int(answers.answered.sum()),
        "data_independent": answers.privacy.claim,
        "theorem6": float(accounts.theorem6),
        "exact": float(accounts.exact),
    }


def summary(rows: list[Row]) -> str:
    """Means over the seeds, for each recipe, and the teachers."""
    students = [row for row in rows if row["part"] == "student"]
    lines = []
    for recipe in {json.dumps(row.get("recipe"), sort_keys=True): row.get("recipe") for row in students}.values():
        own = [row for row in students if row.get("recipe") == recipe]
        shown: Row = {"parameters": own[0].get("name", ""), "asked": own[0]["asked"], "seeds": len(own)}
        for name in ("answered", "answers_right", "accuracy", "data_independent", "theorem6", "exact"):
            shown[name] = mean_sd([float(row[name]) for row in own])[0]
        shown["accuracy sd"] = mean_sd([row["accuracy"] for row in own])[1]
        shown["least accuracy"] = min(row["accuracy"] for row in own)
        lines.append(shown)
    taught = [row for row in rows if row["part"] == "teachers"]
    columns = ["teachers", "network", "teacher_accuracy", "teacher_accuracy_least", "train_seconds"]
    parts = [(lines, list(lines[0]) if lines else []), (taught, columns)]
    return "\n\n".join(markdown(part, names) for part, names in parts if part)


# -- data and networks ----


def images(folder: Path, which: str) -> Any:
    """The images of a split, N x 1 x 28 x 28 in [0, 1]."""
    content = gzip.decompress((folder / f"{which}-images-idx3-ubyte.gz").read_bytes())
    raw = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return torch.as_tensor(raw.astype(np.float32) / 255)


def labels(folder: Path, which: str) -> NDArray[np.int64]:
    """The labels of a split."""
    content = gzip.decompress((folder / f"{which}-labels-idx1-ubyte.gz").read_bytes())
    return np.frombuffer(content, np.uint8, offset=8).astype(np.int64)


class Unfolded(nn.Module):
    """A 3 x 3 convolution as a product of matrices: stacked, hundreds of them are one batched product."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        plain = nn.Conv2d(channels, filters, 3, padding=1)
        self.weight = nn.Parameter(plain.weight.detach().reshape(filters, -1).clone())
        assert plain.bias is not None
        self.bias = nn.Parameter(plain.bias.detach().clone())

    def forward(self, x: Any) -> Any:
        """The convolved images."""
        columns = nn.functional.unfold(x, 3, padding=1)
        return (self.weight @ columns + self.bias[:, None]).reshape(len(x), -1, *x.shape[-2:])


def _network(convolution: Any) -> Any:
    return nn.Sequential(
        convolution(1, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        convolution(32, 64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 49, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, 10),
    )


def unfolded() -> Any:
    """A teacher whose convolutions are products of matrices."""
    return _network(Unfolded)


def convolved() -> Any:
    """The same teacher with torch's convolutions, which stacked are grouped ones."""
    return _network(lambda channels, filters: nn.Conv2d(channels, filters, 3, padding=1))


def quicker(device: str) -> Any:
    """Whichever of the two trains faster here, stacked."""
    size = 50 if device.startswith("cuda") else 4
    x, y = torch.rand(size * 4, 1, 28, 28, device=device), torch.randint(10, (size * 4,), device=device)
    parts = [np.arange(4) + 4 * i for i in range(size)]
    options: dict[str, Any] = {"batch_size": 16, "learning_rate": 1e-3, "weight_decay": 0.0, "augment": None}
    options |= {"together": size, "device": torch.device(device), "seed": 0}
    times = {}
    for make in (unfolded, convolved):
        stacked = StackedTeachers(make, size)
        for steps in (2, 6):  # the first to warm up
            began = time.perf_counter()
            stacked.fit(x, y, parts, steps=steps, **options)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            times[make] = time.perf_counter() - began
    print({make.__name__: round(seconds, 3) for make, seconds in times.items()}, "s for 6 steps of", size, flush=True)
    return min(times, key=lambda make: times[make])


def student_network() -> Any:
    """Four convolutions with batch normalisation."""

    def block(channels: int, filters: int) -> list[Any]:
        return [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]

    return nn.Sequential(
        *block(1, 32),
        nn.MaxPool2d(2),
        *block(32, 64),
        *block(64, 64),
        nn.MaxPool2d(2),
        *block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
