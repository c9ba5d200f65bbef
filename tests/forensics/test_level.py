"""Loss and norm around an unusual step: when the norm began to climb, when both were back, what was kept."""

from __future__ import annotations

import math

import pytest

from journal.reader import Reader
from tests.forensics.differences.written import events_of_a_run, step_at, write
from tolariad.cli.level_words import level_lines
from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Finding, Signal
from tolariad.forensics.level import Step, level_around
from tolariad.forensics.why import why


def steps(first, losses, norms):
    return [Step(first + n, loss, norm) for n, (loss, norm) in enumerate(zip(losses, norms, strict=True))]


def test_a_climb_and_the_way_back_are_found():
    """BLOOM's spike: a norm of 0.24 that climbs in five steps to 960, and is back 30 steps later."""
    before = steps(1, [2.0] * 100, [0.24] * 95 + [0.6, 2.0, 10.0, 50.0, 300.0])
    after = steps(101, [9.0] * 30 + [2.1] * 50, [100.0] * 30 + [0.25] * 50)
    found = level_around(before, after)

    assert (found.climbs_from, found.back_at, found.loss) == (96, 131, 2.0)
    assert found.grad_norm == 0.24


def test_one_bad_batch_gives_no_warning():
    """The steps before it were as ever, and so are those after it."""
    found = level_around(steps(1, [2.0] * 20, [1.0] * 20), steps(21, [2.0] * 20, [1.0] * 20))

    assert (found.climbs_from, found.back_at) == (None, 21)


def test_what_has_not_come_back_is_said():
    """Nor is a NaN a return, however few values are none."""
    before = steps(1, [2.0] * 20, [1.0] * 20)
    assert level_around(before, steps(21, [math.nan] * 20, [1.0] * 20)).back_at is None
    assert level_around(before, steps(21, [2.0] * 20, [5.0] * 20)).back_at is None
    assert level_around(before, []).looked_at == 0


def test_norms_that_were_not_measured_are_none():
    """A norm below 0 was not measured. A loss may be negative. With few steps nothing is said."""
    found = level_around(steps(1, [-3.0] * 20, [-1.0] * 20), steps(21, [-2.9] * 9, [-1.0] * 9))

    assert (found.grad_norm, found.climbs_from, found.back_at) == (None, None, 21)
    assert level_around(steps(1, [1.0] * 3, [1.0] * 3), []) is None


@pytest.mark.parametrize("kind", ["spike", "skip"])
def test_why_a_spike_tells_level_and_checkpoints(tmp_path, kind):
    """From the journal: the checkpoints before and after it, and the first step at the old level."""
    made = events_of_a_run(tmp_path / "made", steps=40)
    commits = [one for one in made if isinstance(one, m.CheckpointCommitted)]
    at = step_at(made, 25)
    odd = {"step": 25, "epoch": 3, "batch": 5}
    found = m.InstabilityDetected(finding=Finding.SPIKE, signal=Signal.LOSS, value=99.0, baseline=1.0, limit=2.0, **odd)
    skipped = m.StepSkipped(loss=99.0, grad_norm=1.0, reason=m.SkipReason.SPIKE, **odd)
    write(tmp_path / "j", [*made[:at], found, skipped, *made[at:]])
    with Reader(tmp_path / "j") as reader:
        answer = why(reader, kind)
        other = why(reader, "checkpoint")
    kept = [one.fields["id"] for one in answer.kept]

    assert answer.level.back_at == 25
    assert kept == [[c.id for c in commits if c.step < 25][-1], next(c.id for c in commits if c.step >= 25)]
    assert (other.level, other.kept) == (None, ())
    before, after, checkpoints = level_lines(answer)
    assert before.startswith("before   usual loss ")
    assert after == "after    back at that level from step 25 on"
    assert f"{kept[0]} of step " in checkpoints
