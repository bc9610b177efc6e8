"""Which settings does a training run have, in a TOML file or on the command line?

One flat list of keys with their types. A mistake is an error that names the key; nothing unknown is ignored.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

#: The settings of a run, in its folder, and the schema where it was given from memory.
CONFIG, SCHEMA = "config.toml", "schema.toml"
#: What stands for data that were given from memory.
IN_MEMORY = "<memory>"
#: The optimizers of torch by name, each with the learning rate that it has where none is given. They were chosen on
#: the public sample ``labsup`` (mlp, ε = 1, ten epochs, batches of 1,024, clip norm 1): of three rates each, a factor
#: of three to ten apart, the smallest whose accuracy is within half a point of the best.
RATES = {
    "sgd": 0.5,
    "adam": 0.01,
    "adamw": 0.01,
    "rmsprop": 0.01,
    "adagrad": 0.1,
    "adadelta": 10.0,
    "adamax": 0.03,
    "nadam": 0.01,
    "radam": 0.03,
    "adafactor": 0.03,
    "asgd": 5.0,
    "rprop": 0.01,
}
#: The optimizers of torch that private training cannot use, and why.
REFUSED = {
    "lbfgs": "it evaluates the loss several times a step, and each time would be another release; use sgd or adam",
    "sparseadam": "it needs sparse gradients, and noise falls on every element; use adam",
    "muon": "it takes matrices only, and these models have biases; use adam",
}
#: What some settings are one of.
CHOICES = {
    "optimizer": tuple(RATES),
    "tuning": ("none", "charged", "on public data only", "not charged", "not stated"),
    "public_overlap": ("yes", "no", "unknown"),
    "draw": ("units", "rows"),
}
#: Where numbers lie, and how that is said.
RANGES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (
        ("batch", "epochs", "steps", "size", "max_rows", "checkpoint_every"),
        lambda n: n >= 1,
        "a whole number, 1 or more",
    ),
    (("epsilon", "learning_rate", "clip_norm"), lambda n: 0 < n < math.inf, "a number above 0"),
    (("noise",), lambda n: 0 <= n < math.inf, "a number, 0 or more"),
    (("delta", "public_share"), lambda n: 0 < n < 1, "a number between 0 and 1"),
    (("momentum",), lambda n: 0 <= n < 1, "a number from 0 to below 1"),
)


class SettingsError(ValueError):
    """A setting that is wrong, unknown or missing; the message names its key."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides a run. The fields are the keys of the TOML file; options have ``-`` for ``_``.

    :func:`tacit.run` describes each of them.
    """

    data: str = ""
    schema: str | None = None
    data_dir: str | None = None
    target: str | None = None
    without: tuple[str, ...] = ()
    model: str = "mlp"
    epsilon: float | None = None
    noise: float | None = None
    correlated: str | None = None
    delta: float | None = None
    epochs: int | None = None
    steps: int | None = None
    batch: int = 256
    learning_rate: float | None = None
    optimizer: str = "sgd"
    momentum: float = 0.9
    clip_norm: float = 1.0
    sampler: str = "poisson"
    adjacency: str | None = None
    size: int | None = None
    max_rows: int = 1
    draw: str = "units"
    ledger: str | None = dataclasses.field(default=None, repr=False)  # may hold a password
    dataset: str | None = None
    plan: str | None = None
    evaluate: str | None = None
    public_share: float | None = None
    public_because: str | None = None
    public_overlap: str = "unknown"
    by: tuple[str, ...] = ()
    reference: bool = False
    tuning: str = "not stated"
    tuning_note: str = ""
    uncovered: tuple[str, ...] | None = None
    purpose: str = "private training"
    trust_model: str = "not stated"
    release: str = "not stated"
    contact: str = "not stated"
    checkpoint_every: int | None = None
    audit_canaries: int | None = None
    device: str = "cpu"
    compile: bool | None = None

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _typed(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)
        object.__setattr__(self, "optimizer", self.optimizer.lower())  # torch writes RMSprop
        self._check()

    @property
    def rate(self) -> float:
        """The learning rate: the one given, else that of the optimizer in :data:`RATES`."""
        return RATES[self.optimizer] if self.learning_rate is None else self.learning_rate

    def _check(self) -> None:
        if not self.data:
            raise SettingsError("data: name a table (a .csv or .parquet file) or a known data set (tacit data list)")
        if (self.epsilon is None) == (self.noise is None):
            raise SettingsError("epsilon: give epsilon or noise, one of the two: each decides the other")
        if self.correlated is not None:
            from tacit.sgd.correlation import noise_kind  # torch is imported where it is needed

            try:
                noise_kind(self.correlated)
            except ValueError as error:
                raise SettingsError(f"correlated: {error}") from None
        if self.delta is None:
            raise SettingsError("delta: give delta, well below 1 / number of records, such as 1e-6")
        if (self.epochs is None) == (self.steps is None):
            raise SettingsError("epochs: give epochs or steps, one of the two")
        for names, fits, words in RANGES:
            for name in names:
                value = getattr(self, name)
                if value is not None and not fits(value):
                    raise SettingsError(f"{name}: {words}, not {value:g}")
        if (why := REFUSED.get(self.optimizer)) is not None:
            raise SettingsError(f"optimizer: {self.optimizer!r} cannot train privately here: {why}")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise SettingsError(f"{name}: one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if (self.ledger is None) != (self.dataset is None):
            raise SettingsError("ledger: give ledger and dataset together: the ledger, and the data's name in it")
        if self.plan is not None and self.ledger is None:
            raise SettingsError("plan: a schedule stands in a ledger: give ledger and dataset too")
        if self.audit_canaries is not None:
            self._check_canaries(self.audit_canaries)
        self._check_evaluation()

    def _check_canaries(self, count: int) -> None:
        if count < 2:
            raise SettingsError(
                f"audit_canaries: a whole number, 2 or more, not {count}; it takes some hundreds to prove anything"
            )
        if self.checkpoint_every is not None:
            raise SettingsError(
                "checkpoint_every: a run with canaries has no checkpoints, because their scores are not saved: leave "
                "out checkpoint_every or audit_canaries"
            )
        if self.compile:
            raise SettingsError(
                "compile: a run with canaries looks into every step, so it cannot be compiled: leave out compile or "
                "audit_canaries"
            )

    def _check_evaluation(self) -> None:
        if self.public_share is not None and self.evaluate is not None:
            raise SettingsError("evaluate: give evaluate or public_share, one of the two")
        if self.public_share is not None and not self.public_because:
            raise SettingsError("public_because: say why these rows need no protection")
        if (self.by or self.reference) and not self.public_because:
            raise SettingsError("by: results by subgroup and the reference need evaluation data that are public")

    def to_toml(self) -> str:
        """TOML text that :func:`read` takes back. It may be published: of the ledger's address no secret is in it."""
        from tacit.schema.toml import toml_value

        shown = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"ledger": written(self.ledger)}
        lines = [f"{name} = {toml_value(value)}" for name, value in shown.items() if value is not None]
        return "\n".join(lines) + "\n"


