"""What can go wrong with a prompt, a label word, a model or an endpoint?"""

from __future__ import annotations


class PromptError(ValueError):
    """A template, verbaliser, prompt or data set that cannot be used; the message says what to do."""


class LanguageModelError(PromptError):
    """A language model that cannot be found, read or used."""


class EndpointError(RuntimeError):
    """An endpoint that did not answer after every attempt, or answered what cannot be used."""
