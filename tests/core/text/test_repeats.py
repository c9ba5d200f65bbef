"""Events that come again and again are counted: the first is said, and no count is lost."""

from __future__ import annotations

import random
import re
import shlex

import pytest

from tolariad.cli.status_words import said_lines
from tolariad.cli.wrapping import wrapped
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.calc.text.repeats import Repeats, calm, heard, rest


def lines_of(events, ends=True):
    """Return what is said of (kind, step) in turn; each sentence is `kind step`."""
    repeats, said = Repeats(), []
    for kind, step in events:
        repeats, lines = heard(repeats, kind, step, f"{kind} {step}")
        said += lines
    return said + list(rest(repeats)[1] if ends else ())


def stands_for(line):
    """Return how many events a line stands for."""
    found = re.match(r"(\d+) more [a-z ]+, the newest at step \d+\. `tolaria events RUN -t \w+` lists them\.", line)
    return int(found[1]) if found else 1


def test_of_three_hundred_skipped_batches_the_first_is_said_and_the_others_are_counted():
    """A skipped step is not counted, so all have one number; or some are made between them."""
    for gap in (0, 1, 4):
        said = lines_of(("StepSkipped", 13 + gap * n) for n in range(300))
        assert said[0] == "StepSkipped 13"
        assert [stands_for(one) for one in said] == [1, 9, 90, 200]
        assert said[-1].startswith(f"200 more skipped batches, the newest at step {13 + gap * 299}.")


def test_single_skipped_batches_are_said_one_by_one():
    """One in five steps is no series. A pair is said as it is: a count would be no shorter."""
    far = [("StepSkipped", 5 * n) for n in range(20)]
    assert lines_of(far) == [f"{kind} {step}" for kind, step in far]
    assert lines_of([("StepSkipped", 5), ("StepSkipped", 6)]) == ["StepSkipped 5", "StepSkipped 6"]


def test_another_event_says_the_pending_count_first_and_the_series_goes_on():
    """A state that is kept amid a series stands at its place."""
    skips = [("StepSkipped", 7)] * 5
    said = lines_of([*skips, ("StatePinned", 7), *skips])
    assert [stands_for(one) for one in said] == [1, 4, 1, 5]
    assert said[2] == "StatePinned 7"


def test_a_series_that_has_ended_is_counted_at_the_next_healthy_steps():
    """The count does not wait for the end of the run."""
    repeats, _ = heard(Repeats(), "StepSkipped", 7, "first")
    for _ in range(3):
        repeats, _ = heard(repeats, "StepSkipped", 7, "again")
    assert calm(repeats, 11)[1] == ()
    repeats, (line,) = calm(repeats, 12)
    assert stands_for(line) == 3
    assert calm(repeats, 13)[1] == rest(repeats)[1] == ()


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(20))
def test_every_event_is_said_or_counted(seed, number):
    """Whatever comes in whatever order; and of the kinds that are counted there are few lines."""
    drawn = random.Random(f"{seed} {number}")
    print(f"seed {seed}, number {number}")
    step, events = 0, []
    for _ in range(drawn.randrange(2000)):
        step += drawn.choice((0, 0, 0, 1))
        events.append((drawn.choice(("StepSkipped", "StepSkipped", "LrViolationDetected")), step))
        if drawn.random() < 0.01:
            events.append(("RolledBack", step))
    said = lines_of(events)
    others = sum(kind == "RolledBack" for kind, _ in events)

    assert sum(map(stands_for, said)) == len(events)
    assert len(said) <= 12 + 3 * others
    assert [one for one in said if one.startswith("RolledBack")] == [f"{k} {s}" for k, s in events if k == "RolledBack"]


@pytest.mark.parametrize("run", ["/runs/a", "/runs/a b", "/runs/it's \\1 $HOME", "RUN"])
def test_a_command_of_a_sentence_names_the_run_and_can_be_pasted(run):
    """A shell reads the folder as one word. Text outside a command keeps its RUN."""
    told = with_run("RUN is kept; `tolaria rollback RUN --to c000002` goes back, `tolariad run --from RUN@c1`", run)
    first, second = re.findall("`([^`]*)`", told)
    assert told.startswith("RUN is kept")
    assert shlex.split(first) == ["tolaria", "rollback", run, "--to", "c000002"]
    assert shlex.split(second)[-1] == f"{run}@c1"


@pytest.mark.parametrize("columns", [20, 40, 80, 119])
def test_a_command_is_not_broken_by_a_narrow_terminal(columns):
    """Two lines would run half of it."""
    command = "`tolaria rollback /home/somebody/run-s/name-of-a-run --to c000002`"
    text = f"State of step 2 (c000002) stays kept: 2 returns did not help. While it trains, {command} goes back there."
    for lines in (said_lines(text, "note: ", columns), wrapped(text, columns, 4)):
        assert [one for one in lines if command in one]
        assert all(len(one) <= columns for one in lines if command not in one)
        assert " ".join(" ".join(lines).split()).removeprefix("note: ") == text