NAMES = tuple(field.name for field in dataclasses.fields(Settings))
#: Keys that there were, and what takes their place.
RETIRED = {
    "public_every": "rows are no longer declared public by their number, because one more row at the top moved all "
    "others to another side; public_share = 0.2 (--public-share 0.2) decides by a hash of each row's own id or content",
}


#: Keys as version 0.1 wrote them into the folders of runs, and their names now.
FORMER = {"per_unit": "max_rows"}


def check_keys(keys: Iterable[str], where: str = "") -> None:
    """Refuse a key that there is not, or is no longer, by its name."""
    prefix = f"{where}: " if where else ""
    for key in keys:
        if key in RETIRED:
            raise SettingsError(f"{prefix}{key}: {RETIRED[key]}")
        if key not in NAMES:
            raise SettingsError(f"{prefix}unknown key {key!r}; the keys are {', '.join(NAMES)}")


def read(path: str | Path) -> dict[str, Any]:
    """The keys of a settings file; an unknown one is refused by name."""
    found = parsed(path)
    check_keys(found, str(path))
    return found


def parsed(path: str | Path) -> dict[str, Any]:
    """What a TOML file holds, under the names that its keys have now."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    return {FORMER.get(key, key): value for key, value in found.items()}


def written(ledger: str | None) -> str | None:
    """A ledger as it is written down: a path as it is, an address without its secrets."""
    if ledger is None or "://" not in ledger:
        return ledger
    from tacit.ledger.sql import public_address

    return public_address(ledger)


def again(saved: str | None, given: str | None) -> str | None:
    """The ledger of a resumed run: as it was written down, or given again with the password that was not."""
    if given is None:
        return saved
    from tacit.ledger.sql import public_address

    if saved is None or public_address(given) != public_address(saved):
        theirs = "the run has none" if saved is None else f"{public_address(saved)}, with its password or without"
        raise SettingsError(f"ledger: a resumed run keeps its ledger: {theirs}")
    return given


def settings_file(folder: Path, name: str) -> Path:
    """The settings in the folder of a run that is to go on."""
    if not (folder / name).exists():
        raise SettingsError(f"{folder} is not the folder of a run: it has no {name}")
    return folder / name


def saved(folder: Path, ledger: str | None = None) -> Settings:
    """The settings of a run from its folder, with its ``ledger`` where that is given again."""
    found = read(settings_file(folder, CONFIG))
    found["ledger"] = again(found.get("ledger"), ledger)
    if found.get("schema") == SCHEMA:
        found["schema"] = str(folder / SCHEMA)
    return make(found, str(folder / CONFIG))


def make(values: dict[str, Any], where: str = "") -> Settings:
    """Settings from keys, with errors that say where the keys came from."""
    try:
        return Settings(**values)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}" if where else str(error)) from None


def check_tuning(given: Mapping[str, Any]) -> None:
    """Refuse other words about how settings were chosen, before anything is charged.

    >>> check_tuning({"tuning": "charged"})
    """
    if (stated := given.get("tuning", "not stated")) not in CHOICES["tuning"]:
        raise SettingsError(f"tuning: one of {', '.join(CHOICES['tuning'])}, not {stated!r}")


def _typed(name: str, value: Any, hint: Any) -> Any:
    """The value in its type, or an error that names the key."""
    choices = get_args(hint) if type(None) in get_args(hint) else (hint,)
    if value is None:
        if type(None) in choices:
            return None
        raise SettingsError(f"{name}: a value is missing")
    wanted = next(choice for choice in choices if choice is not type(None))
    if get_args(wanted):  # tuple[str, ...]
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise SettingsError(f"{name}: a list of texts, not {value!r}")
        return tuple(value)
    kind = {int: numbers.Integral, float: numbers.Real}.get(wanted)
    if kind is not None and isinstance(value, kind) and not isinstance(value, bool):
        return wanted(value)
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise SettingsError(f"{name}: {words[wanted]}, not {value!r}")
    return value
