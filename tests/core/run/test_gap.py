"""A gap in the journal, folded: frozen from every phase that has work left, until somebody accepts it."""

from __future__ import annotations

import pytest

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.decision import Accepted
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, apply, fold

GAP = m.GapRecorded(
    first_seq=11, last_seq=40, file="00000001-0000000000000001.wal", offset=4096, segments=2, damage="frame", why="rot",
    checkpoints_seen=7,
)  # fmt: skip
STARTED = m.RunStarted(
    run_id="00", name="run", task="digits", rng_seed=0, config="{}", config_hash="", policy=m.Policy(epochs=1),
    version="0",
)  # fmt: skip
BEFORE = {
    st.Phase.STARTING: (),
    st.Phase.PAUSED: (m.RunPaused(applied_before_step=1),),
    st.Phase.STOPPED: (m.RunStopped(step=0, mode=m.StopMode.GRACEFUL),),
    st.Phase.FAILED: (m.RunFailed(kind=m.FailureKind.TRAINER, why="died"),),
    st.Phase.FROZEN: (m.RunFrozen(why="stuck"),),
}


def resume(state: RunState, *, after_gap: bool):
    command = m.CommandReceived(command=m.Resume(after_gap=after_gap), actor=m.Actor())
    return decide(state, command, m.Now(wall=1, mono=1))


@pytest.mark.parametrize("phase", BEFORE)
@pytest.mark.parametrize("mode", m.StartMode)
def test_no_start_of_any_kind_trains_after_a_gap(phase, mode):
    """Not by itself, not with --retry, not by activation: it opens, is frozen, and answers."""
    state = fold(RunState(), (STARTED, *BEFORE[phase], GAP))
    assert state.run.phase is st.Phase.FROZEN
    opened = decide(state, m.Opened(mode=mode, facts=()), m.Now(wall=1, mono=1))
    assert not [effect for effect in opened.effects if isinstance(effect, m.SpawnTrainer)]


@pytest.mark.parametrize("phase", BEFORE)
def test_only_an_order_that_accepts_the_gap_goes_on(phase):
    """Without the flag the refusal names events and flag. With it the run recovers, and needs no flag again."""
    state = fold(RunState(), (STARTED, *BEFORE[phase], GAP))
    refused = resume(state, after_gap=False)
    assert isinstance(refused.answer, m.Refusal)
    assert (refused.events, refused.answer.error) == ((), "Frozen")
    assert "events 11 to 40" in refused.answer.why
    assert "--after-gap" in refused.answer.why

    accepted = resume(state, after_gap=True)
    assert isinstance(accepted.answer, Accepted)
    assert any(isinstance(effect, m.SpawnTrainer) for effect in accepted.effects)
    after = fold(state, accepted.events)
    assert (after.run.phase, after.run.gap, after.run.why) == (st.Phase.RECOVERING, None, "")


def test_a_flag_without_a_gap_is_refused():
    """The flag says that events are missing, so an order with it is refused."""
    state = fold(RunState(), (STARTED, m.RunPaused(applied_before_step=1)))
    assert isinstance(resume(state, after_gap=True).answer, m.Refusal)


def test_names_of_checkpoints_on_disk_are_not_given_again():
    """The lost events may have ordered some: the next one gets a number above all that were seen."""
    state = fold(RunState(), (STARTED, GAP))
    assert state.checkpoints.next_id == "c000008"
    assert apply(state, GAP).checkpoints.next_id == "c000008"


def test_a_stop_after_a_gap_does_not_make_the_next_start_train():
    """A daemon that only waited is stopped and started: still nothing trains."""
    state = fold(RunState(), (STARTED, GAP))
    stopped = fold(
        state, (m.StopRequested(mode=m.StopMode.GRACEFUL, origin=m.Origin.COMMAND), BEFORE[st.Phase.STOPPED][0])
    )
    assert stopped.run.gap is not None
    opened = decide(stopped, m.Opened(mode=m.StartMode.EXPLICIT, facts=()), m.Now(wall=1, mono=1))
    assert not [effect for effect in opened.effects if isinstance(effect, m.SpawnTrainer)]
