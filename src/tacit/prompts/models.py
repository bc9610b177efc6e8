"""Which language model answers, and how likely does it find each label word?

:func:`load` takes a folder, a name on the Hugging Face hub, or ``"smollm2"``, the small real model that
``tacit data get smollm2`` fetches. :class:`LanguageModel` scores label words with it. Texts are padded on the right,
only the place of the label goes through the output layer, and a prefix of demonstrations is encoded once.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.prompts import gguf
from tacit.prompts.errors import LanguageModelError, PromptError
from tacit.prompts.text import Example, Template, Verbalizer

#: Up to how many tokens of demonstrations as many queries as the batch size go behind.
PREFIX = 128
#: About how many texts of like length run behind each of several prompts in one pass.
TEXTS = 64
#: Meaningless contents, over which a prompt's own bias is averaged (Zhao et al. 2021, "Calibrate Before Use").
NEUTRAL = ("N/A", "", "[MASK]")


class Scorer(Protocol):
    """What teachers and students need of a model: log-probabilities of label words.

    :class:`LanguageModel` and :class:`Endpoint` are scorers. Any object with this method is one.

    Raises:
        TypeError: If you call the class itself: it is a protocol and has no instances.

    Example:
        >>> class Coin:
        ...     def log_probabilities(self, template, verbalizer, texts, demonstrations=()):
        ...         return np.log(np.full((len(texts), len(verbalizer.classes)), 0.5))
        >>> Coin().log_probabilities(None, Verbalizer.of(["no", "yes"]), ["a", "b"]).shape
        (2, 2)
    """

    def log_probabilities(
        self,
        template: Template,
        verbalizer: Verbalizer,
        texts: Sequence[str],
        demonstrations: Sequence[Example] = (),
    ) -> NDArray[np.float64]:
        """Score each class by the log-probability of its word as the next one.

        Args:
            template: How a text is asked about.
            verbalizer: The classes and their words.
            texts: The texts, one query each.
            demonstrations: Labelled texts that stand before each query.

        Returns:
            One row per text, one column per class.
        """
        ...


def optional(module: str) -> Any:
    """Import a module of the extra, or raise an error that says how to install it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LanguageModelError(
            f"private prompts need the package {module} ({error}): pip install 'tacit[prompts]'. "
            "See: tacit explain missing-extra"
        ) from error


# -- the place of the label --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def only_at(model: Any, places: Tensor, length: int) -> Iterator[None]:
    """For one pass, send only each example's own place through the output layer.

    ``places`` counts from the first of the ``length`` tokens that were passed in; virtual tokens in front are skipped.
    A vocabulary is large: without this the output layer would cost more memory than the model. That layer is computed
    in float32: the logits of a bfloat16 model lie so far apart that label words would often tie.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise LanguageModelError(
            f"{type(model).__name__} has no output layer over the vocabulary: load a causal or masked language model"
        )

    def gather(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0]
        at = places + (hidden.shape[1] - length)
        index = at.view(-1, 1, 1).expand(-1, 1, hidden.shape[2])
        return (hidden.gather(1, index), *args[1:])

    def finely(module: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        bias = None if module.bias is None else module.bias.float()
        return nn.functional.linear(args[0].float(), module.weight.float(), bias)

    handles = [head.register_forward_pre_hook(gather)]
    if type(head) is nn.Linear and head.weight.dtype in (torch.bfloat16, torch.float16):
        handles.append(head.register_forward_hook(finely))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def label_logits(model: nn.Module, batch: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The logits of the label words at each example's label place: one row an example, one column a class."""
    ids, mask, at = batch["input_ids"], batch["attention_mask"], batch["at"]
    extra = {} if _masked(model) else {"use_cache": False}
    with only_at(model, at, ids.shape[1]):
        logits: Tensor = model(input_ids=ids, attention_mask=mask, **extra).logits
    return logits[:, 0].index_select(1, tokens)


