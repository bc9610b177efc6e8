"""How is a guarantee put into words that a lawyer can quote and an engineer can check?

Every number in a sentence is rounded in the direction that keeps the sentence true.
"""

from __future__ import annotations

import dataclasses
import decimal
import fractions
import math
import re

import numpy as np

from tacit import accounting as acc


def rounded(value: float, decimals: int = 4, *, up: bool = True) -> float:
    """The nearest number with so many decimals (significant digits, below 0.01) that is not below ``value``.

    With ``up=False``: that is not above it.

    >>> rounded(0.99998765), rounded(1.0), rounded(0.000123456), rounded(0.99998765, up=False)
    (1.0, 1.0, 0.0001235, 0.9999)
    """
    if isinstance(value, str) or math.isinf(value) or value == 0:
        return value
    exact = decimal.Decimal(value)
    places = decimals if value >= 0.01 else decimals - 1 - exact.adjusted()
    way = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    return float(exact.quantize(decimal.Decimal(1).scaleb(-places), rounding=way))


def number(value: float | str) -> str:
    """A number as it is shown: ten significant digits, or ``∞``.

    >>> number(0.25), number(1e-06), number("inf"), number(31857)
    ('0.25', '1e-6', '∞', '31857')
    """
    if value == "inf" or (isinstance(value, float) and math.isinf(value)):
        return "∞"
    if isinstance(value, int | np.integer):
        return str(value)
    shown = f"{float(value):.10g}"
    mantissa, _, exponent = shown.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else shown


#: What a card assumes about the model, followed by how that was looked at.
UNREACHED = "In the model, no example reaches another: "
#: What may be stated about the choice of hyper-parameters, as the card says it.
_TUNING = {
    "none": "tuning: none",
    "charged": "tuning: charged",
    "on public data only": "tuning: on public data",
    "not charged": "tuning: NOT covered",
    "not stated": "tuning: NOT covered (nothing is stated)",
}


def size(value: float) -> str:
    """A measured value or a coefficient as people read it: four digits, or all digits before the point.

    >>> size(-26647.8), size(0.00123456), size(5964.5), size(0.0), size(2.5e-9)
    ('-26,648', '0.001235', '5,964', '0', '2.5e-9')
    """
    value = float(value)
    if abs(value) >= 1000 and abs(value) < 1e15:
        return f"{value:,.0f}"
    return number(float(f"{value:.4g}"))


def tuning(stated: str) -> str:
    """Whether the number covers the choice of hyper-parameters.

    >>> tuning("charged"), tuning("on public data only"), tuning("not charged")
    ('tuning: charged', 'tuning: on public data', 'tuning: NOT covered')
    """
    return _TUNING[stated]


def _chance(delta: float) -> str:
    """δ in words.

    >>> _chance(1e-6), _chance(1e-12), _chance(3e-5)
    ('one in 1,000,000', 'one in 1,000,000,000,000', 'one in 33,333')
    """
    # Of the decimal number that was written, and rounded down: the chance that is said is not below δ.
    odds = math.floor(1 / fractions.Fraction(repr(float(delta))))
    return f"one in {odds:,}"


def number_of(unit: str, drawn: str) -> str:
    """What was counted: units, or the rows that are kept of them where rows are drawn.

    >>> number_of("patient", "units"), number_of("patient", "rows")
    ('patients', 'rows that take part')
    """
    return "rows that take part" if drawn == "rows" else f"{unit}s"


def neighbours(bound: acc.Bound, *, counted: bool, drawn: str = "units") -> str:
    """Which data sets are neighbours. With ``counted`` the number that is drawn from is public: neighbours share it.

    >>> neighbours(acc.epsilon(acc.PureDP(1.0), 1e-6, adjacency="zero-out"), counted=True)
    'zero out one record; the number of records is treated as public'
    """
    return (
        f"{bound.terms}; the number of {number_of(bound.unit, drawn)} is treated as public" if counted else bound.terms
    )


