"""How is a language model adapted to private text if its weights are at hand? PromptDPSGD.

A soft prompt, a prefix or LoRA is trained with DP-SGD through the frozen model (Duan et al. 2023, "Flocks of Stochastic
Parrots"). It learns the label words of a verbaliser or, without one, to continue private text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.ledger import EvaluationData, Release
from tacit.prompts.adapters import TOKENS, AdaptedModel, adapt
from tacit.prompts.errors import PromptError
from tacit.prompts.models import LanguageModel, label_logits, padded
from tacit.prompts.text import Template, Verbalizer, examples, texts
from tacit.sgd import Fit, fit
from tacit.sgd.training.data import Records
from tacit.sgd.training.kept import drawn, lists_owners

#: Learning rates of Adam that work for each method; LoRA's is that of Hanke et al. (2024).
LEARNING_RATE = {"soft": 5e-3, "prefix": 5e-3, "lora": 1e-3}
#: Examples at a time on a CPU, where a language model's activations fill the memory first.
CPU_BATCH = 32


class Texts(Records):
    """Padded texts, of which a batch has only the columns that one of its texts needs.

    Lengths go in steps of 16, so that the clipping engine meets few shapes. How long a batch is depends on the private
    texts in it, like all that is inside a step.
    """

    def take(self, index: NDArray[np.int64] | Tensor) -> Any:
        """The rows of these numbers."""
        found = super().take(index)
        longest = -(-int(found["attention_mask"].sum(1).max()) // 16) * 16
        return {name: column[:, :longest] if column.dim() == 2 else column for name, column in found.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class LabelLoss:
    """Cross entropy of each example over the label words, at its own label's place: padding takes no part.

    Batches hold ``input_ids``, ``attention_mask``, ``at`` (the place before the label) and ``label``.
    """

    tokens: tuple[int, ...]
    about: str = ""

    def __post_init__(self) -> None:
        # What a checkpoint knows this loss by.
        object.__setattr__(self, "__qualname__", f"LabelLoss{self.tokens} {self.about}")

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(self.logits(model, batch), batch["label"], reduction="none")

    def logits(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The label words' logits, in float32."""
        inner = model.adapted if isinstance(model, AdaptedModel) else model
        tokens = torch.tensor(self.tokens, device=batch["input_ids"].device)
        return label_logits(inner, batch, tokens).float()

    def accuracy(self, model: nn.Module, batch: dict[str, Tensor]) -> float:
        """The share of right classes."""
        return float((self.logits(model, batch).argmax(1) == batch["label"]).double().mean())


