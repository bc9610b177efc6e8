"""What must an officer find on the report? Columns and releases, the guarantee for three readers, how much ε is,
who may see what, and twenty questions of NIST SP 800-226 and of a data-protection impact assessment, by line.

Everything here is computed from the card. Values stand in elements that name their entry; the rest is fixed text.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable
from typing import Any

from tacit import accounting as acc
from tacit.ledger import Release
from tacit.report import words
from tacit.report.deployments import DEPLOYMENTS
from tacit.report.elements import entry, listed, shown, table, value
from tacit.report.words import number, rounded, size

#: What ε means to the best guesser of a coin flip, under pure differential privacy: e^ε / (1 + e^ε).
LADDER = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)


def has(card: Release, path: str) -> bool:
    """Whether a card, which may be older, has an entry and states something there."""
    at: Any = card
    for part in path.split("."):
        if not isinstance(at, Release) or part not in at:
            return False
        at = at[part]
    return at is not None


def mechanism(card: Release) -> str:
    """The mechanism in words; its written form where this version does not know it."""
    try:
        return words.mechanism(acc.from_dict(entry(card, "mechanism.description")))
    except (acc.AccountingError, KeyError, TypeError, ValueError, AttributeError):
        return str(entry(card, "mechanism.words"))


def lawyer(card: Release) -> str:
    """The guarantee in the terms of the law."""
    return (
        '<span class="tag">For a lawyer</span><p>Whether somebody can be identified depends on all the means '
        "reasonably likely to be used (GDPR, recital 26). Whatever means and other data an attacker has, what was "
        f"released adds at most this to what can be found out about any one {value(card, 'guarantee.unit')}, by "
        "singling out, linking or inferring: "
        f"ε = {value(card, 'guarantee.epsilon.claimed')}, δ = {value(card, 'guarantee.delta')}.</p>{_hidden(card)}"
        "<p>It is a technical "
        "measure (Art. 25 and 32) for the assessment of Art. 35(7)(d). Whether the release is anonymous in the sense "
        "of recital 26 is decided by the controller, not by this report.</p>"
    )


def _hidden(card: Release) -> str:
    """What the guarantee does not hide: the number of records, and so presence, where neighbours share it."""
    said = []
    if entry(card, "guarantee.adjacency") != "add-remove":
        said.append("Hidden is what the data of that one say, not that they are among the data.")
    if entry(card, "accesses.records_public"):
        said.append("The number of records is treated as public.")
    return f"<p>{' '.join(f'<span>{one}</span>' for one in said)}</p>" if said else ""


# -- what was used -----------------------------------------------------------------------------------------------------


def columns(card: Release) -> str:
    """Which columns were used, with which bounds, and why those."""
    head = '<h2 id="used">What was used</h2><section class="sheet">'
    if not has(card, "data.columns"):
        return head + "<p>The columns are not listed on this card.</p></section>"
    path, rows = "data.columns", []
    for one in entry(card, path):
        limits = _range(one)
        why = html.escape(one["why"]) if one["why"] else "no reason is stated"
        role = "<b>target</b>" if one["role"] == "target" else "feature"
        missing = "refused" if one["missing"] == "refused" else _as_written(one["missing"])
        rows.append([_as_written(one["name"]), role, limits, missing, why])
    heads = ("column", "role", "public bounds or categories", "missing values", "why these")
    body = table([(head, "w" if head == "role" else "") for head in heads], rows)
    told = (
        f"<p>Protected unit: {value(card, 'guarantee.unit')}. Bounds and categories come from the schema, or were "
        "given as parameters; tacit did not compute them from these rows. Values beyond a bound are moved to it, and a "
        "label that is not listed counts as “other” where that is a category, so that no single value counts for "
        "more.</p>"
    )
    return f'{head}{told}{_rows_of_one(card)}<div data-from="{path}">{body}</div></section>'


def _rows_of_one(card: Release) -> str:
    """How many rows of one unit take part, where it can have several."""
    parameters = entry(card, "mechanism.parameters")
    most = parameters.get("kept") or parameters.get("records_per_unit") or parameters.get("max_rows") or 1
    if most == 1:
        return ""
    text = f"At most {most} rows of one {entry(card, 'guarantee.unit')} take part."
    return f'<p data-from="mechanism.parameters">{html.escape(text)}</p>'


def _range(one: dict[str, Any]) -> str:
    if one["bounds"] is not None:
        low, high = one["bounds"]
        return _as_written(f"{number(low)} … {number(high)}")
    if one["labels"]:
        most, labels = 12, one["labels"]
        more = f" … (+{len(labels) - most})" if len(labels) > most else ""
        return _as_written(", ".join(labels[:most]) + more)
    return "any text"


def _as_written(text: str) -> str:
    """A name or a value that no language changes."""
    return f'<span translate="no">{html.escape(text)}</span>'


def released(card: Release) -> str:
    """What left the house: coefficients with intervals, and the model's file."""
    head = '<h2 id="released">What was released</h2><section class="sheet">'
    parts = [f"<p>What, and to whom: {value(card, 'statement.release')}.</p>"]
    if has(card, "run.model"):
        parts.append(f"<p>The model, by the hash of its file:</p><pre>{value(card, 'run.model')}</pre>")
    if has(card, "released"):
        parts.append(_coefficients(card))
    if len(card["evaluation"]):
        parts.append('<p><a href="#accuracy">How accurate it is</a></p>')
    if len(parts) == 1:
        parts.append("<p>The outputs of the mechanism below; this card lists no coefficients and names no file.</p>")
    return head + "".join(parts) + "</section>"


