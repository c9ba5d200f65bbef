"""The state at any moment is the fold of the events up to it."""

from __future__ import annotations

import pytest

from journal import JournalDamaged, Reader, verify
from tests.forensics.differences.written import events_of_a_run, write
from tolariad.core.messages.vocabulary import decode_event
from tolariad.core.state.run_state import RunState, canonical_bytes, fold
from tolariad.forensics.differences.moments import between
from tolariad.forensics.moment import NotReached, seq_at, state_at
from tolariad.forensics.positions import JournalPosition, PositionKind
from tolariad.forensics.timeline import entry_of_step


def test_the_state_now_is_the_living_runs(recorder, reader):
    """The state from the newest capture is equal, bit for bit."""
    assert canonical_bytes(state_at(reader).state) == canonical_bytes(recorder.state)


def test_the_state_at_any_event_is_the_fold_up_to_it(recorder, reader):
    """The result does not depend on the capture it begins from."""
    events = [decode_event(entry.event) for entry in reader]
    for seq in range(0, recorder.state.seq + 1, 7):
        assert canonical_bytes(state_at(reader, seq).state) == canonical_bytes(fold(RunState(), events[:seq]))


@pytest.mark.parametrize("step", [1, 10, 15, 18, 25])
def test_at_a_step_is_right_after_it(reader, step):
    """The state is that after the event, not after the frame that contains it."""
    state = state_at(reader, seq_at(reader, JournalPosition(PositionKind.STEP, step))).state

    assert state.progress.step == step
    assert state.seq == seq_at(reader, JournalPosition(PositionKind.STEP, step))


def test_at_an_epoch_is_its_end(reader):
    """The state includes everything that belongs to the epoch."""
    assert state_at(reader, seq_at(reader, JournalPosition(PositionKind.EPOCH, 1))).state.progress.epoch_finished == 1


def test_a_moment_before_everything_is_the_empty_state(reader):
    """Event 0 is before the first."""
    assert state_at(reader, seq_at(reader, JournalPosition(PositionKind.SEQ, 0))).state == RunState()


@pytest.mark.parametrize(
    "position",
    [
        JournalPosition(PositionKind.SEQ, 99_999),
        JournalPosition(PositionKind.STEP, 99_999),
        JournalPosition(PositionKind.EPOCH, 999),
    ],
)
def test_a_moment_that_has_not_come_is_none(reader, position):
    """The answer is never the state of another moment."""
    with pytest.raises(NotReached, match=str(position.value)):
        seq_at(reader, position)


def test_the_last_event_step_and_epoch_have_come(recorder, reader):
    """The bounds themselves are accepted, and a time in the future means now."""
    progress, last = recorder.state.progress, recorder.state.seq
    assert seq_at(reader, JournalPosition(PositionKind.SEQ, last)) == last
    assert (
        state_at(reader, seq_at(reader, JournalPosition(PositionKind.STEP, progress.step))).state.progress.step
        == progress.step
    )
    assert (
        state_at(reader, seq_at(reader, JournalPosition(PositionKind.EPOCH, progress.epoch))).state.progress.epoch
        == progress.epoch
    )
    assert seq_at(reader, JournalPosition(PositionKind.TIME, 2**62)) == last


@pytest.mark.parametrize("step", [1, 12, 23, 30])
def test_a_step_is_found_in_a_frame_of_many(tmp_path, step):
    """Steps that were held back are written in one frame, whose label is that of the last one."""
    write(tmp_path / "journal", events_of_a_run(tmp_path / "made"))
    with Reader(tmp_path / "journal") as reader:
        seq = seq_at(reader, JournalPosition(PositionKind.STEP, step))
        shown = entry_of_step(reader, step)
        state = state_at(reader, seq).state

    assert (state.progress.step, state.seq, shown.seq) == (step, seq, seq)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_every_state_before_damage_can_be_seen(tmp_path, part):
    """Up to the event that `verify` names as the last one before it, and not one further."""
    folder = write(tmp_path / "j", events_of_a_run(tmp_path / "made", steps=300), segment_bytes=256 * 1024)
    with Reader(folder) as reader:
        events = [decode_event(entry.event) for entry in reader]
    path = min(folder.glob("*.wal"))
    image = bytearray(path.read_bytes())
    image[int(part * len(image.rstrip(b"\0")))] ^= 1
    path.write_bytes(image)
    last = verify(folder).last_seq
    assert 1 < last < len(events)

    with Reader(folder) as reader:
        for seq in (1, last // 2, last):
            assert canonical_bytes(state_at(reader, seq).state) == canonical_bytes(fold(RunState(), events[:seq]))
        assert between(reader, 1, last).last == last
        with pytest.raises(JournalDamaged):
            state_at(reader, last + 1)
