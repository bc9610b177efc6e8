"""What can go wrong with a prompt, a label word, a model or an endpoint?"""

from __future__ import annotations


class PromptError(ValueError):
    """A template, verbaliser, prompt or data set cannot be used. The message says what to do."""


class LanguageModelError(PromptError):
    """A language model cannot be found, read or used."""


class EndpointError(RuntimeError):
    """An endpoint did not answer after every attempt, or its answer cannot be used."""
