"""How does one line become a private prompt and a page to show? The work behind ``tacit prompt``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.ledger import EvaluationData, Ledger, OperatorView
from tacit.ledger.release import Charged, Public
from tacit.noise import Key
from tacit.pate import ConfidentGNMax, VoteCounts
from tacit.prompts import Accuracy, Endpoint, Prompt, PromptTeachers, Template, Verbalizer, choose, load
from tacit.prompts import tune as train
from tacit.prompts.models import optional
from tacit.prompts.students import FEWEST
from tacit.prompts.text import examples, texts
from tacit.prompts.tuning import text_losses
from tacit.report import Evaluation, PublicSource, Run, describe
from tacit.runs import publish
from tacit.runs import votes as drawing
from tacit.runs.folder import as_it_was, resolved
from tacit.runs.journal import Journal
from tacit.runs.progress import Reporter
from tacit.runs.read import read_table
from tacit.runs.settings import SettingsError, again, check_tuning, settings_file, written

#: The settings of a run, in its folder.
CONFIG = "prompt.config.json"
TASKS = ("classify", "generate")
#: What each teacher said, for as long as they vote.
BALLOTS = "votes"
#: How the known text sets are asked about, unless the user says otherwise: body, instruction, words.
KNOWN: dict[str, tuple[str, str, dict[str, str]]] = {
    "sst2": ("Review: {text}\nSentiment:", "", {}),
    "mr": ("Review: {text}\nSentiment:", "", {}),
    "trec": (
        "Question: {text}\nAnswer type:",
        "Say what type of answer each question asks for: abbreviation, description, thing, person, place or number.",
        {
            "ABBR": "abbreviation",
            "DESC": "description",
            "ENTY": "thing",
            "HUM": "person",
            "LOC": "place",
            "NUM": "number",
        },
    ),
    "ag_news": (
        "Article: {text}\nTopic:",
        "Say what each article is about: World, Sports, Business or Technology.",
        {"World": "World", "Sports": "Sports", "Business": "Business", "Sci/Tech": "Technology"},
    ),
    "sms_spam": (
        "Message: {text}\nKind:",
        "Say whether each text message is spam or normal.",
        {"ham": "normal", "spam": "spam"},
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class PromptRun:
    """A private prompt or adapter: ``kind`` is tune (DP-SGD) or pate (noisy votes), ``given`` what the user said."""

    kind: str
    given: dict[str, Any]
    config = CONFIG

    @classmethod
    def saved(cls, kind: str, folder: Path, ledger: str | None = None) -> PromptRun:
        """The run of a folder, with its ``ledger`` where that is given again."""
        found = json.loads(settings_file(folder, CONFIG).read_text(encoding="utf-8"))
        if found.pop("command") != kind:
            raise SettingsError(f"{folder} is a run of another command")
        ledger = again(found.get("ledger"), ledger)
        return cls(kind, {**found, "ledger": ledger} if ledger else found)

    @property
    def keyed(self) -> bool:
        """Votes are drawn from a secret of the run; training has a key of its own."""
        return self.kind == "pate"

    @property
    def ledger(self) -> str | None:
        """The ledger that is charged."""
        return self.given.get("ledger")

    @property
    def stem(self) -> str:
        """The data's name."""
        return Path(self.given["data"]).stem

    def files(self) -> dict[str, str]:
        """The settings with paths that hold elsewhere, and without the ledger's password."""
        ledger = {"ledger": written(self.given["ledger"])} if self.given.get("ledger") else {}
        there = resolved(self.given, ("data", "public", "evaluate", "ledger", "model"))
        text = json.dumps({"command": self.kind, **self.given, **ledger, **there}, indent=2, ensure_ascii=False)
        return {CONFIG: text + "\n"}

    def check(self, journal: Journal) -> None:
        """Every run can go on."""

    def read(self) -> PromptTask:
        """The texts, and how to ask about them."""
        check_tuning(self.given)
        return prepare(self.kind, self.given)

    def make(self, journal: Journal, data: PromptTask, progress: Reporter) -> list[OperatorView]:
        """Adapt, evaluate, decide."""
        return tune(data, journal) if self.kind == "tune" else pate(data, journal)