def _coefficients(card: Release) -> str:
    told, rows = entry(card, "released"), []
    level = told["level"]
    for one in told["coefficients"]:
        if level is None:
            interval = "–"
        elif one["lower"] is None:
            interval = "hidden by the noise"
        else:
            interval = f"{size(one['lower'])} … {size(one['upper'])}"
        much = one["value"] if isinstance(one["value"], str) else size(one["value"])
        name = one["name"] if one["name"] == "intercept" else _as_written(one["name"])
        rows.append([name, much, interval])
    named = "interval" if level is None else f"{level:.0%} interval"
    body = table([("coefficient", ""), ("value", "n"), (named, "n")], rows)
    said = [told["note"], *([told["noise"]] if "noise" in told else [])]
    note = "".join(f'<p class="muted" style="margin:10px 0 0">{html.escape(one)}</p>' for one in said)
    return f'<div data-from="released">{body}{note}</div>'


# -- is it much --------------------------------------------------------------------------------------------------------


def guesses(card: Release) -> float | None:
    """The largest share of right guesses which of two neighbours it was, (1 + δ(0))/2 rounded up; or None."""
    profile = entry(card, "guarantee.profile")
    if profile is None or not profile["epsilon"] or profile["epsilon"][0] != 0:
        return None
    return math.ceil((0.5 + float(profile["upper"][0]) / 2) * 1000) / 1000


def much(card: Release) -> str:
    """Is this ε much? In guesses, beside a ladder of round ε."""
    head = '<h2 id="much">Is this ε much?</h2><section class="sheet">'
    claimed, right = entry(card, "guarantee.epsilon.claimed"), guesses(card)
    rows = [[f"ε = {step:g}", f"{1 / (1 + math.exp(-step)):.2%}"] for step in LADDER]
    if right is None:
        own = "<p>This run claims no finite ε: it is no protection.</p>"
    else:
        share = f"{min(right, 1.0):.1%}"
        own = (
            f"<p>{words.secret(entry(card, 'guarantee.adjacency')).bet}, each with probability one half. The best "
            "attacker that there can be guesses which, after seeing everything released, and is right at most this "
            "often: <b>"
            f'<span data-from="guarantee.profile">{share}</span></b>. A coin is right in 50% of cases.</p>'
        )
        rows.append([f'<b>this run, <span data-from="guarantee.epsilon.claimed">ε = {shown(claimed)}</span></b>',
                     f'<b data-from="guarantee.profile">{share}</b>'])  # fmt: skip
    text = (
        own + table([("ε", ""), ("right guesses, at most", "n")], rows) + '<p class="muted" style="margin:14px 0 0">'
        "For the round values: e^ε/(1 + e^ε), the most under pure differential privacy (δ = 0). A run is often well "
        "below that of its ε, because its ε is reached only in rare cases.</p>"
    )
    return head + text + _others(card, claimed) + "</section>"


