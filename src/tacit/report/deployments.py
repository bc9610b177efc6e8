"""What ε did others choose? Some entries of the public registry of deployments, for a reader to compare with.

Each is as its publisher states it there (github.com/opendp/deployments-registry-data at 3e9c812, July 2026). Listed are
releases from data held in one place, whose unit and ε the registry states: those with the smallest and the largest ε,
and some between.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Deployment:
    """One entry of the registry."""

    who: str
    what: str
    year: int
    unit: str
    epsilon: float
    delta: float


#: In the order of ε.
DEPLOYMENTS = (
    Deployment("Microsoft", "broadband coverage", 2021, "user", 0.2, 0.0),
    Deployment("Wikimedia", "page views", 2023, "some page views of one day", 1.0, 0.0),
    Deployment("Google", "COVID-19 search trends", 2020, "one day of a user", 1.68, 0.0),
    Deployment("Google", "community mobility", 2020, "one day of a user", 2.64, 0.0),
    Deployment("Microsoft", "assistive AI (a model)", 2020, "user", 4.0, 1e-7),
    Deployment("Recurve", "energy use", 2020, "customer", 4.72, 5.06e-9),
    Deployment("Ministry of Health, Israel", "live births (synthetic)", 2024, "birth", 9.98, 0.0),
    Deployment("Spectus", "mobility in a hurricane", 2022, "user", 10.0, 0.0),
    Deployment("US Census Bureau", "redistricting, tables of persons", 2021, "person", 17.14, 1e-10),
    Deployment("LinkedIn", "audience engagement", 2020, "one month of a user", 34.9, 7e-9),
)
