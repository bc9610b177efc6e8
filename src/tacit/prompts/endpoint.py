"""How is a language model asked over HTTP, without its weights? Label words are scored by log-probabilities.

:class:`Endpoint` speaks the completions and chat protocol that OpenAI's API and most servers of open models share. A
passing failure (no connection, a timeout, 429, 5xx) is tried again with longer and longer pauses; any other is an error
at once. No message repeats a prompt, because prompts may hold private text.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.prompts.errors import EndpointError
from tacit.prompts.text import Example, Template, Verbalizer

#: Answers that a later attempt may change.
_LATER = (408, 409, 425, 429, 500, 502, 503, 504, 529)

WHERE_THE_KEY_IS = "set the variable OPENAI_API_KEY, or pass key="


class Endpoint:
    """A language model behind a URL, asked for the next word.

    Guarantee:
        None by itself: every prompt, with its demonstrations, is sent to the server. Whoever runs it sees them.

    Args:
        url: The address up to the version, such as ``http://localhost:8000/v1``, without user, password or key.
        model: The name of the model at the server.
        way: ``"completions"`` or ``"chat"``.
        top: How many of the likeliest next tokens to ask for. A label word that is not among them counts as half as
            likely as the least likely of them.
        key: The key that is sent as a bearer token. None takes the variable ``OPENAI_API_KEY``.
        timeout: Seconds to wait for one answer.
        attempts: How often a request is tried in all.
        pause: Seconds before the second attempt; each further pause is twice as long.
        parallel: How many requests go on at once.

    Raises:
        EndpointError: If ``url``, ``way`` or the key cannot be used.

    Example:
        >>> Endpoint("http://localhost:8000/v1", "my-model", way="chat")
        Endpoint('http://localhost:8000/v1', 'my-model')
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        way: str = "completions",
        top: int = 20,
        key: str | None = None,
        timeout: float = 60.0,
        attempts: int = 6,
        pause: float = 1.0,
        parallel: int = 4,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise EndpointError(f"url must begin with http:// or https://, unlike {url!r}")
        if "@" in url or "?" in url:  # the address is written down and shown; the key is not
            raise EndpointError(f"url must hold no user, password or key: {WHERE_THE_KEY_IS}")
        if way not in ("completions", "chat"):
            raise EndpointError(f"way must be 'completions' or 'chat', not {way!r}")
        self.url, self.name, self.way, self.top = url.rstrip("/"), model, way, top
        self._key = key if key is not None else os.environ.get("OPENAI_API_KEY", "")
        if not (self._key.isascii() and self._key.isprintable()):  # a header's error would show it
            raise EndpointError(
                f"the key of the endpoint holds a line break or another character that no key has: {WHERE_THE_KEY_IS}"
            )
        self.timeout, self.attempts, self.pause, self.parallel = timeout, attempts, pause, parallel

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, {self.name!r})"

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

        Raises:
            EndpointError: If the template has ``{mask}``, or if the server gives no usable answer.
        """
        if template.masked:
            raise EndpointError("an endpoint continues text: end the template where the label word goes, no {mask}")
        before = template.prefix(verbalizer.demonstrations(demonstrations))
        words = list(verbalizer.words.values())

        def one(text: str) -> list[float]:
            return _scores(self.next_tokens(before + template.query(text)), words, first_token=verbalizer.first_token)

        with concurrent.futures.ThreadPoolExecutor(self.parallel) as pool:
            found = list(pool.map(one, texts))
        return np.asarray(found, dtype=np.float64).reshape(len(found), len(words))

    def next_tokens(self, prompt: str) -> dict[str, float]:
        """Ask for the likeliest next tokens.

        Args:
            prompt: The whole text to continue.

        Returns:
            The tokens with their log-probabilities.

        Raises:
            EndpointError: If the server gives no usable answer.
        """
        if self.way == "completions":
            body = {"model": self.name, "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": self.top}
            found = self._post("/completions", body)
        else:
            body = {
                "model": self.name,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": self.top,
            }
            found = self._post("/chat/completions", body)
        try:
            answer = found["choices"][0]["logprobs"]
            if self.way == "completions":
                return {str(token): float(value) for token, value in answer["top_logprobs"][0].items()}
            return {str(t["token"]): float(t["logprob"]) for t in answer["content"][0]["top_logprobs"]}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise EndpointError(
                f"{self.url} answered without log-probabilities of the next token, and label words cannot be scored "
                "without them: use a server or model that returns them"
            ) from None

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        trouble = ""
        for attempt in range(self.attempts):
            wait = self.pause * 2**attempt
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    found = json.loads(answer.read())
                    if not isinstance(found, dict):
                        raise EndpointError(f"{self.url} answered something other than a JSON object")
                    return found
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in _LATER:
                        raise EndpointError(f"{self.url}{path} answered {error.code} {error.reason}") from None
                    trouble = f"{error.code} {error.reason}"
                    wait = max(wait, _seconds(error.headers.get("Retry-After")))
            except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
                trouble = str(getattr(error, "reason", "") or error or type(error).__name__)
            except json.JSONDecodeError:
                trouble = "an answer that is not JSON"
            if attempt + 1 < self.attempts:
                time.sleep(wait)
        raise EndpointError(
            f"{self.url}{path} gave no usable answer in {self.attempts} attempts; the last trouble was: {trouble}. "
            "Votes in a checkpoint are kept: run again to go on. Nothing was charged"
        )


def _seconds(value: str | None) -> float:
    try:
        return min(float(value or 0), 60.0)
    except ValueError:
        return 0.0


def _scores(tokens: dict[str, float], words: Sequence[str], *, first_token: bool) -> list[float]:
    """The log-probability of each word; forms that differ in the space before them add up.

    >>> [round(x, 3) for x in _scores({" good": -1.0, "good": -3.0, " the": -4.0}, ["good", "bad"], first_token=False)]
    [-0.873, -4.693]
    """
    least = min(tokens.values(), default=0.0) - math.log(2)
    found = []
    for word in words:
        mine = []
        for token, value in tokens.items():
            bare = token.strip().removeprefix("Ġ").removeprefix("▁")
            if bare == word or (first_token and bare and word.startswith(bare)):
                mine.append(value)
        found.append(float(np.logaddexp.reduce(mine)) if mine else least)
    return found
