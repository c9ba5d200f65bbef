"""Since which step a run is slower."""

from __future__ import annotations

import os
import random
from itertools import accumulate

import pytest

from journal import Reader
from tests.forensics.differences.written import events_of_a_run, write
from tolariad.core import messages as m
from tolariad.forensics.slowness import slower_since
from tolariad.forensics.why import NoAnswer, why


def walls_of(times):
    """Return when each step was recorded, in ns, the first at 0."""
    return [0, *accumulate(round(time * 1e9) for time in times)]


@pytest.fixture
def draw():
    """A generator of noise."""
    seed = int(os.environ.get("TOLARIA_SEED", random.randrange(2**32)))
    print(f"TOLARIA_SEED={seed}")
    return random.Random(seed)


def test_five_percent_more_from_one_step_on_are_found(draw):
    """From 105 to 111 ms at step 2001, in 3 % of noise, with a pause and slow validations between."""
    times = [draw.gauss(0.105 if n < 2000 else 0.111, 0.003) for n in range(5000)]
    times[700] = 3600.0
    for n in range(0, 5000, 500):
        times[n] = 2.0
    found = slower_since(range(5001), walls_of(times))

    assert abs(found.step - 2001) <= 50
    assert abs(found.after_s / found.before_s - 111 / 105) < 0.01


def test_noise_alone_is_no_slowness(draw):
    """Nor is a slow hundred steps that passes, nor a run that got faster."""
    steady = [draw.gauss(0.105, 0.01) for _ in range(3000)]
    faster = [draw.gauss(0.111 if n < 1500 else 0.105, 0.003) for n in range(3000)]

    assert slower_since(range(3001), walls_of(steady)) is None
    assert slower_since(range(3001), walls_of(faster)) is None
    assert slower_since(range(51), walls_of([0.1] * 50)) is None


def test_why_slow_names_the_step_and_what_happened_before_it(tmp_path):
    """A note was written just before; nothing claims that it is the cause."""
    events = [
        m.StepCompleted(wall=wall, step=n, epoch=1, batch=n, loss=1.0, grad_norm=1.0, lr=0.1, rates=1)
        for n, wall in enumerate(walls_of([0.1] * 300 + [0.2] * 300), start=1)
    ]
    note = m.NoteAdded(text="another job began", actor=m.Actor(program="tolaria"))
    write(tmp_path / "j", [*events[:300], note, *events[300:]])
    with Reader(tmp_path / "j") as reader:
        answer = why(reader, "slow")

    assert answer.event.fields["step"] == 302
    assert round(answer.event.fields["slower"]["factor"], 3) == 2.0
    assert [link.fields["type"] for link in answer.around] == ["NoteAdded"]
    write(tmp_path / "k", events_of_a_run(tmp_path / "made"))
    with Reader(tmp_path / "k") as reader, pytest.raises(NoAnswer, match="It has an answer for: "):
        why(reader, "slow")