@dataclasses.dataclass(frozen=True, eq=False)
class PromptTask:
    """Settings, and what was read for them: labelled texts, or texts alone where there are no classes."""

    given: dict[str, Any]
    template: Template | None
    verbalizer: Verbalizer | None
    private: Any
    owners: list[Any] | None
    test: Any
    public: list[str]
    ledger: Ledger | None
    #: What the private texts were read from, as the ledger knows it: the file, or the table of a known set.
    source: Any = None

    @property
    def name(self) -> str:
        """What the data are called on the card."""
        return str(self.given.get("dataset") or Path(self.given["data"]).stem)

    @property
    def unit(self) -> str:
        """Whom one unit of privacy protects."""
        return str(self.given.get("unit") or ("record" if self.owners is None else "person"))

    @property
    def schema(self) -> str:
        """What the data are, for the card."""
        if self.verbalizer is None:
            return "texts"
        return f"labelled texts; classes {', '.join(self.verbalizer.classes)}"

    def asking(self) -> tuple[Template, Verbalizer]:
        """Template and words, where there are classes."""
        assert self.template is not None
        assert self.verbalizer is not None
        return self.template, self.verbalizer


def _frame(source: str, data_dir: str | None, split: str | None = None) -> Any:
    """A table with text and label: a file, a known set, or set:split."""
    from tacit import datasets

    name, _, part = source.partition(":")
    if name in datasets.CATALOG and not Path(source).exists():
        found = datasets.load(name, data_dir)
        if part and part not in found.splits:
            raise SettingsError(f"{name} has no split {part!r}; it has {', '.join(found.splits)}")
        wanted = part or split
        return found[wanted] if wanted else found.train
    return read_table(Path(source), texts=True)


def _place(source: str) -> tuple[str, str]:
    """Where texts come from, however it is said: a file, or a known set and its split."""
    from tacit import datasets

    name, _, part = source.partition(":")
    known = datasets.CATALOG.get(name)
    if known is None or Path(source).exists():
        return "file", str(Path(source).resolve())
    return name, part or ("train" if "train" in known.rows else "all")


def _split(given: dict[str, Any]) -> str:
    """What to evaluate on; the bare name of a split is one of the private data's own set."""
    from tacit import datasets

    name, wanted = str(given["data"]).partition(":")[0], str(given["evaluate"])
    known = datasets.CATALOG.get(name)
    return f"{name}:{wanted}" if known is not None and wanted in known.rows and not Path(wanted).exists() else wanted


def _asking(given: dict[str, Any], labels: Any) -> tuple[Template, Verbalizer]:
    """Template and words: what was given, else those of the known set, else the classes' own names."""
    known = KNOWN.get(str(given.get("data", "")).partition(":")[0])
    body = given.get("template")
    instruction = given.get("instruction")
    if body is None and known is None:
        raise SettingsError("template: say how a text is asked about, as in '{text}\\nSentiment:'")
    if body is None and known is not None:
        body = known[0]
        instruction = known[1] if instruction is None else instruction
    said = given.get("words")
    if said:
        pairs = [item.partition("=") for item in str(said).split(",")]
        if not all(equals and word for _, equals, word in pairs):
            raise SettingsError("words: class=word,class=word")
        words = {label.strip(): word for label, _, word in pairs}
    elif known is not None and known[2]:
        words = known[2]
    else:
        if labels is None:
            raise SettingsError("words: say the word of each class: class=word,class=word")
        words = {str(label): str(label) for label in labels}
    template = Template(_unescaped(str(body)), _unescaped(str(instruction or "")))
    return template, Verbalizer(words, bool(given.get("first_token", False)))


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _classes(given: dict[str, Any]) -> Any:
    """The public classes: of a known set by its schema. Those of a private file are not read from its rows."""
    from tacit import datasets

    name = str(given.get("data", "")).partition(":")[0]
    return datasets.schema(name).classes if name in datasets.CATALOG else None