def _others(card: Release, claimed: Any) -> str:
    """This run among releases of others, in the order of ε."""
    rows = [
        (
            one.epsilon,
            [
                f'<span translate="no">{html.escape(one.who)}</span>, <span>{one.what}</span>, {one.year}',
                one.unit,
                number(one.epsilon),
                number(one.delta),
            ],
        )
        for one in DEPLOYMENTS
    ]
    own = [
        "<b>this run</b>",
        value(card, "guarantee.unit", tag="b"),
        value(card, "guarantee.epsilon.claimed", tag="b"),
        value(card, "guarantee.delta", tag="b"),
    ]
    rows.append((math.inf if isinstance(claimed, str) else claimed, own))
    body = table(
        [("release", ""), ("protected unit", ""), ("ε", "n"), ("δ", "n")],
        [row for _, row in sorted(rows, key=lambda one: one[0])],
    )
    return (
        "<h3>Next to what others published</h3><p>As stated in the public registry of deployments (OpenDP, "
        "opendp/deployments-registry-data, July 2026).</p>" + body + '<p class="muted" style="margin:14px 0 0">'
        "Two ε compare only where unit and neighbours are the same: one of a day adds up over the days, and one of a "
        "record over the records of a person. That others chose an ε does not make it right for these data.</p>"
    )


# -- who may see what --------------------------------------------------------------------------------------------------

KEPT = (
    (
        "privacy.json, report.html, the model or the labels",
        "whoever the release is meant for",
        "as long as you like: ε does not grow with time or readers",
    ),
    ("the settings and the schema (.toml)", "may be published: public bounds, no row", "with the release"),
    (
        "the folder private/: what is needed to continue, logs, the operator's page",
        "the operator alone (readable by their account only)",
        "until the operator deletes it; outside the guarantee",
    ),
    (
        "the private rows",
        "whoever held them before; tacit keeps no copy",
        "decided by the controller, outside this report",
    ),
)
#: What there is of some runs only.
KEY = ("the key of the noise", "nobody: whoever has it can take the noise away", "destroyed when the run ends")
BOOK = ("the ledger", "owner, analyst and auditor, each by role", "kept: what was spent stays spent")


def retention(card: Release) -> str:
    """Who may see what, and for how long it is kept."""
    keyed = "ChaCha12" in str(entry(card, "mechanism.noise_generator"))
    rows = [*KEPT, *([KEY] if keyed else []), *([BOOK] if entry(card, "ledger") is not None else [])]
    body = table([("what", ""), ("who may see it", ""), ("how long", "")], rows)
    return f'<h2 id="retention">Who may see what, and how long</h2><section class="sheet">{body}</section>'


# -- twenty questions --------------------------------------------------------------------------------------------------


def _names(found: Any) -> str:
    """Sources by name, each with whether the protected people may be in it."""
    if found is None:
        return "not stated"
    return "; ".join(f"{one['name']} (may contain the same people: {one['may_overlap']})" for one in found) or "none"


#: What stands as purpose where nobody stated one: it names a method, as the defaults of runs and commands do.
_METHOD = re.compile(
    r"private (training(, [\d,]+ steps)?|regression|tuning|prompt by teachers' votes)|labels by teachers' noisy votes"
    r"|labels by the votes on .*"
)


def _purpose(found: Any) -> str:
    said = shown(found).strip() or "not stated"
    return f"{said} (a method; what for is not stated)" if _METHOD.fullmatch(said) else said


def _verdict(found: Any) -> str:
    return str(found["verdict"])


