"""Steps that are folded many at once give the state of one after the other, bit for bit, in any state of a run."""

from __future__ import annotations

import math
import os
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from journal import Tabulation
from journal.columns import Gathering
from tests.core.simulate import World
from tests.core.test_fold import DISTURBED, any_event, structs
from tolariad.core import messages as m
from tolariad.core import state as state_
from tolariad.core.calc.detection.rules import Finding, Signal
from tolariad.core.calc.steps.many import many_of
from tolariad.core.calc.steps.table import METRIC, STEP_COLUMNS, step_row, steps_in
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import _OF_MANY, FOLDS, RunState, apply_steps, canonical_bytes, fold

SEED = int(os.environ.get("TOLARIA_SEED", "12"))
STRANGE = (math.nan, -math.nan, math.inf, -math.inf, -0.0, 0.0, m.NOT_MEASURED, 5e-324, 1.7976931348623157e308)


class Entry(msgspec.Struct):
    """A journaled event."""

    seq: int
    event: bytes


def replayed(state: RunState, events: list[m.Event]) -> RunState:
    """Fold the events as a reader does, which folds steps in a row at once."""
    entries = [Entry(seq, encode_event(event)) for seq, event in enumerate(events, state.seq + 1)]
    return replay_records(state, entries).state


def number(rng: random.Random) -> float:
    """Any float, mostly a usual one."""
    return rng.choice(STRANGE) if rng.random() < 0.05 else rng.uniform(-3.0, 3.0)


def course(rng: random.Random, count: int, first: int = 1) -> list[m.StepCompleted]:
    """Steps as a run has them, with gaps in time, values that are not finite, and metrics that come and go."""
    made, mono, width = [], rng.choice((0, 10**9)), rng.randrange(3)
    for step in range(first, first + count):
        mono += rng.choice((0, 10**6, 10**6, 10**9))
        width = rng.randrange(4) if rng.random() < 0.01 else width
        made.append(
            m.StepCompleted(
                step=step,
                epoch=1 + step // 100,
                batch=step % 100,
                branch=rng.randrange(2),
                loss=number(rng),
                grad_norm=m.NOT_MEASURED if rng.random() < 0.5 else number(rng),
                lr=number(rng),
                mono=mono,
                wall=mono,
                rates=rng.getrandbits(64),
                data=rng.getrandbits(32),
                metrics=tuple(number(rng) for _ in range(width)),
            )
        )
    return made


def test_the_slices_that_a_step_changes_are_known():
    """A further slice that folds a step needs a fold of many, or a line in `_only_count` if it seldom changes."""
    assert {name for name, _ in FOLDS[m.StepCompleted]} == {*_OF_MANY, "trainer", "insurance"}
    assert m.StepCompleted in state_.CHANGES_OF_SEVERAL, "the Branch at the best validation: `_only_count` asks for it"


def test_a_long_course_in_pieces_of_any_length():
    """Past marks of the digest and windows of the speed, through tables and through events."""
    print(f"TOLARIA_SEED={SEED}")
    rng = random.Random(SEED)
    for start in (RunState(), DISTURBED, fold(RunState(), [m.MetricsNamed(names=("a", "tokens"))])):
        one = many = from_table = start
        steps = course(rng, 2500, start.progress.step + 1)
        while steps:
            size = rng.choice((1, 2, 3, 7, 600, 1500))
            piece, steps = steps[:size], steps[size:]
            one, many = fold(one, piece), apply_steps(many, many_of(piece))
            from_table = apply_steps(from_table, in_table(piece))
            assert canonical_bytes(many) == canonical_bytes(one)
            assert canonical_bytes(from_table) == canonical_bytes(one)


def in_table(steps: list[m.StepCompleted]):
    """Return the steps as a reader gets them from the table of a segment."""
    gathering = Gathering(Tabulation(STEP_COLUMNS, step_row, METRIC))
    gathering.add([encode_event(one) for one in steps], 1, 0)
    return steps_in(gathering.columns().by_name)


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(any_event, max_size=8), st.lists(structs(m.StepCompleted), max_size=6), st.lists(any_event, max_size=3))
def test_steps_of_any_values_after_and_before_any_events(before, steps, after):
    """Sensible or not; the empty list too."""
    for start in (RunState(), DISTURBED):
        state = fold(start, before)
        assert canonical_bytes(apply_steps(state, many_of(steps))) == canonical_bytes(fold(state, steps))
        events = [*steps, *after, *steps]
        assert canonical_bytes(replayed(state, events)) == canonical_bytes(fold(state, events))


@pytest.mark.parametrize("left_by", ["a step", "many steps"])
def test_the_best_validation_within_an_epoch_is_saved_when_training_leaves_its_place(left_by):
    """The Branch there is saved by the step that goes on from it, wherever that is among many."""
    steps = course(random.Random(1), 20)
    best = m.ValidationImproved(epoch=steps[4].epoch, metric="loss", value=1.0, batch=steps[4].batch, step=5)
    cut = 5 if left_by == "a step" else 1
    state = fold(RunState(), [*steps[:cut], best])

    whole = fold(state, steps[cut:])
    assert whole.copies.best_end is not None
    assert canonical_bytes(apply_steps(state, many_of(steps[cut:]))) == canonical_bytes(whole)


def test_steps_that_the_autopilot_watches_are_folded_one_by_one():
    """Its machine keeps the losses of each. A trainer that had died is well again after the first."""
    rise = m.InstabilityDetected(
        finding=Finding.SUSTAINED, signal=Signal.LOSS, value=3.0, baseline=0.5, limit=2.0, step=31, epoch=1, batch=31,
        run_of=20, insured=True,
    )  # fmt: skip
    watched = fold(fold(RunState(), course(random.Random(2), 30)), [rise])
    dying = replace(watched, trainer=replace(watched.trainer, deaths=3, cured=1))
    steps = course(random.Random(3), 40, 31)

    assert not watched.insurance.machine.is_idle
    for state in (watched, dying):
        assert canonical_bytes(apply_steps(state, many_of(steps))) == canonical_bytes(fold(state, steps))


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(40))
def test_a_whole_run_of_disasters_is_folded_to_the_same_state(seed):
    """Every event of the simulated runs, steps in a row at once."""
    world = World(seed)
    world.goes_back = True
    for _ in range(120):
        world.anything()
    assert canonical_bytes(replayed(RunState(), world.events)) == canonical_bytes(fold(RunState(), world.events))
