"""The actions that the run took by itself: which events are reported, how many are kept, and in which words."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.facts import daemon_started
from tests.core.rollback.test_rollback import rolled_back
from tests.core.simulate import World, find, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal
from tolariad.core.calc.pruning.verdict import WindowAction
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.state.run_state import RunState, fold

AT = {"step": 412, "epoch": 3, "batch": 17}
SKIP = {**AT, "branch": 0}
BACK = {"rollback": "r0001", "checkpoint": "c000004", "branch": 1, "parent": 0, "step": 200, "epoch": 2, "batch": 0}


def found(finding: Finding, signal: Signal = Signal.LOSS, value: float = 3.25, **fields: object):
    return m.InstabilityDetected(finding=finding, signal=signal, value=value, baseline=1.5, limit=2.0, **AT, **fields)


def skipped(reason: m.SkipReason, loss: float = 9.5, grad_norm: float = 4.0) -> m.StepSkipped:
    return m.StepSkipped(loss=loss, grad_norm=grad_norm, reason=reason, **SKIP)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            m.RolledBack(from_step=412, why="divergence: loss 9 at step 412", **BACK),
            "Rolled back from step 412 to step 200 (c000004) and abandoned 212 steps: divergence: loss 9 at step 412.",
        ),
        (m.RolledBack(from_step=201, **BACK), "Rolled back from step 201 to step 200 (c000004) and abandoned 1 step."),
        (m.RolledBack(**BACK), "Rolled back to step 200 (c000004)."),
        (
            m.RerunFinished(
                first=7,
                last=36,
                compared=30,
                first_difference=m.Difference(
                    step=7, field="lr", expected=(0.003).hex(), found=(0.001).hex(), count=30
                ),
                expected="changed: learning_rate.base_lr",
            ),
            (
                "Re-run finished: 30 of 30 re-run steps differ from the journal, as expected "
                "(changed: learning_rate.base_lr): the learning rate of step 7 was 0.003 and is 0.001."
            ),
        ),
        (
            m.RerunFinished(first=7, last=8, compared=2),
            "Re-run finished: 2 of 2 re-run steps equal the journal, bit for bit.",
        ),
        (
            skipped(m.SkipReason.NON_FINITE, float("nan"), -1.0),
            "Skipped batch 17 of epoch 3: its loss is nan.",
        ),
        (
            skipped(m.SkipReason.SPIKE),
            "Skipped batch 17 of epoch 3: its loss is 9.5, its gradient norm 4, far above the usual values.",
        ),
        (
            m.LrViolationDetected(
                step=7, group="body", what="lr was set", expected=0.1, found=0.5, where="train.py:30"
            ),
            (
                "Corrected the learning rate of body before update 7 (found 0.5, reset to 0.1): "
                "lr was set, in train.py:30."
            ),
        ),
        (
            m.LrViolationDetected(step=7, group="body", what=m.DIGEST_DIFFERS, expected=0.1, found=0.5),
            "Update 7 used other learning rates than those in the journal.",
        ),
        (m.ConservativeModeEntered(why="open breaker: lr"), "Conservative mode is on: open breaker: lr."),
        (
            m.ConservativeModeLeft(healthy_epochs=3, seconds=312.4),
            "Conservative mode is off after 3 healthy epochs and 312 s.",
        ),
        (
            m.RunFrozen(why="gone"),
            "The run halted: gone. Use `tolaria resume`, `rollback` or `stop`, or start your own program again.",
        ),
        (found(Finding.SHIFT), "The loss rose to 3.25 at step 412 (usual: 1.5). No action was taken."),
        (
            found(Finding.COLLAPSE, Signal.ACCURACY, 0.31),
            "The accuracy fell from an average of 150 % to 31 % after epoch 3. No action was taken.",
        ),
        (
            m.QuarantineAdded(name="q0001", why="a rollback", batches=m.Batches(2, 4, 6)),
            "Put batches 4 to 6 of epoch 2 into quarantine: a rollback.",
        ),
    ],
)
def test_a_sentence_stands_by_itself(event, words):
    """It names the action, its places and its reason, even if a field of an older version is missing."""
    assert sentence(event) == words
    assert st.is_said(event)


@pytest.mark.parametrize(
    "event",
    [
        skipped(m.SkipReason.OVERFLOW),
        found(Finding.SPIKE),
        found(Finding.NON_FINITE),
        found(Finding.STALL, Signal.STEP_TIME),
        found(Finding.EXPLOSION, level=m.Level.SEVERE),
        m.QuarantineAdded(name="q0001", why="w", checkpoint="c1", actor=m.Actor(uid=1)),
        daemon_started(),
        m.EpochStarted(epoch=1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_every_healthy_run_does_or_another_line_tells_is_not_said(event):
    """An fp16 overflow, a finding that a skip or rollback follows, an operator's order, normal training."""
    assert not st.is_said(event)
    assert fold(RunState(), [event]).said.latest == ()


def test_a_run_that_goes_back_again_and_again_says_so_each_time_and_keeps_the_latest():
    """The numbers have no gap over restarts of the daemon, and the state keeps a limited number."""
    world, seen = World(0, deaths_max=1000), []
    for turn in range(st.LATEST_MAX + 4):
        until(world, 3)
        rolled_back(world, step=0, reason=f"try {turn}")
        seen += [one for one in world.state.said.latest if one.number > len(seen)]
        if turn == 2:
            world.restart_daemon()
    backs = find(world, m.RolledBack)

    assert [one.number for one in seen] == list(range(1, len(backs) + 1))
    assert [(one.event.from_step, one.event.step, one.event.why) for one in seen] == [
        (3, 0, f"try {turn}") for turn in range(st.LATEST_MAX + 4)
    ]
    assert [one.start for one in seen] == [1] * 3 + [2] * (len(backs) - 3)
    assert [world.events[one.seq - 1] for one in seen] == backs
    assert len(world.state.said.latest) == st.LATEST_MAX


