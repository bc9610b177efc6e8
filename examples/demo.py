"""``make demo``: a private employment classifier on real census data, and the page to show for it.

About a fifth of the rows of the embedded census sample, each by a hash of what it holds, is declared public, for
evaluation; on the others a classifier is trained at ε = 1, δ = 1e-6 under a ledger that has just that budget. Printed
are charged and public values only. The demo ends with the path of the report, or with an error.
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tacit.ledger import Ledger, Release
from tacit.report import read_card
from tacit.runs.journal import Journal
from tacit.runs.progress import Told
from tacit.runs.read import read
from tacit.runs.settings import Settings
from tacit.runs.train import drive, release, start

EPSILON, DELTA = 1.0, 1e-6


def settings(ledger: Path) -> Settings:
    """The run. Learning rate, clip norm and epochs were chosen on the public rows."""
    return Settings(
        data="labsup",
        model="linear",
        epsilon=EPSILON,
        delta=DELTA,
        epochs=20,
        batch=1024,
        learning_rate=4.0,
        momentum=0.0,
        clip_norm=1.0,
        ledger=str(ledger),
        dataset="labsup",
        public_share=0.2,
        public_because="rows of a published sample, set apart by a rule that was fixed in advance",
        by=("black", "hispan"),
        reference=True,
        tuning="on public data only",
        tuning_note="Learning rate, clip norm and epochs were chosen on the public rows that accuracy is stated for.",
        uncovered=(),
        purpose="did the mother work for pay last year?",
        trust_model="central: whoever runs this demo holds the data",
        release="the weights and this report, to everybody",
    )


def check(card: Release, ledger: Ledger) -> None:
    """A private result, or an error."""
    claimed = card["guarantee"]["epsilon"]["claimed"]
    if not (isinstance(claimed, float) and claimed <= EPSILON and card["guarantee"]["delta"] == DELTA):
        raise SystemExit(f"the run claims ε = {claimed}, not {EPSILON}")
    ledger.verify("labsup", heads=[card["ledger"]["head"]], reprice=True).require()
    if not card["ledger"]["confirmed"]:
        raise SystemExit("the ledger holds no confirmed charge for this run")
    overall = {r["model"]: r["value"] for r in card["evaluation"].values() if not r["group"]}
    if overall["private"] <= overall["majority"]:
        raise SystemExit(f"the model is no better than always giving the commonest answer: {overall}")


def main() -> None:
    """Train, evaluate, report."""
    console = Console(highlight=False)
    torch.set_num_threads(1)  # the model is small: threads would wait for each other
    journal = Journal.begin(Path("runs"), None, "demo", {})
    folder = journal.folder
    where = folder / "private" / "ledger.db"
    chosen = settings(where)
    records = read(chosen)
    assert records.test is not None
    ledger, progress = Ledger(where), Told()
    ledger.register("labsup", epsilon=EPSILON, delta=DELTA, unit=records.schema.unit.name, fingerprint=records.source)
    console.print(
        f"labsup: US Census public-use sample, {len(records.x):,} rows treated as private, "
        f"{len(records.test[0]):,} declared public for evaluation\n"
        f"ledger: a budget of ε = {EPSILON:g}, δ = {DELTA:g} for one {records.schema.unit.name}"
    )
    training = start(chosen, journal.private, records, progress)
    console.print(
        f"plan:   {training.plan.steps} steps, {training.plan.sampler.words}, noise multiplier "
        f"{training.plan.noise[0]:.4f}, clip norm {chosen.clip_norm:g}"
    )
    drive(training, journal.private, progress)
    release(chosen, journal, records, training)
    journal.publish()
    card = read_card(folder / "privacy.json")
    check(card, ledger)

    guarantee = card["guarantee"]
    console.print(
        f"\n[bold]ε = {guarantee['epsilon']['claimed']:g}[/bold] at δ = {guarantee['delta']:g}, "
        f"{guarantee['neighbours']}. {guarantee['claim']}\n"
    )
    table = Table(title="accuracy on the public rows", title_justify="left")
    results = [r for r in card["evaluation"].values() if r["metric"] == "accuracy"]
    models = list(dict.fromkeys(r["model"] for r in results))
    for heading in ("", *models, "rows"):
        table.add_column(heading, justify="left" if not heading else "right")
    for group in dict.fromkeys(r["group"] for r in results):
        found = {r["model"]: r for r in results if r["group"] == group}
        rows = f"{found['private']['rows']:,}"
        table.add_row(group or "everybody", *(f"{found[m]['value']:.1%}" for m in models), rows)
    console.print(table)
    console.print("The reference has the same form, no noise, and saw public rows only.")
    console.print(f"ledger head {card['ledger']['head']}: verified and repriced")
    console.print(f"\nreport: {folder / 'report.html'}", soft_wrap=True)


if __name__ == "__main__":
    main()