@dataclasses.dataclass(frozen=True, eq=False)
class TextLoss:
    """The mean loss of each example over the tokens of its own text: neither context nor padding takes part.

    Batches hold ``input_ids``, ``attention_mask`` and ``first``, the place of the first token that is learned.
    """

    about: str = ""

    def __post_init__(self) -> None:
        # What a checkpoint knows this loss by.
        object.__setattr__(self, "__qualname__", f"TextLoss {self.about}")

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        inner = model.adapted if isinstance(model, AdaptedModel) else model
        ids, mask = batch["input_ids"], batch["attention_mask"]
        # Virtual tokens in front have logits too: the last ones are the text's.
        logits = inner(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, -ids.shape[1] :].float()
        losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        place = torch.arange(1, ids.shape[1], device=ids.device)
        kept = mask[:, 1:].to(losses.dtype) * (place >= batch["first"].view(-1, 1)).to(losses.dtype)
        return (losses * kept).sum(1) / kept.sum(1)


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """An adapted model and its guarantee. :func:`tune` makes it.

    Args:
        model: The model of ``peft``.
        template: The template to ask with; a soft prompt has taken the place of its instruction.
        verbalizer: The classes and their words; None if the model continues text.
        method: ``"soft"``, ``"prefix"`` or ``"lora"``.
        language: The adapted model, ready to score label words.
        fit: The training run: plan, privacy and metrics.

    Example:
        See ``examples/private_prompt.py``.
    """

    model: Any
    template: Template | None
    verbalizer: Verbalizer | None
    method: str
    language: LanguageModel
    fit: Fit

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee of the run."""
        return self.fit.privacy

    @property
    def metrics(self) -> tuple[Release, ...]:
        """The evaluation by step, as values that may be shown."""
        return self.fit.metrics

    @property
    def parameters(self) -> int:
        """The number of trained weights."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def log_probabilities(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Score each class by the log-probability of its word after each text.

        Args:
            texts: The texts to ask about.

        Returns:
            One row per text, one column per class.

        Raises:
            PromptError: If the model was tuned to continue text, so that there are no classes.
        """
        if self.template is None or self.verbalizer is None:
            raise PromptError("this model was tuned to continue text and has no classes: use losses()")
        return self.language.log_probabilities(self.template, self.verbalizer, texts)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Predict the class of each text.

        Args:
            texts: The texts to ask about.

        Returns:
            One class name per text.
        """
        assert self.verbalizer is not None
        return [self.verbalizer.classes[i] for i in self.log_probabilities(texts).argmax(1)]

    def losses(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Measure how well a model that was tuned to continue text predicts texts.

        Args:
            texts: The texts.

        Returns:
            The mean loss per token of each text. The exponential of their mean is a perplexity.

        Raises:
            PromptError: If the model was tuned on classes.
        """
        if self.verbalizer is not None:
            raise PromptError("this model was tuned on classes: use predict()")
        return text_losses(self.language, self.template, texts)

    def save(self, folder: str | Path) -> Path:
        """Write the folder that ``peft`` loads, and ``prompt.json``: how to ask the model, and its guarantee.

        Args:
            folder: The folder, which is made if it does not exist.

        Returns:
            The folder.
        """
        target = Path(folder)
        self.model.save_pretrained(str(target))
        about: dict[str, Any] = {"method": self.method, "privacy": str(self.privacy)}
        if self.template is not None:
            about["template"] = dataclasses.asdict(self.template)
        if self.verbalizer is not None:
            about["verbalizer"] = dict(self.verbalizer.words)
            about["first_token"] = self.verbalizer.first_token
        (target / "prompt.json").write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return target


def tune(
    model: Any,
    tokenizer: Any,
    template: str | Template | None,
    verbalizer: Any,
    data: Any,
    *,
    method: str = "lora",
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    decay: bool = True,
    clip_norm: Any = 0.1,
    start: str | None = None,
    virtual_tokens: int | None = None,
    rank: int = 4,
    modules: Any = None,
    freeze_a: bool = False,
    config: Any = None,
    evaluate: EvaluationData | None = None,
    physical_batch: int | None = None,
    groups: Any = None,
    unit: str | None = None,
    max_rows: int = 1,
    **settings: Any,
) -> Tuned:
    """Adapt a language model to private texts with DP-SGD.

    Guarantee:
        The adapter, and everything computed from it, is (ε, δ)-DP as :attr:`Tuned.privacy` states, for one record (or
        owner): zero-out, with their number treated as public, or add/remove with ``size=`` among the settings. The
        gradient of each example's own loss is clipped to L2 norm ``clip_norm``. The language model, the template and
        the label words are taken to be public.

    Args:
        model: A model of ``transformers``, or a :class:`LanguageModel` (then ``tokenizer`` may be None).
        tokenizer: Its tokenizer.
        template: A template, or its body. None, without a verbaliser, learns the bare texts.
        verbalizer: The classes and their words, or anything that :meth:`Verbalizer.of` takes. None learns to continue
            what stands before ``{text}``.
        data: Private pairs of text and class, or texts alone without a verbaliser; or a table with the columns ``text``
            and ``label``.
        method: ``"lora"``, ``"soft"`` (embeddings in front of the text) or ``"prefix"`` (keys and values in every
            layer).
        epsilon: The budget, which sets the noise. None needs ``noise_multiplier=`` among the settings.
        delta: The δ of the budget.
        epochs: Passes over the data. None means 10, unless ``steps`` is given.
        steps: The number of steps, instead of ``epochs``.
        batch_size: The expected number of records per step. None means a quarter of them, 256 at most.
        learning_rate: Adam's learning rate. None means 0.001 for LoRA and 0.005 otherwise.
        optimizer: A function that makes an optimizer from the list of weights. None makes Adam.
        decay: Whether the learning rate falls linearly to zero, which averages out the noise of the last steps.
        clip_norm: The L2 norm to which each example's gradient is clipped.
        start: The public text that a soft prompt or prefix starts as. None takes the template's instruction, or a
            sentence with the label words.
        virtual_tokens: The length of a soft prompt or prefix. None takes that of ``start``.
        rank: LoRA's rank.
        modules: The layers that LoRA goes to, by name, or ``"all-linear"``. None leaves it to ``peft``.
        freeze_a: Whether to train only the second of LoRA's two matrices (Sun et al. 2024).
        config: A configuration of ``peft`` instead of all of these.
        evaluate: Labelled texts to evaluate on at the end, declared public or private. None evaluates nothing.
        physical_batch: How many examples are computed at a time. None means 32 at most on a CPU.
        groups: The id of each text's owner; with ``draw="rows"`` among the settings also a list of the ids of all its
            owners, as a mail has them. None protects one record.
        unit: The name of the unit, such as ``"person"``; needs ``groups``.
        max_rows: How many texts of one owner a step uses at most, or with ``draw="rows"`` the run.
        settings: What :func:`tacit.sgd.fit` and :class:`tacit.sgd.Training` take: ledger, checkpoint, sampler, draw, ….

    Returns:
        The adapted model with its guarantee.

    Example:
        See ``examples/private_prompt.py``.
    """
    language, template, words = _asked(model, tokenizer, template, verbalizer)
    if method in TOKENS and config is None and start is None:
        start, template = _instruction(template, words)
    adapted = adapt(
        language,
        method,
        start=start or "",
        virtual_tokens=virtual_tokens,
        rank=rank,
        modules=modules,
        freeze_a=freeze_a,
        config=config,
    )
    asking = LanguageModel(adapted, language.tokenizer)
    rows, loss, evaluate = _to_learn(asking, template, words, data, evaluate)
    settings.setdefault("source", data)  # a ledger knows the texts, not the tokens made of them
    if isinstance(loss, LabelLoss):
        settings.setdefault("metric", loss.accuracy)
    # Where who is with whom is drawn, not given by the order; of rows with several owners it decides which are kept.
    if settings.get("sampler", "poisson") != "chunks" and not lists_owners(groups):
        rows, groups = _by_length(rows, groups)
    # A pass is over what is drawn, people or texts, and over the announced number where there is one.
    count = settings.get("size") or drawn(groups, len(rows["input_ids"]), settings.get("draw", "units"), max_rows)
    batch_size = batch_size or min(256, max(1, count // 4))
    if epochs is None and steps is None:
        epochs = 10
    trained = AdaptedModel(adapted)
    rate = learning_rate if learning_rate is not None else LEARNING_RATE.get(method, 1e-3)
    stepper = (optimizer or functools.partial(torch.optim.Adam, lr=rate))(trained.trainable())
    if decay and "scheduler" not in settings:
        total = max(1, steps if steps is not None else math.ceil((epochs or 1) * count / batch_size))
        settings["scheduler"] = _falling(stepper, total)
    if physical_batch is None and asking.device.type == "cpu":
        physical_batch = min(CPU_BATCH, batch_size + 2 * math.isqrt(batch_size) + 1)
    settings.setdefault("evaluate_every", 1 << 60)  # scoring a test set takes longer than a step: at the end only
    done = fit(
        trained,
        stepper,
        loss,
        Texts(tree=rows),
        evaluate=evaluate,
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        clip_norm=clip_norm,
        physical_batch=physical_batch,
        unit=unit,
        groups=groups,
        max_rows=max_rows,
        purpose=settings.pop("purpose", f"private prompt ({method})"),
        **settings,
    )
    return Tuned(adapted, template, words, method, asking, done)


def _asked(
    model: Any, tokenizer: Any, template: str | Template | None, verbalizer: Any
) -> tuple[LanguageModel, Template | None, Verbalizer | None]:
    """The model, and what it is asked with, checked against each other."""
    if tokenizer is None and isinstance(model, LanguageModel):
        model, tokenizer = model.model, model.tokenizer
    language = LanguageModel(model, tokenizer)
    asked = Template.of(template) if template is not None else None
    words = Verbalizer.of(verbalizer) if verbalizer is not None else None
    if words is not None:
        if asked is None:
            raise PromptError("a verbaliser needs a template: the text that the label word follows")
        language.check(asked, words)
    return language, asked, words


def _to_learn(
    language: LanguageModel,
    template: Template | None,
    words: Verbalizer | None,
    data: Any,
    evaluate: EvaluationData | None,
) -> tuple[dict[str, Tensor], LabelLoss | TextLoss, EvaluationData | None]:
    """The private texts as tensors, the loss of each, and the texts to evaluate on as tensors too."""
    if words is not None and template is not None:
        if evaluate is not None:
            evaluate = dataclasses.replace(evaluate, data=labelled(language, template, words, evaluate.data))
        loss = LabelLoss(tuple(language.check(template, words)), repr(template))
        return labelled(language, template, words, data), loss, evaluate
    if evaluate is not None:
        raise PromptError("evaluate= needs classes: give a verbaliser, or leave it out")
    return unlabelled(language, template, data), TextLoss(repr(template)), None


def _falling(optimizer: torch.optim.Optimizer, total: int) -> torch.optim.lr_scheduler.LambdaLR:
    """A learning rate that falls linearly to zero."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))


def _by_length(rows: dict[str, Tensor], owners: Any) -> tuple[dict[str, Tensor], Any]:
    """Rows, and their owners, by length: samplers give rows in their order, so like lengths share a physical batch."""
    order = rows["attention_mask"].sum(1).argsort(stable=True)
    if owners is not None:  # each as it was: an array would make a text of a missing id
        listed = list(owners)
        if len(listed) != len(order):
            raise ValueError("groups must have one id for each text")
        owners = [listed[row] for row in order.tolist()]
    return {name: column[order] for name, column in rows.items()}, owners


def _instruction(template: Template | None, words: Verbalizer | None) -> tuple[str, Template | None]:
    """The text that a soft prompt starts as, and the template without it."""
    if template is not None and template.instruction:
        return template.instruction + template.separator, dataclasses.replace(template, instruction="")
    if words is not None:
        return f"Answer with one of: {', '.join(words.words.values())}.\n\n", template
    return "A text follows.\n\n", template


def labelled(language: LanguageModel, template: Template, words: Verbalizer, data: Any) -> dict[str, Tensor]:
    """Labelled texts as tensors: tokens, mask, the place of the label, and its class."""
    rows = examples(data, words)
    before = language.prefix_ids(template, words, ())
    batch = language.encode(template, [text for text, _ in rows], before)
    return {**batch, "label": torch.tensor([words.number(label) for _, label in rows])}


def unlabelled(language: LanguageModel, template: Template | None, data: Any) -> dict[str, Tensor]:
    """Texts as tensors, with the place of the first token to learn and the end-of-text token where there is one."""
    if language.masked:
        raise PromptError(
            "a masked language model does not continue text: give a verbaliser, and {mask} in the template"
        )
    context = language.front()
    if template is not None:
        context += language._ids(template.prefix() + template.body.partition("{text}")[0])
    end = getattr(language.tokenizer, "eos_token_id", None)
    rows, first = [], []
    for text in texts(data):
        ids = [*context, *language._ids(text), *([end] if end is not None else [])]
        if len(ids) < 2:
            raise PromptError("a text is empty for this tokenizer: remove empty texts")
        if len(ids) > language.context:
            raise PromptError(f"a text has more tokens than the {language.context} that the model takes: cut it first")
        rows.append(ids)
        first.append(max(1, len(context)))
    return {**padded(rows), "first": torch.tensor(first)}


def text_losses(language: LanguageModel, template: str | Template | None, data: Any) -> NDArray[np.float64]:
    """The mean loss per token of each text, as a model that continues text learns it.

    The exponential of their mean is a perplexity. ``template`` is the one that the model was tuned with.
    """
    rows = unlabelled(language, Template.of(template) if template is not None else None, data)
    lengths = rows["attention_mask"].sum(1)
    found = torch.zeros(len(lengths), dtype=torch.float64)
    for part in lengths.argsort(stable=True).split(max(1, language.batch_size // 4)):
        longest = int(lengths[part].max())
        batch = {k: (v[part][:, :longest] if v.dim() == 2 else v[part]).to(language.device) for k, v in rows.items()}
        with torch.no_grad():
            found[part] = TextLoss()(language.model, batch).double().cpu()
    return np.asarray(found.numpy(), dtype=np.float64)