def claim(bound: acc.Bound, *, counted: bool = False, drawn: str = "units") -> str:
    """The guarantee for everybody: no symbols, every quantifier in place.

    With ``counted`` it says that the number of units, or of ``drawn`` rows, is public.
    Add/remove neighbours would differ in that number.

    >>> claim(acc.epsilon(acc.PureDP(1.0), 1e-6))
    'Whether or not the data of any one record were used, the probability of any conclusion that anyone can draw from
    what was released changes by at most a factor of 2.7183, plus a chance of at most one in 1,000,000.'
    """
    if math.isinf(bound.upper):
        return f"No protection is claimed: what was released may reveal the data of any one {bound.unit} for certain."
    who = f"any one {bound.unit}" if bound.group == 1 else f"any {bound.group} {bound.unit}s together"
    terms = {
        "add-remove": f"Whether or not the data of {who} were used",
        "replace-one": f"Whatever the data of {who} were",
        "zero-out": f"Whether or not the contribution of {who} was counted",
    }[bound.adjacency]
    upper = rounded(bound.upper)
    grown = rounded(math.exp(min(upper, 20.0)))
    # never less than the truth: what has four digits or more is rounded up to a whole number
    times = f"{math.ceil(grown):,}" if grown >= 1000 else f"{grown:.10g}"
    power = f"{math.ceil(upper):,}" if upper >= 1000 else f"{upper:.10g}"
    factor = times if upper < 20 else f"e to the power of {power}"
    plus = f", plus a chance of at most {_chance(bound.given)}" if bound.given > 0 else ""
    return (
        f"{terms}, the probability of any conclusion that anyone can draw from what was released changes by at most "
        f"a factor of {factor}{plus}."
        + (f" The number of {number_of(bound.unit, drawn)} is treated as public." if counted else "")
    )


def formula(bound: acc.Bound, *, counted: bool = False, drawn: str = "units") -> str:
    """The guarantee to check: the inequality, its neighbours and the certified interval.

    >>> formula(acc.epsilon(acc.PureDP(1.0), 1e-6))
    'For all neighbouring data sets D, D′ (add/remove one record) and every set S of outputs,
    P[M(D) ∈ S] ≤ exp(ε)·P[M(D′) ∈ S] + δ with δ = 1e-6 and ε = 1; ...'
    """
    if math.isinf(bound.upper):
        return f"ε is infinite at δ = {number(bound.given)} ({bound.terms}): no inequality is claimed."
    near = neighbours(bound, counted=counted, drawn=drawn)
    least = "the least ε of this mechanism" if bound.tight else "the least ε that is known to be needed"
    return (
        f"For all neighbouring data sets D, D′ ({near}) and every set S of outputs, "
        f"P[M(D) ∈ S] ≤ exp(ε)·P[M(D′) ∈ S] + δ with δ = {number(bound.given)} "
        f"and ε = {number(rounded(bound.upper))}; "
        f"{least} is certified to lie in {_interval(bound)}."
    )


def _interval(bound: acc.Bound) -> str:
    text = repr(bound)
    if bound.tight:
        return text[text.index("[") : text.index("]") + 1]
    return f"[{number(bound.lower)}, {number(rounded(bound.upper, 6))}]"


@dataclasses.dataclass(frozen=True)
class Secret:
    """What a guarantee hides from an attacker who knows every other record, as the sentences about attacks say it.

    Add/remove hides presence. Between the other neighbours the number of records is the same, so presence is certain
    for such an attacker; what is hidden is what the record says.
    """

    bet: str
    tested: str
    attack: str
    guessed: str
    accused: tuple[str, str]
    believed: str
    axes: tuple[str, str]