def _cut(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The batch without the columns that are padding for all of its examples."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    longest = min(-(-int(mask.sum(1).max()) // 8) * 8, ids.shape[1])
    return ids[:, :longest], mask[:, :longest], batch["at"]


def _masked(model: Any) -> bool:
    names = getattr(model.config, "architectures", None) or [type(model).__name__]
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return any("MaskedLM" in name for name in [type(inner).__name__, *map(str, names)])


# -- a model on this machine -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Prefix:
    """Demonstrations as tokens and, for a causal model, their keys and values in every layer."""

    ids: tuple[int, ...]
    cache: Any = None


class LanguageModel:
    """A causal or masked language model of ``transformers`` that scores label words.

    Args:
        model: The model. It is put in evaluation mode.
        tokenizer: Its tokenizer.
        batch_size: How many queries are scored at a time.

    Raises:
        LanguageModelError: If the tokenizer is missing.

    Example:
        See ``examples/private_prompt.py``, which makes one from random weights; :func:`load` makes one from a file.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, *, batch_size: int = 64) -> None:
        if tokenizer is None:
            raise LanguageModelError("give the model's tokenizer too, such as AutoTokenizer.from_pretrained(...)")
        self.model, self.tokenizer, self.batch_size = model.eval(), tokenizer, batch_size
        self.masked = _masked(model)
        self._encoded: tuple[Any, dict[str, Tensor]] | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def context(self) -> int:
        """The most tokens that the model takes, minus the virtual tokens of an adapter."""
        config = self.model.config
        found = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
        most = min((n for n in found if isinstance(n, int) and n > 0), default=1 << 30)
        if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
            most -= 2  # their positions begin after the padding index
        adapter = getattr(self.model, "active_peft_config", None)
        virtual = getattr(adapter, "num_virtual_tokens", 0) if adapter is not None else 0
        return most - int(virtual or 0)

    def check(self, template: Template, verbalizer: Verbalizer) -> list[int]:
        """Find the tokens of the label words, and refuse a template that this model cannot answer.

        Args:
            template: How a text is asked about.
            verbalizer: The classes and their words.

        Returns:
            One token id per class.

        Raises:
            PromptError: If ``{mask}`` is missing for a masked model or present for another, or if a label word is not
                one token.
        """
        if self.masked != template.masked:
            raise PromptError(
                "this is a masked language model: the template needs {mask} where the label word goes"
                if self.masked
                else "this model continues text: end the template where the label word goes, without {mask}"
            )
        return verbalizer.tokens(self.tokenizer, template)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def front(self) -> list[int]:
        """The tokens that this tokenizer puts before every text, such as the beginning-of-sequence token."""
        plain, dressed = self._ids("a"), list(self.tokenizer("a")["input_ids"])
        return dressed[: dressed.index(plain[0])] if plain and plain[0] in dressed else []

    def prefix_ids(self, template: Template, verbalizer: Verbalizer, demonstrations: Sequence[Example]) -> list[int]:
        """Encode what stands before the query.

        Args:
            template: How a text is asked about.
            verbalizer: The classes and their words.
            demonstrations: Labelled texts that stand before the query.

        Returns:
            Token ids, with those that the tokenizer puts before every text.
        """
        return self.front() + self._ids(template.prefix(verbalizer.demonstrations(demonstrations)))

    def encode(
        self, template: Template, texts: Sequence[str], before: Sequence[int] = (), taken: int = 0
    ) -> dict[str, Tensor]:
        """Encode queries as right-padded tokens, with the place of each one's label.

        Args:
            template: How a text is asked about.
            texts: The texts, one query each.
            before: Token ids that come first in each query.
            taken: How many places of the context are used already.

        Returns:
            Tensors ``input_ids``, ``attention_mask`` and ``at``, the place from which the label is read.

        Raises:
            PromptError: If a prompt is longer than the model's context (it is not cut), or if a text contains the
                model's mask token.
        """
        asked = (template, tuple(texts), tuple(before))
        if self._encoded is not None and self._encoded[0] == asked:  # the same queries behind another prefix
            self._fits(self._encoded[1]["attention_mask"].shape[1] + taken)
            return dict(self._encoded[1])
        rows, places = [], []
        mask = getattr(self.tokenizer, "mask_token", None) or ""
        for text in texts:
            if self.masked:
                rows_ids = [*before, *self._ids(template.query(text, mask)), *self._back()]
                if rows_ids.count(self.tokenizer.mask_token_id) != 1:
                    raise PromptError(
                        "a text contains the model's mask token, so the label would have two places: remove it"
                    )
                places.append(rows_ids.index(self.tokenizer.mask_token_id))
            else:
                rows_ids = [*before, *self._ids(template.query(text))]
                places.append(len(rows_ids) - 1)
            self._fits(len(rows_ids) + taken)
            rows.append(rows_ids)
        found = {**padded(rows), "at": torch.tensor(places)}
        self._encoded = (asked, found)
        return dict(found)

    def _fits(self, length: int) -> None:
        if length > self.context:
            raise PromptError(
                f"a prompt has more tokens than the {self.context} that the model takes: use fewer or shorter "
                "demonstrations, a shorter instruction, or cut long texts first"
            )

    def _back(self) -> list[int]:
        dressed = list(self.tokenizer("a")["input_ids"])
        plain = self._ids("a")
        return dressed[dressed.index(plain[-1]) + 1 :] if plain and plain[-1] in dressed else []

    def prefix(self, template: Template, verbalizer: Verbalizer, demonstrations: Sequence[Example] = ()) -> Prefix:
        """Encode a prefix once; its keys and values serve every query.

        Args:
            template: How a text is asked about.
            verbalizer: The classes and their words.
            demonstrations: Labelled texts that stand before the query.

        Returns:
            The tokens and, for a causal model without an adapter, their keys and values.

        Raises:
            PromptError: If the demonstrations alone are longer than the model's context.
        """
        ids = self.prefix_ids(template, verbalizer, demonstrations)
        if len(ids) > self.context:
            raise PromptError(
                f"the demonstrations have more tokens than the {self.context} that the model takes: use fewer of them, "
                "or shorter ones"
            )
        if self.masked or not ids or hasattr(self.model, "peft_config"):
            return Prefix(tuple(ids))
        row = torch.tensor([ids], device=self.device)
        with torch.no_grad():
            found = self.model(input_ids=row, use_cache=True, **_few_logits(self.model))
        return Prefix(tuple(ids), found.past_key_values)

    def log_probabilities(
        self,
        template: Template,
        verbalizer: Verbalizer,
        texts: Sequence[str],
        demonstrations: Sequence[Example] = (),
        *,
        cached: bool = True,
    ) -> NDArray[np.float64]:
        """Score each class by the log-probability of its word at the label's place.

        Args:
            template: How a text is asked about.
            verbalizer: The classes and their words.
            texts: The texts, one query each.
            demonstrations: Labelled texts that stand before each query.
            cached: Whether the prefix is encoded once. False runs it again for every query.

        Returns:
            One row per text, one column per class.
        """
        tokens = torch.tensor(self.check(template, verbalizer), device=self.device)
        if cached:
            prefix = self.prefix(template, verbalizer, demonstrations)
        else:
            prefix = Prefix(tuple(self.prefix_ids(template, verbalizer, demonstrations)))
        return self.score(template, texts, prefix, tokens)

    def log_probabilities_of(
        self,
        template: Template,
        verbalizer: Verbalizer,
        texts: Sequence[str],
        prompts: Sequence[Sequence[Example]],
    ) -> NDArray[np.float64]:
        """Score the classes behind many prompts at once.

        If ``batch_size`` allows it, several prompts share a pass: their prefixes are encoded together and all texts run
        behind each of them. On a GPU, where a small pass takes as long as a large one, this is many times faster.

        Args:
            template: How a text is asked about.
            verbalizer: The classes and their words.
            texts: The texts, one query each.
            prompts: One list of demonstrations per prompt.

        Returns:
            Log-probabilities by prompt, text and class.
        """
        tokens = torch.tensor(self.check(template, verbalizer), device=self.device)
        found = np.zeros((len(prompts), len(texts), len(tokens)))
        ids = [self.prefix_ids(template, verbalizer, shown) for shown in prompts]
        shared = self._shared()
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # like lengths together: less padding
        count = -(-len(texts) // TEXTS) if shared and self.batch_size >= 2 * TEXTS else 1
        for part in np.array_split(np.array(by_length, dtype=np.int64), max(1, count)):
            some = [texts[i] for i in part]
            room = self.batch_size // max(1, len(some)) if shared else 0
            waiting = sorted(range(len(prompts)), key=lambda i: -len(ids[i]))
            while waiting:
                # A pass holds batch_size queries behind prefixes of ordinary length, fewer behind long ones.
                size = max(1, min(room, room * PREFIX // max(1, len(ids[waiting[0]]))))
                group, waiting = waiting[:size], waiting[size:]
                if len(group) > 1 and ids[group[-1]]:
                    scores = self._score_together(template, some, [ids[i] for i in group], tokens)
                    found[np.array(group)[:, None], part] = scores
                    continue
                for i in group:
                    found[i, part] = self.score(template, some, self.prefix(template, verbalizer, prompts[i]), tokens)
        return found

    def _shared(self) -> bool:
        """Whether prefixes of different lengths can run together: the model must take positions."""
        import inspect

        if self.masked or hasattr(self.model, "peft_config"):
            return False
        return "position_ids" in inspect.signature(self.model.forward).parameters

    def _score_together(
        self, template: Template, texts: Sequence[str], prefixes: list[list[int]], tokens: Tensor
    ) -> NDArray[np.float64]:
        """Scores behind each of several prefixes. Prefixes are padded on the right; masks and positions skip that."""
        longest = max(map(len, prefixes))
        batch = {k: v.to(self.device) for k, v in self.encode(template, texts, (), longest).items()}
        ids, mask, at = _cut(batch)
        before = {k: v.to(self.device) for k, v in padded(prefixes).items()}
        many, count = len(prefixes), len(texts)
        lengths = before["attention_mask"].sum(1).repeat_interleave(count)
        positions = lengths.view(-1, 1) + torch.arange(ids.shape[1], device=self.device)
        with torch.no_grad():
            cache = self.model(**before, use_cache=True, **_few_logits(self.model)).past_key_values
            cache.batch_repeat_interleave(count)
            whole = torch.cat([before["attention_mask"].repeat_interleave(count, 0), mask.repeat(many, 1)], 1)
            with only_at(self.model, at.repeat(many), ids.shape[1]):
                logits = self.model(
                    input_ids=ids.repeat(many, 1),
                    attention_mask=whole,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                ).logits[:, 0]
        scores = logits.float().log_softmax(1)[:, tokens].double().cpu()
        return np.asarray(scores.view(many, count, -1).numpy(), dtype=np.float64)

    def score(self, template: Template, texts: Sequence[str], prefix: Prefix, tokens: Tensor) -> NDArray[np.float64]:
        """Score tokens at the label's place of each text, behind an encoded prefix.

        Args:
            template: How a text is asked about.
            texts: The texts, one query each.
            prefix: What :meth:`prefix` returned.
            tokens: The token ids to score, on the model's device.

        Returns:
            Log-probabilities: one row per text, one column per token.
        """
        held = len(prefix.ids) if prefix.cache is not None else 0
        batch = self.encode(template, texts, () if held else prefix.ids, held)
        lengths = batch["attention_mask"].sum(1)
        order = lengths.argsort(stable=True)  # like lengths together: less padding
        found = torch.zeros(len(texts), len(tokens), dtype=torch.float64)
        expanded: Any = None
        width = 0
        size = self.batch_size if held <= PREFIX else max(1, self.batch_size * PREFIX // held)
        for rows in order.split(size):
            part = {k: v[rows].to(self.device) for k, v in batch.items()}
            ids, mask, at = _cut(part)
            more: dict[str, Any] = {} if self.masked else {"use_cache": bool(held)}
            if held:
                if width != len(rows):
                    expanded, width = copy.deepcopy(prefix.cache), len(rows)
                    expanded.batch_repeat_interleave(width)
                mask = torch.cat([mask.new_ones(width, held), mask], 1)
                more["past_key_values"] = expanded
            with torch.no_grad(), only_at(self.model, at, ids.shape[1]):
                logits = self.model(input_ids=ids, attention_mask=mask, **more).logits[:, 0]
            if held:
                expanded.crop(-ids.shape[1])
            found[rows] = logits.float().log_softmax(1)[:, tokens].double().cpu()
        return np.asarray(found.numpy(), dtype=np.float64)


def _few_logits(model: nn.Module) -> dict[str, Any]:
    """Ask for the last logits alone, where the model can leave the others out."""
    import inspect

    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def padded(rows: Sequence[Sequence[int]], pad: int = 0) -> dict[str, Tensor]:
    """Fill rows of tokens up on the right, with a mask that says which are real.

    >>> padded([[5, 6], [7]])["attention_mask"]
    tensor([[1, 1],
            [1, 0]])
    """
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), pad)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def as_scorer(model: Any, tokenizer: Any = None) -> Scorer:
    """A scorer from itself, or from a model of ``transformers`` with its tokenizer."""
    if hasattr(model, "log_probabilities"):
        scorer: Scorer = model
        return scorer
    if tokenizer is None and bool(getattr(model, "name_or_path", None)):
        try:
            tokenizer = optional("transformers").AutoTokenizer.from_pretrained(model.name_or_path)
        except (OSError, ValueError):
            tokenizer = None
    return LanguageModel(model, tokenizer)


def scores_of(
    model: Scorer,
    template: Template,
    verbalizer: Verbalizer,
    texts: Sequence[str],
    prompts: Sequence[Sequence[Example]],
) -> NDArray[np.float64]:
    """Log-probabilities behind many prompts: together where the model can, one prompt after the other elsewhere."""
    if hasattr(model, "log_probabilities_of"):
        return np.asarray(model.log_probabilities_of(template, verbalizer, texts, prompts), dtype=np.float64)
    return np.stack([model.log_probabilities(template, verbalizer, texts, shown) for shown in prompts])


def calibration(
    model: Scorer, template: Template, verbalizer: Verbalizer, demonstrations: Sequence[Example] = ()
) -> NDArray[np.float64]:
    """What a prompt answers when it is asked about nothing: mean log-probabilities over meaningless contents.

    Subtracting it from the scores is contextual calibration (Zhao et al. 2021). It uses no data but the prompt's own.
    """
    scores = model.log_probabilities(template, verbalizer, NEUTRAL, demonstrations)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return np.asarray(np.log(np.maximum(shares.mean(0), 1e-12)), dtype=np.float64)


# -- finding one -------------------------------------------------------------------------------------------------------


def load(
    name: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    batch_size: int = 64,
    data_dir: str | Path | None = None,
    download: bool = False,
) -> LanguageModel:
    """Load a language model and its tokenizer.

    Args:
        name: A folder that ``save_pretrained`` wrote, a folder with a GGUF file next to ``config.json`` and
            ``tokenizer.json``, a name on the Hugging Face hub, or ``"smollm2"``.
        device: Where to put the model.
        dtype: The type of its weights.
        batch_size: How many queries are scored at a time.
        data_dir: Where to look for ``smollm2`` first; None looks where data sets are.
        download: Whether to download ``smollm2`` if it is not there (93 MB, checked).

    Returns:
        The model, ready to score label words.

    Raises:
        LanguageModelError: If the model or its tokenizer cannot be found or read.

    Example:
        See ``examples/private_prompt.py``.
    """
    transformers = optional("transformers")
    path = Path(name).expanduser()
    if str(name) == "smollm2":
        path = _smollm2(data_dir, download=download)
    if path.is_dir():
        file = gguf.find(path)
        if file is not None and (path / "config.json").exists():
            model = gguf.load(file, path, dtype)
        else:
            model = _pretrained(transformers, str(path), dtype)
    elif str(name) != "smollm2" and ("/" in str(name) or "." not in str(name)) and not path.exists():
        model, path = _pretrained(transformers, str(name), dtype), Path(str(name))
    else:
        raise LanguageModelError(
            f"{name} is neither a folder with a model nor the name of a model on the hub (tacit data get smollm2 "
            "fetches a small one)"
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        raise LanguageModelError(f"the tokenizer of {name} cannot be read: {_first(error)}") from error
    return LanguageModel(model.to(device), tokenizer, batch_size=batch_size)


def _pretrained(transformers: Any, name: str, dtype: torch.dtype) -> Any:
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        masked = any("MaskedLM" in str(n) for n in getattr(config, "architectures", None) or [])
        kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
        return kind.from_pretrained(name, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise LanguageModelError(
            f"no language model could be loaded from {name!r}: {_first(error)}. Give a folder that save_pretrained "
            "wrote, a name on the hub, or smollm2 (tacit data get smollm2)"
        ) from error


def _first(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _smollm2(data_dir: str | Path | None, *, download: bool) -> Path:
    """The folder of SmolLM2's weights, config and tokenizer; the last two are made once from the file's metadata."""
    from tacit.datasets.catalog import MODELS
    from tacit.datasets.errors import DatasetError
    from tacit.datasets.locate import cache_folder, obtain, search_folders

    for folder in search_folders(data_dir):
        ready = folder / "models" / "smollm2"
        if (ready / "config.json").exists() and (ready / "tokenizer.json").exists() and gguf.find(ready):
            return ready
    try:
        found = obtain(MODELS["smollm2"], data_dir, download=download)
    except DatasetError as error:
        raise LanguageModelError(f"tacit data get smollm2 fetches the model. {error}") from error
    target = cache_folder() / "models" / "smollm2"
    return prepare(found.paths[0], target)


def prepare(file: Path, target: Path) -> Path:
    """Put a GGUF file with its config and tokenizer into ``target``, as :func:`load` wants them.

    The weights are linked, not copied, if the file system allows it.
    """
    transformers = optional("transformers")
    try:
        import gguf as _  # noqa: F401  the tokenizer is in the file's metadata, which transformers reads with it
    except ImportError as error:
        raise LanguageModelError(
            "reading the tokenizer of a GGUF file needs the package gguf: pip install gguf. "
            "See: tacit explain missing-extra"
        ) from error
    target.mkdir(parents=True, exist_ok=True)
    config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = ["LlamaForCausalLM"]
    tokenizer.save_pretrained(target)
    config.save_pretrained(target)
    place = target / file.name
    if not place.exists():
        try:
            place.symlink_to(file.resolve())
        except OSError:
            shutil.copyfile(file, place)
    return target
