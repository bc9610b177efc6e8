"""What a run is asked for can be said in keywords or in values: the same run, and no two ways to say one thing."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from torch import nn

from tacit import sgd
from tacit.sgd import Charging, Execution, GradientClipping, Persistence, PrivacyTarget, Sampling, Training, fit
from tacit.sgd.training.canaries import AuditedTraining
from tacit.sgd.training.config import VALUES, RunSettings, TrainingKeywords

X, Y = torch.zeros(50, 3), torch.zeros(50, dtype=torch.int64)


def make(*values, **keywords):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Training(model, optimizer, nn.CrossEntropyLoss(reduction="none"), (X, Y), *values, **keywords)


def test_values_and_keywords_say_the_same():
    in_words = make(batch_size=10, steps=3, epsilon=2.0, delta=1e-4, clip_norm=0.5)
    in_values = make(
        GradientClipping(clip_norm=0.5), Sampling(batch_size=10, steps=3), PrivacyTarget(epsilon=2.0, delta=1e-4)
    )
    mixed = make(Sampling(batch_size=10, steps=3), epsilon=2.0, delta=1e-4, clip_norm=0.5)
    assert in_words.plan.digest() == in_values.plan.digest() == mixed.plan.digest()


def test_a_value_and_a_keyword_of_its_group_are_refused_even_if_they_agree():
    with pytest.raises(TypeError, match="mechanism= was given beside a PrivacyTarget"):
        make(PrivacyTarget(epsilon=2.0, delta=1e-4), batch_size=10, steps=3, mechanism="gaussian")
    with pytest.raises(TypeError, match="two values of Sampling"):
        make(Sampling(batch_size=10, steps=3), Sampling(batch_size=20, steps=3), epsilon=2.0, delta=1e-4)
    with pytest.raises(TypeError, match="values of PrivacyTarget, Sampling"):
        make(10, steps=3, epsilon=2.0, delta=1e-4)


def test_a_typing_error_is_answered_with_the_right_word():
    with pytest.raises(TypeError, match="no keyword 'noise_multiplyer': did you mean 'noise_multiplier'"):
        make(batch_size=10, steps=3, noise_multiplyer=1.0, delta=1e-4)
    with pytest.raises(TypeError, match="batch_size= is missing"):
        make(steps=3, epsilon=1.0, delta=1e-4)


def test_ids_in_the_place_of_the_word_are_told_where_they_belong():
    with pytest.raises(TypeError, match="ids, one for each record, are groups="):
        make(batch_size=10, steps=3, epsilon=1.0, delta=1e-4, unit=range(50))


@pytest.mark.parametrize("shown", [Training, fit, AuditedTraining])
def test_the_signature_names_every_keyword_with_its_type_and_default(shown):
    parameters = inspect.signature(shown).parameters
    for kind in VALUES:
        for field in dataclasses.fields(kind):
            told = parameters[field.name]
            assert told.kind is told.KEYWORD_ONLY
            assert told.annotation == field.type
            assert told.default is (told.empty if field.default is dataclasses.MISSING else field.default)
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_the_keywords_for_type_checkers_are_the_fields_of_the_values():
    fields = {field.name: field.type for kind in VALUES for field in dataclasses.fields(kind)}
    assert {name: hint.__forward_arg__ for name, hint in TrainingKeywords.__annotations__.items()} == fields


def test_every_keyword_is_described_where_people_look():
    for kind in VALUES:
        assert getattr(sgd, kind.__name__) is kind
        for field in dataclasses.fields(kind):
            assert f"``{field.name}" in kind.__doc__, field.name
            assert f"``{field.name}" in Training.__doc__, field.name


def test_values_are_checked_where_they_are_made():
    for wrong in (
        lambda: Sampling(batch_size=10),
        lambda: Sampling(batch_size=10, steps=0),
        lambda: PrivacyTarget(epsilon=1.0),
        lambda: PrivacyTarget(epsilon=1.0, noise_multiplier=1.0, delta=1e-5),
        lambda: Execution(views=2),
        lambda: Persistence(checkpoint_every=0),
        lambda: Charging(dataset="people"),
        lambda: RunSettings.of(
            [GradientClipping(clipping="per_layer")],
            {"mechanism": "laplace", "epsilon": 1.0, "batch_size": 10, "steps": 1},
        ),
    ):
        with pytest.raises(ValueError, match=r"."):
            wrong()