def prepare(kind: str, given: dict[str, Any]) -> PromptTask:
    """Read the texts and find out how to ask about them."""
    _check(kind, given)
    template, words = _continuing(given) if given.get("task") == "generate" else _asking(given, _classes(given))
    folder = given.get("data_dir")

    def rows(frame: Any) -> Any:
        return texts(frame) if words is None else examples(frame, words)

    frame = _frame(given["data"], folder)
    private, owners = rows(frame), _owners(given, frame)
    test = rows(_frame(_split(given), folder, "test")) if given.get("evaluate") else None
    asked = texts(_frame(given["public"], folder)) if kind == "pate" else []
    ledger, source = _ledger(given), Path(given["data"]) if Path(given["data"]).exists() else frame
    if ledger is not None:
        ledger.recognise(given["dataset"], source)  # now: nothing is made of other data
    return PromptTask(given, template, words, private, owners, test, asked, ledger, source)


def _check(kind: str, given: dict[str, Any]) -> None:
    """Refuse what cannot be meant before anything is read, written or charged."""
    if given.get("delta") is None:
        raise SettingsError("delta: say the δ of (ε, δ), such as 1e-6")
    if (given.get("ledger") is None) != (given.get("dataset") is None):
        raise SettingsError("ledger and dataset: give both, the ledger and the name the data are registered under")
    if kind == "tune" and (given.get("epsilon") is None) == (given.get("noise") is None):
        raise SettingsError("epsilon or noise: say one of the two")
    if kind == "pate":
        if not given.get("public"):
            raise SettingsError("public: say which public texts the teachers are asked about")
        if _place(given["public"]) == _place(given["data"]):
            raise SettingsError(
                f"public: {given['public']} are the private texts, and the prompt would show them. "
                "See: tacit explain public-is-private"
            )
        _student(given)  # now: after the votes it would be charged, and could not be said anew
    if given.get("endpoint"):
        _scorer(given)  # now: what it refuses must not be written into the folder of a run
    if given.get("task", "classify") not in TASKS:
        raise SettingsError(f"task: one of {', '.join(TASKS)}, not {given['task']!r}")


def _continuing(given: dict[str, Any]) -> tuple[Template | None, None]:
    """The template of a model that continues texts; it has no words."""
    said = [name for name in ("words", "first_token") if given.get(name)]
    if said:
        raise SettingsError(f"{said[0].replace('_', '-')}: a model that continues texts has no classes")
    body, instruction = given.get("template"), _unescaped(str(given.get("instruction", "")))
    return (Template(_unescaped(str(body)), instruction) if body else None), None


def _ledger(given: dict[str, Any]) -> Ledger | None:
    """The ledger that is charged."""
    if not given.get("ledger"):
        return None
    if "://" not in given["ledger"] and not Path(given["ledger"]).exists():
        raise SettingsError(
            f"ledger: there is no {given['ledger']}; create it with: tacit ledger init {given['ledger']} "
            f"{given['dataset']} --epsilon … --delta …"
        )
    return Ledger(given["ledger"])


def _owners(given: dict[str, Any], frame: Any) -> list[Any] | None:
    """Whose text each text is, where a column says so; a unit's name alone is refused."""
    unit, column = given.get("unit"), given.get("unit_column")
    if column is None:
        if unit not in (None, "record"):
            raise SettingsError(
                f"unit: {unit!r} is only a word: without ids a {unit} with several texts is protected for one of them; "
                "name the column of ids with unit-column, or leave unit out to protect one record"
            )
        return None
    if column not in frame.columns:
        raise SettingsError(f"unit-column: there is no column {column!r}; there are {', '.join(frame.columns)}")
    owners: list[Any] = frame[column].to_list()
    if any(owner is None for owner in owners):
        raise SettingsError(f"unit-column: {column!r} has missing values; every text needs an owner")
    return owners


def _student(given: dict[str, Any]) -> dict[str, Any]:
    """How the student is chosen, as :func:`tacit.prompts.choose` takes it; what it would refuse is refused."""
    try:
        shots = tuple(int(x) for x in str(given.get("student_shots", "1,2")).split(","))
    except ValueError:
        shots = (-1,)
    if min(shots) < 0:
        raise SettingsError(f"student-shots: whole numbers such as 1,2,4, not {given['student_shots']!r}")
    found = {"candidates": int(given.get("candidates", 64)), "members": int(given.get("members", 8))}
    for name, number in found.items():
        if number < 1:
            raise SettingsError(f"{name}: a positive whole number, not {number}")
    return {"shots": shots, **found}


