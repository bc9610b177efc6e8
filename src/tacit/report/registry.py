"""How does a run enter the public registry of deployments? As one YAML record, filled in from its card.

The fields are those of ``deployments-schema.yaml`` of OpenDP's registry. What a card cannot know (curators, region,
authors) is asked for; what nobody answered is marked with :data:`OPEN`, so that it is found and never guessed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from tacit.ledger import Release
from tacit.report import officer, words
from tacit.report.elements import entry
from tacit.report.files import write_whole
from tacit.report.run import NOT_STATED

#: What stands where an answer is missing.
OPEN = "TO BE STATED"


@dataclasses.dataclass(frozen=True)
class RegistryAnswers:
    """What the registry asks and a card cannot know.

    Args:
        curators: Who publishes the data product.
        region: Which region the data describe, or whose laws apply.
        authors: Who fills in the record.
        use: What the data product is for; empty takes the purpose that the card states.

    Example:
        >>> RegistryAnswers(curators=("Statistics Office",)).open()
        ['region', 'authors']
    """

    curators: tuple[str, ...] = ()
    region: str = ""
    authors: tuple[str, ...] = ()
    use: str = ""

    def open(self) -> list[str]:
        """The names of what is not answered.

        Returns:
            The names, in the order in which they are asked.
        """
        return [name for name in ("curators", "region", "authors") if not getattr(self, name)]


def make_record(card: Release, answers: RegistryAnswers | None = None) -> dict[str, Any]:
    """The registry's record of a run, as plain values.

    Guarantee:
        It is made from the card alone, which holds only charged and public values, and from the answers.

    Args:
        card: The privacy card.
        answers: What a card cannot know. None leaves all of it marked as open.

    Returns:
        The record, which follows the registry's schema. Its status is ``"Draft"``.

    Example:
        >>> from tacit import accounting as acc
        >>> from tacit.report import Run, make_card
        >>> made = make_record(make_card(Run("count", acc.Laplace(10.0), delta=0.0)), RegistryAnswers(region="Utopia"))
        >>> made["deployment"]["dp_variant"]["variant_name"], made["deployment"]["basic"]["data_product_region"]
        ('Pure DP', 'Utopia')
    """
    known = answers if answers is not None else RegistryAnswers()
    name = str(entry(card, "run.name"))
    stated = {key: _said(entry(card, f"statement.{key}")) for key in ("trust_model", "release", "contact")}
    fits = officer.has(card, "released") or officer.has(card, "run.model")
    purpose = _said(entry(card, "run.purpose"))
    notes = [f"Made by {entry(card, 'card.library')} from a privacy card."]
    notes += [f"Contact: {stated['contact']}."] if stated["contact"] else []
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run",
        "status": "Draft",
        "tier": 2,
        "deployment": {
            "basic": {
                "name": name,
                "data_curators": list(known.curators) or [OPEN],
                "description": f"{entry(card, 'run.method')} on {entry(card, 'data.name')}",
                "intended_use": known.use or purpose or OPEN,
                "data_product_type": "Machine learning model" if fits else "Summary statistics",
                "data_product_region": known.region or OPEN,
                "publication_date": str(entry(card, "card.created"))[:10],
            },
            "dp_variant": {
                "variant_name": "Pure DP" if entry(card, "guarantee.delta") == 0 else "Approximate DP",
                "data_domain": _domain(card),
                "unprotected_quantities": _unprotected(card),
            },
            "privacy_loss": _loss(card),
            "deployment_model": {
                "model_name": "Central",
                "actors": stated["trust_model"] or OPEN,
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
                "access_type_details": stated["release"] or OPEN,
            },
            "accounting": {
                "composition": f"{entry(card, 'accountant.method')}; covers {_list(entry(card, 'accesses.covered'))}",
                "post_processing": "what is computed from the release alone costs nothing more",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _tuning(card),
                "mechanisms": f"{officer.mechanism(card)}. Sampling: {entry(card, 'mechanism.sampler')}. Noise: "
                f"{entry(card, 'mechanism.noise_generator')}. Library: {entry(card, 'card.library')}",
                "justification": " ".join(entry(card, "accountant.assumptions")),
            },
            "administrative": {"notes": " ".join(notes), "registry_authors": list(known.authors) or [OPEN]},
        },
    }


def _said(text: Any) -> str:
    return "" if text in (None, "", NOT_STATED) else str(text)


def _list(found: Any) -> str:
    return "; ".join(map(str, found)) if found else NOT_STATED


def _domain(card: Release) -> str:
    if not officer.has(card, "data.columns"):
        return f"tables of {entry(card, 'guarantee.unit')}s; the columns are not listed on the card"
    names = ", ".join(column["name"] for column in entry(card, "data.columns"))
    return f"tables of {entry(card, 'guarantee.unit')}s with the columns {names}, each within public bounds"


def _unprotected(card: Release) -> str:
    listed = entry(card, "accesses.uncovered")
    said = "not stated" if listed is None else ("; ".join(listed) or "none, as stated by the curator")
    counted = entry(card, "accesses.records_public")
    what = words.number_of(entry(card, "guarantee.unit"), entry(card, "mechanism.parameters").get("draw", "units"))
    return f"{said}; the number of {what} is public" if counted else said


def _loss(card: Release) -> dict[str, Any]:
    epsilon, delta = entry(card, "guarantee.epsilon.claimed"), entry(card, "guarantee.delta")
    finite = not isinstance(epsilon, str) and math.isfinite(epsilon)
    return {
        "privacy_unit": entry(card, "guarantee.unit"),
        "privacy_unit_details": f"neighbours: {entry(card, 'guarantee.neighbours')}",
        "privacy_parameters": ({"epsilon": float(epsilon)} if finite else {}) | {"delta": float(delta)},
        "privacy_parameters_details": entry(card, "guarantee.formula"),
    }


def _tuning(card: Release) -> str:
    path = "accesses.tuning_words" if officer.has(card, "accesses.tuning_words") else "accesses.tuning"
    return f"{entry(card, path)}. {entry(card, 'accesses.tuning_note')}".strip()


# -- YAML ------------------------------------------------------------------------------------------------------------


def to_yaml(value: Any) -> str:
    """Plain values as YAML. Texts are quoted, so none of them can be taken for anything else.

    Args:
        value: Mappings, lists, texts and numbers.

    Returns:
        The text.

    Example:
        >>> print(to_yaml({"tier": 2, "basic": {"names": ["a: b"]}, "delta": 1e-06}), end="")
        "tier": 2
        "basic":
          "names":
          - "a: b"
        "delta": 1.0e-06
    """
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: Any, depth: int) -> list[str]:
    space, out = "  " * depth, []
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            out += [f"{space}{_scalar(key)}:", *_lines(inner, depth + 1)]
        elif isinstance(inner, list) and inner:
            out += [f"{space}{_scalar(key)}:", *(f"{space}- {_scalar(one)}" for one in inner)]
        else:
            out.append(f"{space}{_scalar(key)}: {_scalar(inner)}")
    return out


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        mantissa, mark, exponent = repr(value).partition("e")
        return mantissa + ("" if "." in mantissa or not mark else ".0") + mark + exponent
    text = json.dumps(value, ensure_ascii=False)
    # what JSON may hold as it is and YAML may not
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]", lambda m: f"\\u{ord(m[0]):04x}", text)


def write_record(card: Release, path: str | os.PathLike[str], answers: RegistryAnswers | None = None) -> Path:
    """Write the registry's record of a run, completely or not at all.

    Args:
        card: The privacy card.
        path: The YAML file. An existing file is replaced.
        answers: What a card cannot know. None leaves all of it marked as open.

    Returns:
        The path of the file.

    Example:
        >>> import pathlib, tempfile
        >>> from tacit import accounting as acc
        >>> from tacit.report import Run, make_card
        >>> path = pathlib.Path(tempfile.mkdtemp(), "count.yaml")
        >>> OPEN in write_record(make_card(Run("count", acc.Laplace(10.0), delta=0.0)), path).read_text()
        True
    """
    return write_whole(path, to_yaml(make_record(card, answers)))