_SECRETS = {
    "add-remove": Secret(
        bet="Somebody was in the data or not",
        tested="was in the data",
        attack="An attacker who tests whether one {unit} was in the data, and wrongly accuses {share} of those who "
        "were not, finds at most {most} of those who were. Blind guessing finds {guess}.",
        guessed="Whether one {unit} was in the data, the best attacker guesses right in at most",
        accused=(
            "If they accept to accuse 1% of those who were not in the data, they find at most",
            "of those who were.",
        ),
        believed="Somebody who is sure to 10% that the {unit} was in the data is sure to at most",
        axes=("accused, but not in the data (false alarms)", "in the data, but missed"),
    ),
    "zero-out": Secret(
        bet="A contribution was counted or left blank",
        tested="was counted or left blank",
        attack="An attacker who tests whether the contribution of one {unit} was counted or left blank, and wrongly "
        "names {share} of those that were left blank, finds at most {most} of those that were counted. Blind guessing "
        "finds {guess}.",
        guessed="Whether the contribution of one {unit} was counted or left blank, the best attacker guesses right in "
        "at most",
        accused=(
            "If they accept to name 1% of the contributions that were left blank, they find at most",
            "of those that were counted.",
        ),
        believed="Somebody who is sure to 10% that the contribution of the {unit} was counted, and not left blank, is "
        "sure to at most",
        axes=("named, but left blank (false alarms)", "counted, but missed"),
    ),
    "replace-one": Secret(
        bet="The data of one said one of two things",
        tested="had the one of two contents or the other",
        attack="An attacker who tests which of two contents the data of one {unit} had, and wrongly names {share} of "
        "those that had the second, finds at most {most} of those that had the first. Blind guessing finds {guess}.",
        guessed="Which of two contents the data of one {unit} had, the best attacker guesses right in at most",
        accused=(
            "If they accept to name 1% of those whose data had the second content, they find at most",
            "of those whose data had the first.",
        ),
        believed="Somebody who is sure to 10% that the data of the {unit} had the first of two contents is sure to at "
        "most",
        axes=("named, but of the second content (false alarms)", "of the first content, but missed"),
    ),
}


def secret(adjacency: str) -> Secret:
    """What an attacker may try to find out under an adjacency, in words.

    >>> secret("add-remove").tested, secret("zero-out").tested
    ('was in the data', 'was counted or left blank')
    """
    return _SECRETS[adjacency]


def attacker(curve: acc.Tradeoff | None, alpha: float = 0.01) -> str:
    """What the trade-off curve says about the best test between neighbours at one false-alarm rate.

    >>> attacker(acc.tradeoff(acc.Gaussian(5.0)))
    'An attacker who tests whether one record was in the data, and wrongly accuses 1% of those who were not, finds at
    most 1.7% of those who were. Blind guessing finds 1%.'
    """
    if curve is None:
        return "No limit is claimed on what an attacker can find out."
    place = int(np.argmin(np.abs(curve.alpha - alpha)))
    at = float(curve.alpha[place])
    found = math.ceil((1 - float(curve.lower[place])) * 1000) / 10
    said = secret(curve.adjacency).attack
    return said.format(unit=curve.unit, share=f"{at:.0%}", most=f"{found:g}%", guess=f"{at:.0%}")


#: Mechanisms that one number describes, and the name of that number.
_PLAIN: dict[type[acc.Mechanism], tuple[str, str]] = {
    acc.Gaussian: ("Gaussian noise of {} times the sensitivity", "noise_multiplier"),
    acc.Laplace: ("Laplace noise of {} times the sensitivity", "scale"),
    acc.DiscreteGaussian: ("discrete Gaussian noise of standard deviation {}", "sigma"),
    acc.DiscreteLaplace: ("discrete Laplace noise of scale {}", "scale"),
    acc.Votes: ("the largest of the teachers' votes with Gaussian noise of {} on every count", "noise"),
    acc.LaplaceVotes: ("the largest of the teachers' votes with Laplace noise of {} on every count", "scale"),
    acc.VoteCheck: ("a comparison of the teachers' largest count, with Gaussian noise of {}", "noise"),
    acc.PureDP: ("any mechanism with ε = {}", "epsilon"),
}


def mechanism(described: acc.Mechanism) -> str:
    """A mechanism as people say it.

    >>> mechanism(acc.PoissonSampled(acc.Gaussian(1.1), 0.01) * 500)
    '500 times: Gaussian noise of 1.1 times the sensitivity on a sample in which each record is with probability 0.01'
    """
    parts = [_times(part, times) for part, times in described.parts()]
    return "; then ".join(parts) if parts else "nothing"