def _scorer(given: dict[str, Any]) -> Any:
    if given.get("endpoint"):
        if not given.get("endpoint_model"):
            raise SettingsError("endpoint-model: say the model's name at the endpoint")
        return Endpoint(given["endpoint"], given["endpoint_model"], way="chat" if given.get("chat") else "completions")
    if not sys.stderr.isatty():
        optional("transformers").utils.logging.disable_progress_bar()
    return load(given.get("model", "smollm2"), device=given.get("device", "cpu"), data_dir=given.get("data_dir"))


def _pretrained(given: dict[str, Any]) -> tuple[PublicSource, ...]:
    name = given.get("endpoint_model") or Path(str(given.get("model", "smollm2"))).name
    note = "a language model trained on text that its makers chose; whether the private texts were in it is not known"
    return (PublicSource(str(name), "the model that is adapted", "unknown", note),)


def _results(task: PromptTask, found: dict[str, Accuracy | Fluency]) -> tuple[list[Evaluation], list[OperatorView]]:
    """Results that may be shown, or what only the operator may see."""
    because, shown, views = task.given.get("public_because"), [], []
    for name, result in found.items():
        if because:
            data = EvaluationData.declared_public(None, because=because)
        else:
            data = EvaluationData.private(None, dataset=task.name)
        metric, form = ("accuracy", ".1%") if isinstance(result, Accuracy) else ("perplexity", ".2f")
        value = data.metric(metric, result.value if metric == "accuracy" else round(result.value, 2))
        if isinstance(value, OperatorView):
            views.append(value)
        else:
            low, high = result.interval
            note = f"95% interval {low:{form}} to {high:{form}}"
            shown.append(Evaluation(metric, value, name, "", result.total, note))
    return shown, views


@dataclasses.dataclass(frozen=True, eq=False)
class Fluency:
    """The perplexity of texts: the exponential of their mean loss a token, with its 95% interval over texts."""

    losses: NDArray[np.float64]

    @property
    def total(self) -> int:
        """How many texts."""
        return len(self.losses)

    @property
    def value(self) -> float:
        """The perplexity."""
        return float(np.exp(self.losses.mean()))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2f} [{low:.2f}, {high:.2f}] of {self.total:,}"

    @property
    def interval(self) -> tuple[float, float]:
        """Where the perplexity of endlessly many such texts would be, at 95%."""
        half = 1.96 * float(self.losses.std(ddof=1)) / len(self.losses) ** 0.5 if len(self.losses) > 1 else np.inf
        return float(np.exp(self.losses.mean() - half)), float(np.exp(self.losses.mean() + half))


def _decide(
    journal: Journal,
    run: Run,
    views: list[OperatorView],
    files: dict[str, str],
    lines: list[str],
    scratch: tuple[str, ...] = (),
) -> None:
    """Card and report beside what is staged; then the release is decided."""
    told = publish.summary(publish.stage(journal, run, views))
    if views:
        lines.append("what only the operator may see is in private/operator.jsonl")
    for result in told["results"]:
        form = ".1%" if result["metric"] == "accuracy" else ".2f"
        lines.append(f"  {result['metric']} of {result['model']}: {result['value']:{form}} ({result['note']})")
    journal.decide(told | {"lines": [told.pop("claim"), *lines], "files": files | publish.SHOWN}, scratch)


def _vouched(path: Path, run: Run) -> Charged | Public:
    return publish.vouched(path.read_bytes(), run.dataset, run.charge, "what is released")


# -- with weights at hand ----------------------------------------------------------------------------------------------


