"""How do I adapt a language model privately? Soft prompts, LoRA, and prompts made from teachers' noisy votes.

:func:`tune` trains a soft prompt, a prefix or LoRA with DP-SGD and needs the model's weights. :class:`PromptTeachers`
needs only answers: prompted teachers vote on public text, an aggregator of :mod:`tacit.pate` releases noisy labels, and
:func:`choose` builds a student prompt from them. :func:`load` finds a model; :class:`Endpoint` talks to one over HTTP.
"""

from __future__ import annotations

from tacit.prompts.endpoint import Endpoint
from tacit.prompts.errors import EndpointError, LanguageModelError, PromptError
from tacit.prompts.models import LanguageModel, Scorer, load
from tacit.prompts.students import Accuracy, Prompt, calibrated, choose
from tacit.prompts.teachers import PromptTeachers
from tacit.prompts.text import Template, Verbalizer
from tacit.prompts.tuning import Tuned, tune

__all__ = [
    "Accuracy",
    "Endpoint",
    "EndpointError",
    "LanguageModel",
    "LanguageModelError",
    "Prompt",
    "PromptError",
    "PromptTeachers",
    "Scorer",
    "Template",
    "Tuned",
    "Verbalizer",
    "calibrated",
    "choose",
    "load",
    "tune",
]