def _bits(found: Any) -> str:
    """What the last bits of the noise can show, by how it was drawn; in doubt no more than is proven."""
    said = str(found)
    if "binary32" in said or "training: ChaCha12" in said:
        return (
            "its bits: added in floating point, to sums of clipped gradients; the price is that of real numbers, and "
            "that the last bits show no more is not proven"
        )
    if said.startswith("exact") or said.endswith("exact sampling"):
        return "its bits: drawn exactly on a grid, so that they show nothing that the price does not count"
    return "what its bits can show is not stated"


def allowed(found: Any) -> str:
    """A budget, as it was set: what is allowed is not rounded up."""
    return f"ε = {shown(found['epsilon'])}, δ = {number(found['delta'])}"


def pair(found: Any) -> str:
    """What was spent, rounded up."""
    return f"ε = {shown(rounded(found['epsilon']))}, δ = {number(rounded(found['delta']))}"


def _listed(found: Any) -> str:
    return f"columns: {'; '.join(one['name'] for one in found) or 'none'}"


def _reasons(found: Any) -> str:
    silent = [one["name"] for one in found if not one["why"]]
    chosen = "bounds and categories: given by a person, not computed by tacit from these rows"
    if silent:
        return (
            f"{chosen}; no reason is stated for {', '.join(silent)}, so whether the data were looked at is not stated"
        )
    return f"{chosen}, each with its reason"


#: A question, who asks it, the entries that answer it, how each is shown, and the part of the page with the rest.
QUESTIONS: tuple[tuple[str, str, tuple[tuple[str, Callable[[Any], str] | None], ...], str], ...] = (
    (
        "Who is protected, and between which data sets?",
        "NIST: unit of privacy",
        (("guarantee.unit", shown), ("guarantee.neighbours", shown)),
        "used",
    ),
    (
        "How strong is the protection?",
        "NIST: ε and δ",
        (("guarantee.epsilon.claimed", lambda e: f"ε = {shown(e)}"), ("guarantee.delta", lambda d: f"δ = {number(d)}")),
        "guarantee",
    ),
    (
        "What can the best attacker find out?",
        "NIST: strength; GDPR Art. 35(7)(c)",
        (("guarantee.attacker", shown),),
        "much",
    ),
    ("How was the number computed?", "NIST: accounting", (("accountant.method", shown),), "covers"),
    ("Which algorithm ran?", "NIST: algorithm", (("run.method", shown),), "glance"),
    ("How were records drawn?", "NIST: algorithm", (("mechanism.sampler", shown),), "glance"),
    (
        "How is noise drawn, and can its bits leak?",
        "NIST: implementation",
        (("mechanism.noise_generator", shown), ("mechanism.noise_generator", _bits)),
        "glance",
    ),
    (
        "Which data were used, and who chose the bounds?",
        "GDPR Art. 35(7)(a)",
        (("data.name", shown), ("data.columns", _listed), ("data.columns", _reasons)),
        "used",
    ),
    ("What for?", "GDPR Art. 35(7)(a): purpose", (("run.purpose", _purpose),), "guarantee"),
    (
        "What was released, and to whom?",
        "GDPR Art. 35(7)(a); NIST: release",
        (("statement.release", shown),),
        "released",
    ),
    (
        "Which uses of the data does the number cover?",
        "NIST: what is covered",
        (("accesses.covered", None),),
        "covers",
    ),
    ("What was released without cover?", "NIST: invariants", (("accesses.uncovered", None),), "covers"),
    ("Were settings tuned on private data?", "NIST: tuning", (("accesses.tuning_words", shown),), "covers"),
    (
        "Is the number of records treated as public?",
        "NIST: unit of privacy",
        (("accesses.records_public", shown),),
        "covers",
    ),
    (
        "Can public data or a pre-trained model contain the same people?",
        "NIST: data collection",
        (
            ("accesses.public_data", lambda found: f"public data: {_names(found)}"),
            ("accesses.pretrained", lambda found: f"pre-trained models: {_names(found)}"),
        ),
        "covers",
    ),
    (
        "What else was spent on these data?",
        "NIST: composition; GDPR Art. 5(1)(e)",
        (
            ("ledger.spent", lambda found: f"spent so far: {pair(found)}"),
            ("ledger.budget", lambda found: f"budget: {allowed(found)}"),
        ),
        "covers",
    ),
    (
        "Who is trusted with the raw data?",
        "NIST: trust model; GDPR Art. 32",
        (("statement.trust_model", shown),),
        "retention",
    ),
    (
        "Is it accurate enough for its purpose, and for whom?",
        "NIST: utility and bias; GDPR Art. 35(7)(b)",
        (),
        "accuracy",
    ),
    ("Which risks remain?", "GDPR Art. 35(7)(c)", (("accesses.limits", None),), "covers"),
    (
        "Was it checked, and whom can I ask?",
        "NIST: evaluation; GDPR Art. 35(2)",
        (("checks.audit", _verdict), ("statement.contact", shown)),
        "covers",
    ),
)