def tune(task: PromptTask, journal: Journal) -> list[OperatorView]:
    """PromptDPSGD: train; then adapter, card and report are decided. What only the operator may see is returned."""
    given = task.given
    language = _scorer(given)
    found: dict[str, Accuracy | Fluency] = {}
    if task.test is not None and task.verbalizer is not None:
        found["zero-shot"] = Prompt(*task.asking()).accuracy(language, task.test)
    elif task.test is not None:
        found["before"] = Fluency(text_losses(language, task.template, task.test))
    names = {"batch": "batch_size", "noise": "noise_multiplier"}
    wanted = ["method", "epsilon", "noise", "delta", "epochs", "steps", "batch", "learning_rate", "clip_norm", "rank"]
    wanted += ["virtual_tokens", "start", "max_rows", "draw"]
    settings = {names.get(k, k): given[k] for k in wanted if given.get(k) is not None}
    with as_it_was(journal.folder):
        done = train(
            language.model,
            language.tokenizer,
            task.template,
            task.verbalizer,
            task.private,
            ledger=task.ledger,
            dataset=given.get("dataset"),
            source=None if task.ledger is None else task.source,
            checkpoint=journal.private / "checkpoint.pt",
            checkpoint_every=given.get("checkpoint_every", 20),
            groups=task.owners,
            unit=task.unit,
            **settings,
        )
    adapter = done.save(journal.stage() / "adapter")
    if task.test is not None and task.verbalizer is None:
        found = {"private": Fluency(done.losses(task.test)), **found}
    elif task.test is not None:
        guesses = done.predict([text for text, _ in task.test])
        right = sum(a == b for a, (_, b) in zip(guesses, task.test, strict=True))
        found = {"private": Accuracy(right, len(guesses)), **found}
    shown, views = _results(task, found)
    training = done.fit.training
    run = describe(
        training,
        journal.folder.name,
        method=f"PromptDPSGD: {_METHODS.get(done.method, 'an adapter')} trained by DP-SGD (Duan et al. 2023)",
        data=task.name,
        schema=task.schema,
        pretrained=_pretrained(given),
        public_sources=_sources(task),
        evaluations=tuple(shown),
        **publish.stated(given),
    )
    run = dataclasses.replace(run, model_file=_vouched(adapter / "adapter_model.safetensors", run))
    lines = [f"{done.parameters:,} weights were trained in {done.fit.seconds:,.0f} s"]
    _decide(journal, run, views, {"adapter": "adapter"}, lines)
    return views


_METHODS = {"soft": "a soft prompt", "prefix": "a prefix", "lora": "LoRA"}


def _sources(task: PromptTask) -> tuple[PublicSource, ...]:
    found = []
    if task.public:
        found.append(PublicSource(str(task.given["public"]), "queries, and demonstrations of the student prompt"))
    if task.test is not None and task.given.get("public_because"):
        where = str(task.given["evaluate"])
        found.append(PublicSource(where, "evaluation", "unknown", task.given["public_because"]))
    return tuple(found)


# -- with answers alone ------------------------------------------------------------------------------------------------


