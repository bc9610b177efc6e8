"""Do card, report and run folders keep their promises? Claims no smaller than what was done, and nothing private."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit import accounting as acc
from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded, Ledger
from tacit.linear_model import LinearRegression
from tacit.noise import Key
from tacit.noise.keys import KeyFileError
from tacit.pate import ConfidentGNMax, VoteCounts
from tacit.report import CardError, Run, describe, describe_fit, make_card, make_page, read_card, write_card
from tacit.report.operator import make_operator_page, read_log
from tacit.report.registry import make_record, to_yaml
from tacit.report.texts import translated
from tacit.report.votes import describe_answers, make_votes_operator_page, make_votes_page, votes_view
from tacit.runs import plan as plans
from tacit.runs import search as searches
from tacit.runs.fit import FitRun, FitSettings
from tacit.runs.folder import RunFolder, carry_out
from tacit.runs.journal import NameTaken
from tacit.runs.models import ModelRefused, build
from tacit.runs.pate import VotesRun
from tacit.runs.plan import Case
from tacit.runs.program import run
from tacit.runs.progress import Told
from tacit.runs.read import Form
from tacit.runs.settings import Settings, SettingsError, again, check_keys
from tacit.runs.votes import kept
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit
from tacit.selftest import models, tap
from tacit.selftest.scene import Scene, charged, refused
from tacit.sgd import Training

ROWS, NOISE, STEPS, DELTA = 40, 2.0, 4, 1e-5
#: A private number that nobody chose: it may be in no release.
SECRET = 73.481529
SCHEMA = Schema(
    (
        Numeric("age", 0, 100),
        Categorical("ward", ["north", "south"]),
        Numeric("stay", 0, 50),
        Boolean("back", target=True),
    ),
    Unit("record"),
    "clinic",
)
PEOPLE = Schema(SCHEMA.columns, Unit("person", "who"), "clinic")


@contextmanager
def state_apart() -> Iterator[str]:
    """A folder for runs, keys and ledgers; the user's own state is left alone."""
    before = os.environ.get("XDG_STATE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        try:
            yield folder
        finally:
            if before is None:
                del os.environ["XDG_STATE_HOME"]
            else:
                os.environ["XDG_STATE_HOME"] = before


def _table(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 95, ROWS).astype(float)
    age[5] = SECRET
    return {
        "age": age,
        "ward": rng.choice(["north", "south"], ROWS).tolist(),
        "stay": rng.uniform(0, 50, ROWS),
        "back": (age > 60).tolist(),
    }


def _texts(folder: Path) -> dict[str, str]:
    """Every text of a run's folder that may be published."""
    files = [p for p in folder.rglob("*") if p.is_file() and "private" not in p.relative_to(folder).parts]
    return {p.name: p.read_text(encoding="utf-8", errors="ignore") for p in files}


def _closed(count: int) -> float:
    return bounds.gaussian_epsilon(math.sqrt(count) / NOISE, DELTA)


def _keys(folder: Path) -> list[str]:
    """Files that hold a key: whoever finds one can take the noise of the run away."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            with contextlib.suppress(KeyFileError, OSError):
                Key.load(path)
                found.append(str(path.relative_to(folder)))
    return found


def runs_publish_what_they_did(seed: int) -> list[Finding]:
    """A run in a folder: its card claims and its ledger holds the steps that were made; private values stay inside."""
    table = _table(seed)
    settings: dict[str, Any] = {
        "schema": SCHEMA,
        "noise": NOISE,
        "delta": DELTA,
        "steps": STEPS,
        "batch": ROWS,
        "model": "linear",
        "quiet": True,
    }
    with state_apart() as folder:
        books = Ledger(Path(folder) / "my.db")
        books.register("clinic", epsilon=60.0, delta=1e-3)
        poor = Ledger(Path(folder) / "poor.db")
        poor.register("clinic", epsilon=0.01, delta=1e-6)
        paid: dict[str, Any] = {"ledger": Path(folder) / "my.db", "dataset": "clinic"}
        done = run(table, **settings, **paid, runs=folder, name="mine", evaluate=table)
        spent = charged(books, DELTA, dataset="clinic")
        card = read_card(done.folder / "privacy.json")
        told = float(card["guarantee"]["epsilon"]["upper"])
        texts = _texts(done.folder)
        leaks = [name for name, text in texts.items() if "73.48" in text]
        measured = any("accuracy" in str(key) for key in done.metrics)
        public = run(
            table,
            **(settings | {"batch": 15}),
            runs=folder,
            name="public",
            public_share=0.3,
            public_because="made up",
            by=("ward",),
            reference=True,
        )
        by_epsilon = run(table, **(settings | {"noise": None, "epsilon": 1.0}), runs=folder, name="by-epsilon")
        again = run(table, resume=True, name="mine", runs=folder, quiet=True, schema=SCHEMA, ledger=paid["ledger"])
        regression = run(
            table, **(settings | {"model": "mlp", "target": "stay", "without": ("back",)}), runs=folder, name="stay"
        )
        people = run(
            table | {"who": [k // 2 for k in range(ROWS)]},
            **(settings | {"schema": PEOPLE, "max_rows": 2, "batch": ROWS // 2}),
            runs=folder,
            name="people",
        )
        keeping = run(table, **(settings | {"model": "tacit.selftest.models:keeping"}), runs=folder, name="keeping")
        state = torch.load(keeping.folder / "model.pt", weights_only=True)
        kept = max(float(value.abs().max()) for name, value in state.items() if name.endswith("seen"))
        unit, owned = str(read_card(people.folder / "privacy.json")["guarantee"]["unit"]), people.privacy.upper
        cases: dict[str, tuple[Callable[[], object], Any]] = {
            "a name that is taken": (lambda: run(table, **settings, runs=folder, name="mine"), NameTaken),
            "more than is left": (
                lambda: run(table, **settings, runs=folder, ledger=Path(folder) / "poor.db", dataset="clinic"),
                BudgetExceeded,
            ),
            "no δ": (lambda: run(table, **(settings | {"delta": None}), runs=folder), SettingsError),
            "both noise and ε": (lambda: run(table, **settings, epsilon=1.0, runs=folder), SettingsError),
            "no length": (lambda: run(table, **(settings | {"steps": None}), runs=folder), SettingsError),
            "an unknown setting": (lambda: run(table, **settings, nois=1.0, runs=folder), (SettingsError, TypeError)),
            "an unknown model": (lambda: run(table, **(settings | {"model": "magic"}), runs=folder), Exception),
            "no schema": (lambda: run(table, **(settings | {"schema": None}), runs=folder), Exception),
            "a column that is missing": (lambda: run({"age": [1.0]}, **settings, runs=folder), Exception),
            "other settings of a resumed run": (
                lambda: run(table, resume=True, name="mine", runs=folder, quiet=True, schema=SCHEMA, clip_norm=9.0),
                Exception,
            ),
            "nothing to resume": (lambda: run(table, resume=True, name="none", runs=folder, quiet=True), Exception),
            "a share without a reason": (lambda: run(table, **settings, by=("nothing",), runs=folder), Exception),
        }
        wrong = refused("runs: refusals", cases)
        untouched = poor.budget("clinic").spent_epsilon
        claims = {
            name: (
                result.privacy.upper,
                float(read_card(result.folder / "privacy.json")["guarantee"]["epsilon"]["upper"]),
            )
            for name, result in {"public": public, "by ε": by_epsilon, "regression": regression}.items()
        }
        keys = _keys(Path(folder))
        private = done.folder / "private"
        modes = [private.stat().st_mode & 0o077] if private.exists() else []
        alike = again.privacy.upper == done.privacy.upper
    exact = _closed(STEPS)
    return [
        holds("runs: claim", told >= exact * (1 - 1e-6), f"the card claims {told:.4f}, closed form {exact:.4f}"),
        holds("runs: charged", spent >= exact * (1 - 1e-6), f"charged {spent:.4f} of {exact:.4f}"),
        holds("runs: private values", not leaks and len(texts) > 3, f"found in {leaks}; {len(texts)} files"),
        holds("runs: people", unit == "person" and owned >= exact * (1 - 1e-6), f"one {unit}"),
        holds("runs: buffers", kept == 0.0, f"what a model kept of its rows is published up to {kept:.3g}"),
        holds("runs: private evaluation", not measured, "results on private rows are not published"),
        holds("runs: public evaluation", bool(public.metrics), f"{public.metrics}"),
        holds(
            "runs: cards",
            all(card >= claim * (1 - 1e-3) for claim, card in claims.values())
            and claims["by ε"][0] <= 1.0 * (1 + 1e-6),
            f"{claims}",
        ),
        holds("runs: private files", not any(modes), "closed to others"),
        holds("runs: keys", not keys, f"left behind: {keys}"),
        holds("runs: ended", alike, "a run that has ended is not made again"),
        holds("runs: refused runs cost nothing", untouched == 0.0, f"ε = {untouched}"),
        wrong,
    ]


def other_runs_publish_what_they_did(seed: int) -> list[Finding]:
    """Labels by teachers' votes, and a search over trainings: what is charged, claimed and kept inside."""
    import polars

    table = _table(seed)
    schema = SCHEMA.predicting(without=["stay"])
    with state_apart() as folder:
        place = Path(folder)
        books = Ledger(place / "my.db")
        for name in ("votes", "search"):
            books.register(name, epsilon=60.0, delta=1e-3)
        (place / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
        rows = {key: value for key, value in table.items() if key != "stay"}
        polars.DataFrame(rows).write_csv(place / "private.csv")
        polars.DataFrame({"age": [20.5, 80.5] * 6, "ward": ["north", "south"] * 6}).write_csv(place / "public.csv")
        asked: dict[str, Any] = {
            "source": str(place / "private.csv"),
            "public": str(place / "public.csv"),
            "schema": str(place / "schema.toml"),
            "teachers": 12,
            "model": "logistic",
            "threshold": 2.0,
            "check_noise": 9.0,
            "vote_noise": 7.0,
            "queries": 12,
            "delta": DELTA,
            "sanitise": True,
            "ledger": str(place / "my.db"),
            "dataset": "votes",
        }
        quiet = Told(quiet=True, every_tenth=False)
        votes, draws = tap.listen(lambda: carry_out(VotesRun(asked), RunFolder(place / "runs", "votes", None), quiet))
        votes_card = read_card(votes.folder / "privacy.json")
        (place / "tune.toml").write_text(
            f"""data = "{place / "private.csv"}"
schema = "{place / "schema.toml"}"
epsilon = 3.0
delta = 1e-5
steps = 2
batch = 36
size = 36
model = "linear"
ledger = "{place / "my.db"}"
dataset = "search"
[space]
learning_rate = [0.1, 0.5]
[search]
runs = 2
score_noise = 8.0
validation_every = 5
""",
            encoding="utf-8",
        )
        search = carry_out(searches.read(place / "tune.toml"), RunFolder(place / "runs", "search", None), quiet)
        search_card = read_card(search.folder / "privacy.json")
        found = _counted_once(place / "counted")
        texts = _texts(votes.folder) | _texts(search.folder)
        keys = _keys(place)
        spent = {name: charged(books, DELTA, dataset=name) for name in ("votes", "search")}
        counts = {name: books.budget(name).charges for name in spent}
    told = {
        name: float(card["guarantee"]["epsilon"]["upper"])
        for name, card in (("votes", votes_card), ("search", search_card))
    }
    exact = bounds.gaussian_epsilon(math.sqrt(12 / 9.0**2 + 12 * 2 / 7.0**2), DELTA)
    leaks = [name for name, text in texts.items() if "73.48" in text]
    # Each release has noise of its own: the sanitised price does not begin with the numbers of the first check.
    first, last = ((d.outcome - d.value).ravel()[0] / d.scale for d in (draws[0], draws[-1]))
    return [
        found,
        holds("runs: noise of its own", len(draws) > 2 and abs(first - last) > 2e-7, f"{len(draws)} draws"),
        holds(
            "runs: votes",
            told["votes"] >= exact * (1 - 1e-6),
            f"the card claims {told['votes']:.4f}, at least {exact:.4f}",
        ),
        holds(
            "runs: votes charged",
            spent["votes"] >= exact * (1 - 1e-6) and counts["votes"] == 2,
            f"{spent['votes']:.4f}",
        ),
        holds(
            "runs: search",
            0 < told["search"] <= 3.0 * (1 + 1e-6)
            and spent["search"] >= told["search"] * 0.98
            and counts["search"] == 1,
            f"the card claims {told['search']:.4f}, charged {spent['search']:.4f} in {counts['search']} charges",
        ),
        holds("runs: private values of others", not leaks, f"found in {leaks}"),
        holds("runs: keys of others", not keys, f"left behind: {keys}"),
    ]


def _counted_once(folder: Path) -> Finding:
    """Noise of a run meets one count of votes, however often the run begins again and whatever became of its data."""
    folder.mkdir()
    journal: Any = SimpleNamespace(private=folder)
    data = iter(([[9, 1], [2, 8]], [[0, 10], [10, 0]]))
    told = [kept(journal, lambda: VoteCounts(np.array(next(data)), teachers=10)).counts.tolist() for _ in range(2)]
    return holds("runs: votes counted once", told[0] == told[1] == [[9, 1], [2, 8]], f"counted {told}")


def coins_price_nothing(seed: int) -> list[Finding]:
    """How the coins fell that part the rows of a search is private: the price is the same however they fell."""
    import polars

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        polars.DataFrame(_table(seed)).write_csv(place / "private.csv")
        (place / "schema.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
        settings: dict[str, Any] = {"data": str(place / "private.csv"), "schema": str(place / "schema.toml")}
        settings |= {"model": "linear", "epsilon": 3.0, "delta": DELTA, "steps": 2, "batch": 20}
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        lines += ["[space]", "learning_rate = [0.1]", "[search]", "runs = 2", "validation_every = 3"]
        (place / "tune.toml").write_text("\n".join(lines), encoding="utf-8")
        run = searches.read(place / "tune.toml")
        rows = run.read()
        prices = {repr(run.over(rows, place / "none", bytes([coins] * 16)).mechanism) for coins in (0, 2)}
    return [holds("search: coins", len(prices) == 1, f"{len(prices)} prices for two ways in which they fell")]


def _without_a_source(folder: Path) -> Finding:
    """A card that does not say of each of its values why it may be published is refused."""
    text, taken = (folder / "votes.json").read_text(encoding="utf-8"), []
    for name in json.loads(text)["sources"]:
        card = json.loads(text)
        del card["sources"][name]
        (folder / "silent.json").write_text(json.dumps(card), encoding="utf-8")
        with contextlib.suppress(CardError):
            read_card(folder / "silent.json")
            taken.append(name)
    return holds("card: every value has a source", not taken, f"taken without: {taken}")


def fits_publish_what_they_did(seed: int) -> list[Finding]:
    """Fits in a folder: what is charged and claimed, and what one person moves in the accuracy that is released."""
    import polars

    found, part, quiet = list[Finding](), 0.25, Told(quiet=True, every_tenth=False)
    with state_apart() as folder:
        place = Path(folder)
        books = Ledger(place / "my.db")
        books.register("clinic", epsilon=60.0, delta=1e-3, unit="person")
        books.register("replaced", epsilon=60.0, delta=1e-3, unit="person", adjacency="replace-one")
        mine = _table(seed) | {"who": [k // 2 for k in range(ROWS)]}
        extreme = {"age": 1e6, "ward": "south", "stay": -1e6, "back": False, "who": 10**6}
        more = {name: [*values, *[extreme[name]] * 6] for name, values in mine.items()}
        polars.DataFrame(mine).write_csv(place / "mine.csv")
        polars.DataFrame(more).write_csv(place / "more.csv")
        for who in range(4):
            flipped = [back != (k // 2 == who) for k, back in enumerate(mine["back"])]
            polars.DataFrame(mine | {"back": flipped}).write_csv(place / f"other-{who}.csv")
        (place / "schema.toml").write_text(PEOPLE.to_toml(), encoding="utf-8")
        for name, what in {"classes": {"target": "back"}, "numbers": {"target": "stay", "without": ("back",)}}.items():

            def fit(data: str, replay: Any = None, name: str = name, what: Any = what, people: str = "clinic") -> Any:
                given: dict[str, Any] = {"ledger": str(place / "my.db"), "dataset": people, "max_rows": 2}
                given |= {"schema": str(place / "schema.toml"), "epsilon": 2.0, "delta": DELTA, "accuracy": part}
                run = FitRun(FitSettings(data=str(place / f"{data}.csv"), **given, **what))
                there = RunFolder(place / "runs", f"{name}-{data}", None)
                return tap.listen(lambda: carry_out(run, there, quiet), replay)

            before = charged(books, DELTA, dataset="clinic"), books.budget("clinic").charges
            done, draws = fit("mine")
            spent, charges = charged(books, DELTA, dataset="clinic"), books.budget("clinic").charges - before[1]
            told = float(read_card(done.folder / "privacy.json")["guarantee"]["epsilon"]["upper"])
            both = [record.mechanism for record in books.history("clinic")[-2:]]
            paid = acc.epsilon(both[0] + both[1], DELTA).upper
            right = part * 2.0 <= told <= 2.0 * (1 + 1e-6) and charges == 2 and spent - before[0] > 0.5 * told
            right &= told >= paid * (1 - 1e-6)
            text = f"the card claims {told:.4f} of 2 for {charges} charges of {paid:.4f} together"
            found.append(holds(f"fits: claim ({name})", right, text))
            last = fit("more", draws)[1][-1]
            moved = tap.laplace_cost(draws[-1:], [last])
            good = last.kind == draws[-1].kind == "laplace" and moved <= part * 2.0 * (1 + 1e-9)
            found.append(holds(f"fits: accuracy ({name})", good, f"one person costs ε = {moved:.4f} of {part * 2.0}"))
            leaks = [n for n, text in _texts(done.folder).items() if "73.48" in text]
            found.append(holds(f"fits: private values ({name})", not leaks, f"found in {leaks}"))
        classes = functools.partial(fit, name="replaced", what={"target": "back"}, people="replaced")
        draws = classes("mine")[1]
        cost = max(tap.laplace_cost(draws[-1:], classes(f"other-{who}", draws)[1][-1:]) for who in range(4))
        text = f"one person replaced costs ε = {cost:.4f} of {part * 2.0}"
        found.append(holds("fits: accuracy (replace-one)", 0 < cost <= part * 2.0 * (1 + 1e-9), text))
        started = FitRun(FitSettings(data=str(place / "mine.csv"), schema=str(place / "schema.toml"), epsilon=1.0))
        cases: dict[str, tuple[Callable[[], object], Any]] = {
            "no ε": (lambda: FitSettings("a.csv", "a.toml", 0.0), SettingsError),
            "δ of 1": (lambda: FitSettings("a.csv", "a.toml", 1.0, 1.0), SettingsError),
            "all for the accuracy": (lambda: FitSettings("a.csv", "a.toml", 1.0, accuracy=1.0), SettingsError),
            "a ledger without a name": (lambda: FitSettings("a.csv", "a.toml", 1.0, ledger="my.db"), SettingsError),
            "no ledger there": (
                lambda: FitSettings("a.csv", "a.toml", 1.0, ledger=str(place / "none.db"), dataset="a"),
                SettingsError,
            ),
            "a name that is taken": (
                lambda: carry_out(started, RunFolder(place / "runs", "classes-mine", None), quiet),
                NameTaken,
            ),
        }
        found.append(refused("fits: refusals", cases))
    return found


def plans_and_models(seed: int) -> list[Finding]:
    """The noise of a plan keeps its ε, models have the shape of the table, and settings that contradict are refused."""
    case = Case(examples=400, batch=40, steps=20, epsilon=2.0, delta=1e-5)
    told = plans.describe(case, SCHEMA, "mlp")
    price = acc.epsilon(acc.PoissonSampled(acc.Gaussian(told["noise"]), 0.1) * 20, 1e-5)
    looser = {row["change"]: row["times"] for row in told["changes"]}
    pictures = Schema((Numeric("image", 0, 1, shape=(20, 20)), Boolean("cat", target=True)), Unit("record"))
    shapes = {
        name: build(name, Form.of(schema))(torch.zeros(3, Form.of(schema).inputs)).shape
        for name, schema in (
            ("cnn", pictures),
            ("mlp", SCHEMA),
            ("linear", SCHEMA),
            ("tacit.selftest.models:line", SCHEMA),
        )
    }
    usual: dict[str, Any] = {"data": "people.csv", "noise": 1.0, "delta": 1e-5, "steps": 3}

    def with_(**more: Any) -> Callable[[], object]:
        return lambda: Settings(**(usual | more))

    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "no data": (with_(data=""), SettingsError),
        "δ of 2": (with_(delta=2.0), SettingsError),
        "noise below 0": (with_(noise=-1.0), SettingsError),
        "half a step": (with_(steps=1.5), SettingsError),
        "a text for a number": (with_(batch="many"), SettingsError),
        "a yes for a number": (with_(batch=True), SettingsError),
        "an unknown optimizer": (with_(optimizer="best"), SettingsError),
        "an optimizer that looks twice": (with_(optimizer="lbfgs"), SettingsError),
        "a ledger without a name": (with_(ledger="my.db"), SettingsError),
        "one canary": (with_(audit_canaries=1), SettingsError),
        "canaries and checkpoints": (with_(audit_canaries=10, checkpoint_every=3), SettingsError),
        "canaries and a compiler": (with_(audit_canaries=10, compile=True), SettingsError),
        "public rows without a reason": (with_(public_share=0.2), SettingsError),
        "public rows twice": (with_(public_share=0.2, evaluate="x.csv", public_because="x"), SettingsError),
        "groups on private rows": (with_(by=("ward",)), SettingsError),
        "groups that are a text": (with_(by="ward"), SettingsError),
        "a key of before": (lambda: check_keys(["public_every"]), SettingsError),
        "an unknown key": (lambda: check_keys(["nois"]), SettingsError),
        "another ledger of a resumed run": (lambda: again("my.db", "other.db"), SettingsError),
        "no picture": (lambda: build("cnn", Form.of(SCHEMA)), ModelRefused),
        "no module": (lambda: build("nowhere_at_all:model", Form.of(SCHEMA)), ModelRefused),
        "no function": (lambda: build("tacit.selftest.models:nothing", Form.of(SCHEMA)), ModelRefused),
        "no model": (lambda: build("tacit.selftest.models:table", Form.of(SCHEMA)), (ModelRefused, TypeError)),
    }
    secret = Settings(**usual, ledger="postgresql://u:secretword@host/x", dataset="people")
    return [
        holds("plan: ε", price.lower <= 2.0 * (1 + 1e-6), f"noise {told['noise']:.4f} costs {price}"),
        holds("plan: changes", looser["ε = 4"] < 1 and looser["800 records"] < 1, f"{looser}"),
        holds("models: shapes", {tuple(s) for s in shapes.values()} == {(3, 2)}, f"{shapes}"),
        holds("settings: passwords", "secretword" not in secret.to_toml() + repr(secret), "are not written down"),
        refused("runs: settings", cases),
    ]


def cards_say_what_was_done(seed: int) -> list[Finding]:
    """Cards of a training, of a fit and of answers: ε at least the closed form, read back the same, or refused."""
    found = []
    with state_apart() as folder:
        training = _trained(seed)
        table = np.random.default_rng(seed).uniform(-1, 1, (30, 2))
        fit = LinearRegression(1.0, DELTA, bounds=(-1, 1), target_bounds=(-1, 1)).fit(table, table[:, 0])
        answers = ConfidentGNMax(threshold=50, check_noise=30.0, vote_noise=20.0, classes=2).answer(
            [[90, 10]] * 6, queries=6, teachers=100, delta=DELTA
        )
        votes = bounds.gaussian_epsilon(math.sqrt(6 / 30.0**2 + 6 * 2 / 20.0**2), DELTA)
        # A price whose ends are apart: the upper one is what is claimed, in every number and word.
        wide = acc.FixedSizeSampled(acc.Gaussian(1.5), 10, 30)
        loose = Run("loose", wide, delta=0.02, adjacency="zero-out")
        cards = {
            "loose": (make_card(loose), acc.epsilon(wide, 0.02, adjacency="zero-out").upper),
            "training": (make_card(describe(training, "a run")), _closed(STEPS)),
            "fit": (make_card(describe_fit(fit, "a fit")), 0.5),
            "votes": (make_card(describe_answers(answers, "votes")), votes),
        }
        for name, (card, exact) in cards.items():
            path = write_card(card, Path(folder) / f"{name}.json")
            again = read_card(path)
            told = min(float(again["guarantee"]["epsilon"][end]) for end in ("upper", "claimed"))
            found.append(holds(f"card: {name}", told >= exact * (1 - 1e-6), f"states {told:.4f}, at least {exact:.4f}"))
            page = make_votes_page(again) if name == "votes" else make_page(again)
            shown = _shown(told)
            found.append(holds(f"report: {name}", any(s in page for s in shown), f"shows {shown[0]}, rounded up"))
            german = any(s.replace(".", ",") in translated(page, "de") for s in shown)
            listed = make_record(again)["deployment"]["privacy_loss"]["privacy_parameters"]
            good = german and listed["epsilon"] >= exact * (1 - 1e-6) and f"{listed['epsilon']:g}" in to_yaml(listed)
            found.append(holds(f"report: {name} elsewhere", good, f"in German: {german}; in a registry {listed}"))
            found.append(
                holds(
                    f"card: {name} read back",
                    json.dumps(again.to_dict(), default=list) == json.dumps(card.to_dict(), default=list),
                    "the same values",
                )
            )
        plain = make_card(Run("plain", acc.Gaussian(NOISE, replace=2.0) * STEPS, delta=DELTA))
        found += [_other_prices(card["guarantee"]) for card in (cards["training"][0], plain)]
        forged = json.loads((Path(folder) / "training.json").read_text(encoding="utf-8"))
        del forged["guarantee"]
        (Path(folder) / "forged.json").write_text(json.dumps(forged), encoding="utf-8")
        (Path(folder) / "text.json").write_text("no card", encoding="utf-8")
        found.append(_without_a_source(Path(folder)))
        wrong = refused(
            "card: refusals",
            {
                "without a guarantee": (lambda: read_card(Path(folder) / "forged.json"), Exception),
                "a text": (lambda: read_card(Path(folder) / "text.json"), Exception),
                "no file": (lambda: read_card(Path(folder) / "none.json"), Exception),
                "a price under another adjacency": (
                    lambda: Run("terms", wide, delta=0.02, adjacency="zero-out", epsilon=_price(wide, "replace-one")),
                    ValueError,
                ),
                "a price for another unit": (
                    lambda: Run("terms", wide, delta=0.02, adjacency="zero-out", epsilon=_price(wide, unit="person")),
                    ValueError,
                ),
                "the number of records, for neighbours that differ in it": (
                    lambda: Run("count", acc.Laplace(1.0), delta=0.0, records=ROWS, records_public=True),
                    ValueError,
                ),
            },
        )
        view = votes_view(answers)
        operator = make_votes_operator_page(cards["votes"][0], [view])
        page = make_operator_page(cards["training"][0], [training.diagnostics()])
    text = json.dumps(cards["votes"][0].to_dict(), default=str)
    return [
        *found,
        wrong,
        holds("card: data-dependent prices", "not publishable" in text, "are not on it"),
        holds("operator pages", "operator" in operator.lower() and "operator" in page.lower(), "say whom they are for"),
        holds("operator logs", callable(read_log), "are read"),
    ]


def _price(mechanism: acc.Mechanism, adjacency: str = "zero-out", unit: str = "record") -> acc.Bound:
    return dataclasses.replace(acc.epsilon(mechanism, 0.02, adjacency=adjacency), unit=unit)


def _other_prices(guarantee: Any) -> Finding:
    """What a card says besides its claim: ε after some of the steps, at other δ and under other adjacencies."""
    curve, others = guarantee["over_steps"], {row["adjacency"]: row["upper"] for row in guarantee["other_adjacencies"]}
    pairs = [(upper, _closed(count)) for count, upper in zip(curve["steps"], curve["upper"], strict=True)]
    pairs.append((others["replace-one"], bounds.gaussian_epsilon(2 * math.sqrt(STEPS) / NOISE, DELTA)))
    for row in guarantee["epsilon_of_delta"]:
        pairs.append((row["upper"], bounds.gaussian_epsilon(math.sqrt(STEPS) / NOISE, row["delta"])))
    low = [f"{float(told):.4f} of {exact:.4f}" for told, exact in pairs if not float(told) >= exact * (1 - 1e-6)]
    return holds("card: other prices", not low and len(pairs) > 4, "; ".join(low) or f"{len(pairs)} of them")


def _trained(seed: int) -> Training:
    x, y = models.table(seed)
    model = nn.Linear(models.FEATURES, models.CLASSES)
    training = Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(reduction="none"),
        (x, y),
        batch_size=models.ROWS,
        steps=STEPS,
        noise_multiplier=NOISE,
        clip_norm=0.5,
        delta=DELTA,
    )
    for batch in training:
        training.step(batch)
    return training


def _shown(epsilon: float) -> list[str]:
    """ε as a report may show it: rounded up, never down."""
    up = [math.ceil(epsilon * 10**digits - 1e-9) / 10**digits for digits in (4, 3, 2)]
    return [f"{value:.{4 - k}f}" for k, value in enumerate(up)] + [f"ε = {up[0]:g}", f"ε={up[0]:g}", f">{up[0]:g}<"]


SCENES = (
    Scene("report: cards", "report", cards_say_what_was_done),
    Scene("runs: coins of a search", "runs", coins_price_nothing, long=True),
    Scene("runs: fits", "runs", fits_publish_what_they_did),
    Scene("runs: plans", "runs", plans_and_models, long=True),
    Scene("runs: folders", "runs", runs_publish_what_they_did, long=True),
    Scene("runs: votes and searches", "runs", other_runs_publish_what_they_did),
)