#: An answer that is none, as an element ends with it.
_OPEN = re.compile(
    r"([Nn]ot stated[.)]?|nothing is stated\)|same people: unknown\)(; [^<]*)?|nothing was measured on public rows or "
    r"charged)<"
)


def questions(card: Release) -> str:
    """Twenty questions, each with its answer and the place of the rest."""
    rows = []
    for i, (question, who, paths, place) in enumerate(QUESTIONS, 1):
        answers = [_answer(card, path, show) for path, show in paths] or [_accuracy(card)]
        if place == "covers" and "ledger.spent" in dict(paths) and entry(card, "ledger") is None:
            answers = ["<div>this run was not charged to a ledger: nobody kept count</div>"]
        if any(_OPEN.search(answer) for answer in answers):
            answers.append('<div class="mark-warn">to be answered before anybody signs</div>')
        link = f' <a href="#{place}">more</a>'
        rows.append([f"{i}", f'{question}<br><span class="muted">{who}</span>', "".join(answers) + link])
    body = table([("no.", "n"), ("question", ""), ("answer", "")], rows, "questions")
    return (
        '<h2 id="questions">Twenty questions of an officer</h2><section class="sheet"><p>From NIST SP 800-226 and from '
        f"the parts of an impact assessment (GDPR, Art. 35).</p>{body}<h3>Signed</h3>"
        '<dl class="facts sign"><div><dt>Name and office</dt><dd>&nbsp;</dd></div><div><dt>Date</dt><dd>&nbsp;</dd>'
        "</div><div><dt>Signature</dt><dd>&nbsp;</dd></div></dl></section>"
    )


def _answer(card: Release, path: str, show: Callable[[Any], str] | None) -> str:
    if show is None:
        return listed(card, path, "nothing")
    return value(card, path, show, "div") if has(card, path) else "<div>not stated</div>"


def _accuracy(card: Release) -> str:
    results = card["evaluation"]
    whole = [key for key in results if not results[key]["group"] and results[key]["model"] == "private"]
    if not whole:
        return "<div>nothing was measured on public rows or charged</div>"
    told = "".join(f"<div>{value(card, f'evaluation.{key}.metric')}: {measured(card, key)}</div>" for key in whole[:6])
    of_groups = [key for key in results if results[key]["group"] and results[key]["model"] == "private"]
    if not of_groups:
        return told + "<div>by subgroup: not measured</div>"
    for_whom = "".join(
        f"<div>{value(card, f'evaluation.{key}.group')}, {value(card, f'evaluation.{key}.metric')}: "
        f"{measured(card, key)}</div>"
        for key in of_groups[:12]
    )
    return f"{told}<div>by subgroup:</div>{for_whom}"


def measured(card: Release, key: str, tag: str = "span") -> str:
    """One measured value of a card: a share in percent, anything else to four digits."""
    ranked = card["evaluation"][key]["metric"] == "AUC"

    def show(found: Any) -> str:
        if not isinstance(found, float):
            return shown(found)
        return f"{found:.1%}" if 0 <= found <= 1 and not ranked else size(found)

    return value(card, f"evaluation.{key}.value", show, tag)