def pate(task: PromptTask, journal: Journal) -> list[OperatorView]:
    """PromptPATE: teachers vote, noisy labels are drawn and charged, a student prompt is chosen; then it is decided."""
    given, (template, words) = task.given, task.asking()
    scorer = _scorer(given)
    count = int(given.get("teachers", 200))
    calibration = str(given.get("calibration", "batch"))
    queries = task.public[: int(given.get("queries", 150))]
    aggregator = ConfidentGNMax(
        threshold=float(given.get("threshold", 0.55 * count)),
        check_noise=float(given.get("check_noise", 0.45 * count)),
        vote_noise=float(given.get("vote_noise", 0.39 * count)),
        classes=len(words.classes),
    )
    most = min(int(given.get("answers", 110)), len(queries))
    if most < FEWEST:
        raise SettingsError(f"queries and answers: a student is chosen by at least {FEWEST} answers, not {most}")

    def count_votes() -> VoteCounts:
        shots = int(given.get("shots", 1))
        key = Key(journal.secret("teachers"))
        teachers = PromptTeachers(
            scorer,
            template,
            words,
            task.private,
            shots,
            count,
            groups=task.owners,
            calibration=calibration,
            key=key,
        )
        return dataclasses.replace(teachers.vote(queries, checkpoint=journal.private / BALLOTS), unit=task.unit)

    votes = drawing.kept(journal, count_votes)
    queries = [str(query) for query in votes.x]
    answers = drawing.answered(
        journal,
        aggregator,
        votes,
        queries=len(queries),
        answers=most,
        delta=float(given["delta"]),
        ledger=task.ledger,
        dataset=given.get("dataset"),
        data=None if task.ledger is None else task.ledger.recognise(given["dataset"], task.source),
        purpose="private prompt by teachers' votes",
    )
    answered, privacy = int(answers.answered.sum()), answers.privacy
    lines = [f"{answered} of {len(answers)} queries were answered by {count} teachers"]
    labelled = [(queries[i], words.classes[label]) for i, label in enumerate(answers.labels) if label >= 0]
    student = choose(
        scorer,
        template,
        words,
        labelled,
        **_student(given),
        calibration=calibration,
        unlabelled=task.public[:1000],
    )
    stage = journal.stage()
    student.save(stage / "prompt.json")
    lines.append(f"the student asks {len(student.members)} prompt{'s' if student.others else ''} for each answer")
    found: dict[str, Accuracy | Fluency] = {}
    if task.test is not None:
        bare = Prompt(template, words)
        found = {"private": student.accuracy(scorer, task.test), "zero-shot": bare.accuracy(scorer, task.test)}
    shown, views = _results(task, found)
    exact = answers.accounts.exact
    views.append(
        OperatorView(
            epsilon_theorem6=float(answers.accounts.theorem6), epsilon_exact=None if exact is None else float(exact)
        )
    )
    run = Run(
        journal.folder.name,
        privacy.mechanism,
        delta=float(given["delta"]),
        adjacency=privacy.adjacency,
        method="PromptPATE: noisy votes of privately prompted teachers label public texts (Duan et al. 2023)",
        parameters={
            "teachers": count,
            "shots": int(given.get("shots", 1)),
            "calibration": calibration,
            **dataclasses.asdict(aggregator),
        },
        sampler="none: every teacher votes on every query",
        generator=drawing.GENERATOR,
        covered=("the labels of the public queries, which of them have none, and everything computed from them",),
        records_public=False,  # nothing on the card follows from their number
        pretrained=_pretrained(given),
        public_sources=_sources(task),
        data=task.name,
        schema=task.schema,
        ledger=task.ledger,
        dataset=given.get("dataset"),
        charge=answers.charge.number if answers.charge is not None else None,
        evaluations=tuple(shown),
        **({"purpose": "private prompt by teachers' votes"} | publish.stated(given)),
    )
    run = dataclasses.replace(run, model_file=_vouched(stage / "prompt.json", run))
    _decide(journal, run, views, {"prompt": "prompt.json"}, lines, (BALLOTS, drawing.VOTES, drawing.QUERIES))
    return views


# -- what it is worth --------------------------------------------------------------------------------------------------


def evaluate(source: str, given: dict[str, Any]) -> Accuracy | Fluency:
    """The accuracy of a run, an adapter, a saved prompt, or the bare template; a perplexity where it has no classes."""
    folder = given.get("data_dir")
    rows = _frame(given["data"], folder, None)
    if given.get("limit"):
        rows = rows[: int(given["limit"])]
    path = Path(source)
    run = path / "prompt.config.json"
    if run.exists():
        before = json.loads(run.read_text(encoding="utf-8"))
        for name in ("model", "endpoint", "endpoint_model", "chat"):
            if name in before:
                given.setdefault(name, before[name])
        path = path / "adapter" if (path / "adapter").is_dir() else path / "prompt.json"
    if source == "zero-shot":
        template, words = _asking(given, _classes(given))
        return Prompt(template, words).accuracy(_scorer(given), rows)
    if path.is_dir():
        return _adapter(path, given, rows)
    return Prompt.load(path).accuracy(_scorer(given), rows)


def _adapter(path: Path, given: dict[str, Any], rows: Any) -> Accuracy | Fluency:
    from tacit.prompts import LanguageModel

    if not (path / "adapter_config.json").exists():
        raise SettingsError(f"{path} holds no adapter: give a run's folder, an adapter's, or a prompt.json")
    saved = path / "prompt.json"
    about = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else None
    if about is not None and "verbalizer" not in about:  # it continues texts
        language = _scorer(given)
        adapted = optional("peft").PeftModel.from_pretrained(language.model, str(path))
        template = Template(**about["template"]) if "template" in about else None
        return Fluency(text_losses(LanguageModel(adapted, language.tokenizer), template, texts(rows)))
    prompt = Prompt.load(saved) if about is not None else None
    if prompt is None:
        template, words = _asking(given, _classes(given))
        prompt = Prompt(template, words)
    language = _scorer(given)
    adapted = optional("peft").PeftModel.from_pretrained(language.model, str(path))
    return prompt.accuracy(LanguageModel(adapted, language.tokenizer), rows)
