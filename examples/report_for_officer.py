"""A regression whose report an officer can sign: columns with reasons, coefficients, German text, a registry entry."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from tacit.ledger import Ledger
from tacit.linear_model import LinearRegression
from tacit.report import Statement, describe_fit, make_card, write_card, write_page
from tacit.report.registry import OPEN, RegistryAnswers, write_record
from tacit.schema import Categorical, Numeric, Schema, Unit

schema = Schema(
    (
        Numeric("age", 18, 95, description="only adults are asked; older people are coded as 95"),
        Categorical("region", ["north", "south"], description="the code book lists two regions"),
        Numeric("income", 0, 100_000, target=True, description="the questionnaire's highest class"),
    ),
    Unit("person"),
    "survey",
)
generator = np.random.default_rng(0)
age, region = generator.uniform(18, 90, 10_000), generator.choice(["north", "south"], 10_000)
income = 400 * age + 5_000 * (region == "north") + generator.normal(0, 8_000, 10_000)
table = pl.DataFrame({"age": age, "region": region, "income": income})

ledger = Ledger()
ledger.register("survey", unit="person", epsilon=2.0, delta=1e-5)
fit = LinearRegression(epsilon=1.0, delta=1e-6, bounds=schema, ledger=ledger, dataset="survey").fit(table, None)
run = describe_fit(
    fit,
    "income by age",
    purpose="how income grows with age",
    tuning="none",
    uncovered=(),
    public_sources=(),
    pretrained=(),
    statement=Statement("central: the statistics office", "the coefficients, to everybody", "dpo@example.org"),
)
card = make_card(run)
folder = Path(tempfile.mkdtemp())
write_card(card, folder / "privacy.json")
write_page(card, folder / "report.html")
write_page(card, folder / "report.de.html", "de")
answers = RegistryAnswers(curators=("Statistics Office",), region="Georgia", authors=("A. Lee",))
entry = write_record(card, folder / "entry.yaml", answers)

assert "Was veröffentlicht wurde" in (folder / "report.de.html").read_text()
assert OPEN not in entry.read_text()
for one in card["released"]["coefficients"]:
    print(f"{one['name']}: {one['value']:.0f}")
print(f"report, German report, card and registry entry: {folder}")
