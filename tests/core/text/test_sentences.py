"""Every type of event has a plain sentence."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

from tests.core.test_fold import structs
from tolariad.core import messages as m
from tolariad.core import state
from tolariad.core.calc.detection.rules import Finding, Signal
from tolariad.core.messages.sentences.text import SENTENCES, sentence
from tolariad.core.messages.vocabulary import EVENT_TYPES

CHARACTERS_MAX = 150
WORDS_MAX = 25
OUTCOMES = m.Outcome.__subclasses__()
DIGEST = "0123456789abcdef" * 4


def sample(kind: inspect.Type) -> Any:
    """Return a usual value of a field's type; a digest for a hexadecimal text."""
    match kind:
        case inspect.Metadata():
            is_hex = "hexadecimal" in str(kind.extra_json_schema)
            return DIGEST if is_hex else sample(kind.type)
        case inspect.StrType():
            return "body"
        case inspect.IntType():
            return 41
        case inspect.FloatType():
            return 0.123456789
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return b"body"
        case inspect.EnumType():
            return next(iter(kind.cls))
        case inspect.StructType():
            return kind.cls(**{field.name: sample(field.type) for field in kind.fields})
        case inspect.VarTupleType():
            return (sample(kind.item_type),) * 9
        case inspect.DictType():
            return {f"m{n}": sample(kind.value_type) for n in range(9)}
        case inspect.UnionType():
            return sample(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case _:
            raise TypeError(kind)


def samples(kind: type[Any]) -> list[Any]:
    """Return events of a type, so that each of its enumerations has each of its values, and each order its outcome."""
    info = inspect.type_info(kind)
    fields = {field.name: sample(field.type) for field in info.fields}
    found = [kind(**fields), *([kind(**{**fields, "actor": None})] if "actor" in fields else [])]
    for order in m.BOUNDARY_ORDERS if "order" in fields else ():
        for one in samples(order):
            outcomes = [sample(inspect.type_info(each)) for each in OUTCOMES] if "outcome" in fields else [None]
            found += [kind(**{**fields, "order": one} | ({"outcome": each} if each else {})) for each in outcomes]
    for name, value in fields.items():
        if isinstance(value, Enum):
            found += [kind(**{**fields, name: one}) for one in type(value)]
    return found


@pytest.mark.parametrize("name", EVENT_TYPES)
def test_every_type_of_event_has_a_plain_sentence(name):
    """It is short, for people: no digest, no field's name, no template that was not filled in."""
    kind = EVENT_TYPES[name]
    names = {field.name for field in inspect.type_info(kind).fields if "_" in field.name}
    for event in samples(kind):
        words = sentence(event)

        assert re.fullmatch(r"[A-Z][^={}]*\.", words), words
        assert len(words) <= CHARACTERS_MAX, words
        assert all(len(one.split()) <= WORDS_MAX for one in re.split(r"[.:] ", words)), words
        assert not re.search(r"0x|[0-9a-f]{12}|None|Reason|Mode\b\.", words), words
        assert not [one for one in names if one in words], words


def test_the_table_has_exactly_the_types_of_the_vocabulary():
    """A type that is added needs a sentence."""
    assert set(SENTENCES) == set(EVENT_TYPES.values())


@settings(max_examples=60, deadline=None)
@given(st.one_of([structs(kind) for kind in SENTENCES]))
def test_a_sentence_is_one_whatever_its_fields_hold(event):
    """Numbers at the limits of what can be stored, and any texts."""
    words = sentence(event)

    assert words.endswith(".")
    assert words[0].isupper()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            m.OrderGiven(
                order=m.SetRate(group="default", value=0.001),
                actor=m.Actor(uid=1000, program="tolaria", reason="too noisy"),
            ),
            "The learning rate of default becomes 0.001 at the next step, ordered by uid 1000: too noisy.",
        ),
        (
            m.OrderActed(
                order=m.SetRate(group="default", value=0.001, curve=0.003),
                applied_before_step=4812,
                number=1,
                outcome=m.RateSet(before=0.003),
            ),
            "The learning rate of default is 0.001 from step 4812 on (before: 0.003).",
        ),
        (
            m.StopRequested(
                mode=m.StopMode.GRACEFUL, origin=m.Origin.SIGNAL, actor=m.Actor(program="signal", reason="SIGINT")
            ),
            "A stop was ordered by signal: SIGINT.",
        ),
        (m.PauseRequested(actor=m.Actor(uid=0, program="tolaria")), "A pause was ordered by uid 0."),
        (
            m.TrainerDied(
                incarnation=2,
                reason=m.DeathReason.EXCEPTION,
                step=18,
                output="Traceback\n  line\nValueError: no such label: 11\n\n",
                restart_s=1.0,
            ),
            "Trainer 2 died after step 18: ValueError: no such label: 11. The next one starts in 1 s.",
        ),
        (
            m.TrainerDied(
                incarnation=2, reason=m.DeathReason.EXCEPTION, step=18, output="Bad", restart_s=1.0, in_program=True
            ),
            "Trainer 2 died after step 18: Bad. The next start of the program, or the next call of `train`, goes on.",
        ),
        (
            m.TrainerDied(incarnation=1, reason=m.DeathReason.SIGNAL, step=18, signal="SIGKILL", restart_s=0.0),
            "Trainer 1 died after step 18: SIGKILL ended it. The next one starts at once.",
        ),
        (
            m.TrainerDied(incarnation=1, reason=m.DeathReason.SIGNAL, step=18, signal="SIGSEGV"),
            "Trainer 1 died after step 18: SIGSEGV ended it.",
        ),
        (
            m.RerunFinished(first=11, last=18, compared=8),
            "Re-run finished: 8 of 8 re-run steps equal the journal, bit for bit.",
        ),
        (
            m.RerunFinished(
                first=11,
                last=18,
                compared=8,
                first_difference=m.Difference(step=12, field="loss", expected="0x1.8p+0", found="0x1.9p+0", count=7),
            ),
            (
                "Re-run finished: 7 of 8 re-run steps differ from the journal: "
                "the loss of step 12 was 1.5 and is 1.5625."
            ),
        ),
        (
            m.RunFailed(kind=m.FailureKind.TRAINER, why="the trainer died\n  five times."),
            "The run failed: the trainer died five times.",
        ),
        (
            m.InstabilityDetected(
                finding=Finding.SPIKE, signal=Signal.LOSS, value=9.0, baseline=1.5, limit=3.0, step=4, epoch=1, batch=4
            ),
            "The loss rose to 9 at step 4 (usual: 1.5).",
        ),
        (
            m.StepCompleted(step=3, epoch=1, batch=3, loss=0.25, grad_norm=-1.0, lr=0.001, rates=1),
            "Step 3 of epoch 1: loss 0.25, learning rate 0.001.",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Event) else "",
)
def test_a_sentence_names_what_who_and_why(event, words):
    """One for each of those that people ask for most."""
    assert sentence(event) == words


def built(**more):
    """The event of a model that was built."""
    environment = sample(inspect.type_info(m.Environment))
    return m.ExecutionContextRecorded(incarnation=1, environment=environment, hash="ab", parameters=7, **more)


def test_notes_of_the_set_up_are_in_the_sentence_of_the_built_model():
    """Such as those of a task without validation data: also in `tolaria events` and `tolaria why`."""
    event = built(steps_per_epoch=3, notes=("the task has no validation data; epochs end without metrics",))
    assert sentence(event).endswith(" Note: the task has no validation data; epochs end without metrics.")


def test_an_epoch_of_another_length_is_in_the_sentence_of_the_built_model():
    """A loader with batches of another size is no other data, and is accepted."""
    event = built(steps_per_epoch=16, former_steps_per_epoch=32)
    assert "16 steps an epoch" in sentence(event)
    assert sentence(event).endswith(" An epoch had 32 steps before.")
    assert state.is_said(event)
    assert not state.is_said(replace(event, former_steps_per_epoch=0))