def test_skipped_batches_hide_nothing_that_the_run_did_between_them():
    """Skipped batches leave first. If there are only rollbacks, the oldest leaves."""
    back = m.RolledBack(from_step=412, why="nan", **BACK)
    many = [skipped(m.SkipReason.SPIKE)] * st.LATEST_MAX
    state = fold(RunState(), (*many, back, *many, back, *many))

    assert [one.number for one in state.said.latest if isinstance(one.event, m.RolledBack)] == [17, 34]
    assert len(state.said.latest) == st.LATEST_MAX
    assert next(one.number for one in fold(state, [back] * st.LATEST_MAX).said.latest) == state.said.total + 1


DIED = {"incarnation": 1, "step": 18, "output": "a\n" * 9000 + "ValueError: 11\n", "stacks": "s" * 9000}
RERUN = {"first": 11, "last": 18, "compared": 8}
UNITS = {"layer": tuple(range(3000))}
MASKS = m.MaskUnits(cycle=2, units=UNITS, sha256="ab", plan="p" * 9000)
SMALLER = m.CompactModel(cycle=2, units=UNITS, removal="r" * 9000)
RATE = m.SetRate(group="default", value=0.001)
OTHER = m.Difference(step=12, field="loss", expected="0x1p+0", found="0x1.8p+0")


@pytest.mark.parametrize(
    ("event", "is_counted"),
    [
        (m.TrainerDied(reason=m.DeathReason.EXCEPTION, **DIED), True),
        (m.CheckpointAborted(id="c000002", why="no space"), True),
        (m.CheckpointRejected(id="c000002", file="model.safetensors", why="BLAKE3 differs"), True),
        (m.RerunFinished(**RERUN), False),
        (m.RerunFinished(**RERUN, first_difference=OTHER), True),
        (m.RerunDiverged(difference=OTHER), True),
        (m.OrderGiven(order=RATE, actor=m.Actor(uid=1000)), False),
        (m.StopRequested(mode=m.StopMode.GRACEFUL, origin=m.Origin.SIGNAL), False),
        (skipped(m.SkipReason.SPIKE), True),
        (m.ConservativeModeLeft(healthy_epochs=3, seconds=300.0), False),
        (m.PruneCycleFailed(cycle=2, why="no memory"), True),
        (m.PruneBreakerOpened(failures=3, why="no memory"), True),
        (m.OrderActed(order=MASKS, applied_before_step=9, number=1, outcome=m.Masking()), False),
        (m.MaskSetRejected(cycle=2, sha256="ab", trips=(), action=WindowAction.RELEASE, why="slow"), True),
        (m.OrderActed(order=SMALLER, applied_before_step=9, number=2), False),
        (m.OrderAborted(order=SMALLER, why="a seed grows"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_matters_is_said_and_troubles_are_counted(event, is_counted):
    """Deaths, failed checkpoints, results of re-runs, orders; orders and good ends are no troubles."""
    said = fold(RunState(), [event, event]).said
    (trouble,) = list(said.troubles.values()) or [None]

    assert [sentence(one.event) for one in said.latest] == [sentence(event)] * 2
    assert (trouble is not None) is is_counted
    assert trouble is None or (trouble.count, trouble.last) == (2, said.latest[-1])
    assert len(msgspec.msgpack.encode(said)) < 2000, "outputs, units and plans are no part of it"


@pytest.mark.parametrize("reason", [m.DeathReason.WITH_DAEMON, m.DeathReason.KILLED])
def test_a_trainer_that_was_told_to_end_is_no_trouble(reason):
    """Its daemon ended, or ended it; and the rates that the run orders itself have a sentence of their own.

    So a checkpoint that was begun then is no trouble either.
    """
    assert not st.is_said(m.TrainerDied(reason=reason, **DIED))
    assert not st.is_said(m.CheckpointAborted(id="c000001", why="the trainer was ended"))
    assert not st.is_said(m.OrderGiven(order=RATE))


def test_the_last_trouble_of_a_kind_stays_however_many_others_follow():
    """A rollback is not hidden by a hundred skipped batches."""
    back = m.RolledBack(from_step=412, why="nan", **BACK)
    state = fold(RunState(), [back, *[skipped(m.SkipReason.SPIKE)] * 100, *[back] * 2, *[found(Finding.RISE)] * 99])

    assert {name: one.count for name, one in state.said.troubles.items()} == {
        "RolledBack": 3, "StepSkipped": 100, "InstabilityDetected": 99,
    }  # fmt: skip
    assert state.said.troubles["RolledBack"].last.seq == 103


def test_a_disk_that_is_low_and_has_space_again_is_said():
    """A user who finds the run paused can see why."""
    low, again = m.DiskLow(free=8_466_432, floor=300_000_000), m.DiskRecovered(free=10**9, floor=300_000_000)

    assert st.is_said(low)
    assert (
        sentence(low) == "The disk is low: 8.5 MB are free, 300.0 MB are needed. The run pauses until there is space."
    )
    assert sentence(again) == "The disk has space again: 1.0 GB are free. The run goes on."


def test_a_rollback_that_the_next_start_finishes_says_where_it_came_from_and_why():
    """The trainer died during the rollback."""
    world = until(World(0), 7)
    world.command(m.Rollback(epoch=1, reason="spike"))
    world.crash_trainer()
    world.run()
    (back,) = find(world, m.RolledBack)

    assert back.by_start
    assert sentence(back) == "Rolled back from step 7 to step 4 (c000002) and abandoned 3 steps: spike."
