"""What a run is asked for can be said in keywords or in values: the same run, and no two ways to say one thing."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
import torch
from torch import nn

from tacit import sgd
from tacit.sgd import (
    AdaptiveClipping,
    Charging,
    Execution,
    GradientClipping,
    Persistence,
    PrivacyTarget,
    Sampling,
    Training,
    fit,
)
from tacit.sgd.training.canaries import AuditedTraining, Canaries
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
    with pytest.raises(TypeError, match="two Sampling values"):
        make(Sampling(batch_size=10, steps=3), Sampling(batch_size=20, steps=3), epsilon=2.0, delta=1e-4)
    with pytest.raises(TypeError, match="values of PrivacyTarget, Sampling"):
        make(10, steps=3, epsilon=2.0, delta=1e-4)


def test_a_typing_error_is_answered_with_the_right_word():
    with pytest.raises(TypeError, match="no keyword 'noise_multiplyer': did you mean 'noise_multiplier'"):
        make(batch_size=10, steps=3, noise_multiplyer=1.0, delta=1e-4)
    with pytest.raises(TypeError, match="batch_size= is missing"):
        make(steps=3, epsilon=1.0, delta=1e-4)


def test_ids_in_the_place_of_the_word_are_told_where_they_belong():
    with pytest.raises(TypeError, match="ids, one per record, are groups="):
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
            for thing in (kind, Training, fit):
                assert f"\n    {field.name}: " in inspect.cleandoc(thing.__doc__), field.name


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


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: PrivacyTarget(epsilon=1.0, delta=1e-5, mechanism="gauss"), "'gaussian' or 'laplace', not 'gauss'"),
        (lambda: PrivacyTarget(epsilon=1.0, delta=1e-5, adjacency="add"), "unknown adjacency 'add'"),
        (lambda: Sampling(batch_size=10, steps=1, sampler="poison"), "there is no sampler 'poison'"),
        (lambda: Sampling(batch_size=10, steps=1, sampler=3), "a name or a Sampler"),
        (lambda: Sampling(batch_size=0, steps=1), "^batch_size .* positive whole number"),
        (lambda: Sampling(batch_size=10, steps=1, max_batch=20), "max_batch .* sampler='truncated'"),
        (lambda: Sampling(batch_size=10, steps=1, size=2.5), "^size .* positive whole number"),
        (lambda: GradientClipping(clipping="flatt"), "clipping must be 'flat'"),
        (lambda: GradientClipping(clip_norm=0), "clip_norm must be positive"),
        (lambda: GradientClipping(adaptive=True), "adaptive must be an AdaptiveClipping"),
        (lambda: Execution(check="sometimes"), "check must be 'first'"),
        (lambda: Execution(check=0), "needs a positive number"),
        (lambda: Execution(method="operation"), "method must be 'operations'"),
        (lambda: Execution(compile="fast"), "compile must be True"),
        (lambda: Execution(distributed="no"), "distributed must be True"),
        (lambda: Persistence(key=b"secret"), "key must be a tacit.noise.Key"),
        (lambda: Charging(ledger="my.db", dataset="people"), "ledger must be a tacit.Ledger"),
    ],
)
def test_a_wrong_word_is_refused_where_the_value_is_made(wrong, words):
    with pytest.raises((ValueError, TypeError), match=words):
        wrong()


def test_numbers_out_of_numpy_are_the_numbers_they_are(tmp_path):
    plain = {"batch_size": 10, "steps": 3, "epsilon": 2.0, "delta": 2.0**-13, "clip_norm": 0.5, "size": 50}
    plain |= {"physical_batch": 5, "checkpoint_every": 1, "max_rows": 1, "check": 2}
    ours = [(np.int64 if isinstance(value, int) else np.float32)(value) for value in plain.values()]
    theirs = make(**dict(zip(plain, ours, strict=True)), ema=np.float32(0.5), checkpoint=tmp_path / "run")
    assert theirs.plan.digest() == make(**plain).plan.digest()
    for batch in theirs:
        theirs.step(batch)
        break
    again = make(**plain, ema=0.5, checkpoint=tmp_path / "run")  # nothing of numpy is in the checkpoint
    assert again.steps_executed == 1
    more = {"batch_size": 10, "epochs": np.int64(1), "noise_multiplier": np.float32(1.5), "delta": np.float64(1e-4)}
    assert make(**more, adaptive=AdaptiveClipping(np.float32(0.5), np.float64(0.25), np.float32(4))).plan.digest()
    assert make(**more, clipping={"*": np.float32(1.0)}).plan.digest()
    assert Canaries.of(np.int64(2)).count == 2


@pytest.mark.parametrize("name", ["batch_size", "steps", "max_rows", "size", "checkpoint_every", "physical_batch"])
@pytest.mark.parametrize("truth", [True, np.True_], ids=["python", "numpy"])
def test_true_is_no_number(name, truth):
    with pytest.raises(ValueError, match=f"{name} .* positive whole number, not True"):
        make(**{"batch_size": 10, "steps": 3, "epsilon": 2.0, "delta": 1e-4} | {name: truth})
