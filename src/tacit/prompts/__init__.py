"""How do I adapt a language model privately? Soft prompts, LoRA, and prompts made from teachers' noisy votes.

:func:`tune` trains a soft prompt, a prefix or LoRA with DP-SGD where the weights are at hand. :class:`PromptTeachers`
and :func:`label` need only answers: an ensemble of prompted teachers votes on public text, and :func:`choose` builds a
student prompt from the noisy labels. :func:`load` finds a model, :class:`Endpoint` talks to one over HTTP.
"""

from __future__ import annotations

from tacit.prompts.errors import EndpointError, ModelError, PromptError
from tacit.prompts.models import LanguageModel, Scorer, load
from tacit.prompts.text import Template, Verbalizer
from tacit.prompts.tuning import Tuned, tune

__all__ = [
    "EndpointError",
    "LanguageModel",
    "ModelError",
    "PromptError",
    "Scorer",
    "Template",
    "Tuned",
    "Verbalizer",
    "load",
    "tune",
]
