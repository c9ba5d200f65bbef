"""A run whose code was edited goes on if its bits are the same, and stops once if they are not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.facts import daemon_started, environment
from tests.core.simulate import World, find, until
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.messages.sentences.text import sentence

BEFORE = (m.CodeFile("losses.py", "a1"), m.CodeFile("train.py", "b1"))
EDITED = (m.CodeFile("losses.py", "a2"), m.CodeFile("more.py", "c1"), m.CodeFile("train.py", "b1"))


def trained(**context):
    """A run that has made six steps, the last two of them after its newest checkpoint."""
    world = World(0)
    world.environment, world.code = environment(determinism="strict", **context), BEFORE
    return until(world, 6)


def rerun(world, code, *, differs, accept=False, mode=m.StartMode.RETRY, late=(), **context):
    """A new daemon, whose trainer has this code; step 5 has the same bits, or not. `late`: what it loads after that."""
    world.environment, world.code = environment(determinism="strict", **context), code
    world.trainer, world.exit = None, None
    world.due.clear()
    world.give(m.Opened(mode=mode, facts=(replace(daemon_started(), accept_code=accept),)))
    while world.state.progress.rerun is None and world.exit is None:
        world.tick()
    if world.exit is None:
        begun = world.state.progress.rerun
        difference = m.Difference(step=5, field="loss", expected="1.0", found="1.01") if differs else None
        world.trainer.step = begun.last
        world.trainer.script.clear()
        report = m.RerunReport(first=5, last=begun.last, compared=2, first_difference=difference, code=late)
        world.give(m.ReportReceived(incarnation=world.trainer.incarnation, report=report))
        for _ in range(8):
            world.tick()
    return world


@pytest.mark.parametrize("task_hash", ["", "ff"], ids=["program", "task"])
def test_an_edit_with_other_bits_stops_the_run_and_one_word_goes_on(task_hash):
    """File, step and both values are said. Without the word it stops again; with it the run goes on without --retry."""
    world = rerun(trained(), EDITED, differs=True, task_hash=task_hash or environment().task_hash)
    recorded = find(world, m.ExecutionContextRecorded)[-1]
    assert (recorded.other_code, recorded.only_code) == (("losses.py",), True)
    assert "Code changed: losses.py." in sentence(recorded)
    assert "since losses.py changed" in sentence(find(world, m.RerunDiverged)[-1])
    assert (world.state.run.failure, world.exit) == (m.FailureKind.CODE, 70)
    assert "step 5 came out differently" in world.state.run.why
    assert "losses.py has changed since it was made: the loss was 1.0, is 1.01" in world.state.run.why

    rerun(world, EDITED, differs=True, task_hash=task_hash or environment().task_hash)
    assert (world.state.run.failure, world.exit) == (m.FailureKind.CODE, 70)

    mode = m.StartMode.EXPLICIT
    rerun(world, EDITED, differs=True, accept=True, mode=mode, task_hash=task_hash or environment().task_hash)
    assert "the code has changed, which was accepted: losses.py" in find(world, m.RerunFinished)[-1].expected
    assert world.state.run.phase is st.Phase.RUNNING
    assert world.exit is None


def test_an_accepted_edit_stays_accepted_until_its_steps_are_in_a_checkpoint_and_another_one_is_not():
    """A crash before the next checkpoint needs no second word; a second edit needs its own."""
    world = rerun(trained(), EDITED, differs=True, accept=True)
    rerun(world, EDITED, differs=True)
    assert world.exit is None
    assert len(find(world, m.RerunDiverged)) == 0

    rerun(world, (*EDITED[:2], m.CodeFile("train.py", "b2")), differs=True)
    assert world.state.run.failure is m.FailureKind.CODE
    assert "train.py has changed" in world.state.run.why


def test_an_edit_with_the_same_bits_needs_nothing_and_is_the_runs_code_from_then_on():
    """A later difference is no longer the edit's: the run fails as one that does not repeat itself."""
    world = rerun(trained(), EDITED, differs=False)
    assert world.exit is None
    assert not find(world, m.RerunDiverged)
    rerun(world, EDITED, differs=True)
    assert world.state.run.failure is m.FailureKind.DIVERGED
    assert "Code, versions, hardware and number of threads are the same" in world.state.run.why


def test_code_that_was_put_back_goes_on():
    """Nothing of the stop is left: the bits are those of the journal, and strictness holds as before."""
    world = rerun(trained(), EDITED, differs=True)
    rerun(world, BEFORE, differs=False)
    assert world.exit is None
    assert world.state.progress.inexact == ()
    assert world.state.progress.code.changed == ()


def test_an_edit_beside_another_context_explains_nothing_alone():
    """With another number of threads steps may differ anyway: that is recorded, and the run goes on."""
    world = rerun(trained(), EDITED, differs=True, threads=7)
    assert find(world, m.RerunFinished)[-1].expected == "the execution context is another one"
    assert world.exit is None


def test_a_file_that_only_one_trainer_has_loaded_is_no_change():
    """Modules are imported when they are first needed."""
    known = replace(st.Progress(), step=1, code=st.Code(files=BEFORE))
    assert q.other_code(known, EDITED[1:]) == ()
    assert q.other_code(known, EDITED) == ("losses.py",)
    assert q.other_code(replace(known, step=0), EDITED) == ()


LATE = m.CodeFile("augment.py", "d1")


class Importing(World):
    """A world whose trainers have loaded a further file when they copy their state."""

    def new_trainer(self, incarnation):
        made = super().new_trainer(incarnation)
        copied = made.copied
        made.copied = lambda id_: replace(copied(id_), code=(LATE,))
        return made


def test_a_file_that_was_imported_after_the_first_step_is_known_from_the_next_checkpoint_on():
    """It is recorded once. An edit of it stops the run once, at the end of the re-run; one word goes on."""
    world = Importing(0)
    world.environment, world.code = environment(determinism="strict"), BEFORE
    until(world, 6)
    told = [one.code for one in find(world, m.StateCopied)]
    assert told == [(LATE,), *[()] * (len(told) - 1)]
    edited = (replace(LATE, hash="d2"),)

    for _ in range(2):
        rerun(world, BEFORE, differs=True, late=edited)
        assert (find(world, m.RerunFinished)[-1].other_code, world.exit) == (("augment.py",), 70)
        assert world.state.run.failure is m.FailureKind.CODE
        assert "augment.py has changed" in world.state.run.why

    rerun(world, BEFORE, differs=True, late=edited, accept=True)
    assert world.exit is None
    assert "which was accepted: augment.py" in find(world, m.RerunFinished)[-1].expected


def test_a_file_that_was_imported_late_and_not_edited_explains_nothing():
    """The run fails as one that does not repeat itself."""
    world = Importing(0)
    world.environment, world.code = environment(determinism="strict"), BEFORE
    rerun(until(world, 6), BEFORE, differs=True, late=(LATE,))

    assert world.state.run.failure is m.FailureKind.DIVERGED


@pytest.mark.parametrize("kind", [*m.FailureKind, None])
def test_every_failure_names_a_way_on_in_the_words_of_its_form(kind):
    """A program has no options of a command, and a command no program to start again."""
    by_command, by_program = (q.way_on(kind, in_program=in_program) for in_program in (False, True))

    assert "--" in by_command
    assert "start the program again" in by_program or "Tolaria(..." in by_program
    assert not any(word in by_program for word in ("--retry", "--accept", "train`"))