def _times(part: acc.Mechanism, times: int) -> str:
    return _one(part) if times == 1 else f"{times:,} times: {_one(part)}"


def _one(part: acc.Mechanism) -> str:
    unit, sampled = part.unit, getattr(part, "mechanism", None)
    inner = mechanism(sampled) if isinstance(sampled, acc.Mechanism) else ""
    if type(part) in _PLAIN:
        said, name = _PLAIN[type(part)]
        return said.format(_short(getattr(part, name)))
    match part:
        case acc.PoissonSampled():
            return f"{inner} on a sample in which each {unit} is with probability {_short(part.rate)}"
        case acc.TruncatedPoissonSampled():
            return (
                f"{inner} on a sample in which each {unit} is with probability {_short(part.rate)}, cut at "
                f"{part.max_batch:,}"
            )
        case acc.FixedSizeSampled():
            return f"{inner} on {part.batch:,} of {part.examples:,} {unit}s, drawn without replacement"
        case acc.BallsInBins():
            return f"{inner} on each of {part.bins:,} batches, each {unit} in a random one"
        case acc.Shuffled():
            return f"{inner} on each of {part.bins:,} batches of a shuffled pass"
        case acc.Selected():
            law = {"poisson": "Poisson", "threshold": "up to a threshold"}.get(part.distribution, _law(part.eta))
            return f"the best of {_short(part.runs)} runs on average ({law}), each of them: {inner}"
        case acc.ProfileDP():
            return "a mechanism that is known by its privacy profile"
        case acc.ApproxDP(epsilon=0):
            return f"a failure with a chance of at most {_short(part.delta)}"
        case acc.ApproxDP():
            return f"any mechanism with ε = {_short(part.epsilon)} and δ = {_short(part.delta)}"
    named = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(part).__name__)
    hidden = ("version", "kind", "unit", "adjacency")
    plain = {k: v for k, v in part.to_dict().items() if k not in hidden and isinstance(v, int | float | str)}
    said = ", ".join(f"{k.replace('_', ' ')} {v if isinstance(v, str) else _short(v)}" for k, v in plain.items())
    return f"{named} ({said})" if said else named


def cap(unit: str, rows: int, kept: int = 0, *, several: bool = False, arriving: bool = False) -> str:
    """What a step takes of a unit with many rows, or with ``kept`` the run, as the card says it.

    >>> print(cap("patient", 1, kept=1))
    Ids say whose each row is. At most 1 row of one patient is in the run: of more, 1 is kept, drawn at random.

    >>> print(cap("patient", 1))
    Ids say whose each row is. A step takes at most 1 row of one patient: of more, 1 is drawn at random in each step.
    """
    most, are = f"At most {kept:,} rows of one {unit} are in the run: ", f"{kept:,} are"
    if kept == 1:
        most, are = f"At most 1 row of one {unit} is in the run: ", "1 is"
    if arriving:
        return (
            f"Rows come one after the other, and of each {unit} the first counts alone. Who owns which row is public, "
            f"and neighbours differ in what the rows of one {unit} say."
        )
    if several:
        return (
            "A row may have several owners. Who owns what is public, and neighbours differ in what the rows of one "
            f"{unit} say. {most}others are left out, in an order that depends on no content."
        )
    if kept:
        return f"Ids say whose each row is. {most}of more, {are} kept, drawn at random."
    some, drawn = ("1 row", "1 is") if rows == 1 else (f"{rows:,} rows", f"{rows:,} are")
    return (
        f"Ids say whose each row is. A step takes at most {some} of one {unit}: of more, {drawn} drawn at random in "
        "each step."
    )


def _law(eta: float) -> str:
    return {1.0: "geometric", 0.0: "logarithmic"}.get(eta, "negative binomial")


def _short(value: float) -> str:
    """A number to four digits, for a sentence; the card has all of them."""
    return number(float(f"{value:.4g}")) if isinstance(value, float) else number(value)
