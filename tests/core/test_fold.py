"""P4: the same events fold to the same state, in pieces, from captures, in any process."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from tests.core.simulate import World
from tolariad.core import messages as m
from tolariad.core import state as state_
from tolariad.core.messages.vocabulary import EVENT_TYPES, Unknown, decode_event, encode_event
from tolariad.core.state.replay import ReplayError, newest_usable, replay_records
from tolariad.core.state.run_state import (
    FOLD_VERSION,
    RunState,
    apply,
    canonical_bytes,
    capture,
    fold,
    hash_agrees,
    hash_mark,
    read_capture,
)


def values(kind: inspect.Type) -> st.SearchStrategy[object]:
    """Any value of a field's type."""
    match kind:
        case inspect.Metadata():
            return values(kind.type)
        case inspect.UnionType():
            return st.one_of([values(one) for one in kind.types])
        case inspect.StructType():
            return structs(kind.cls)
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
        case inspect.VarTupleType():
            return st.lists(values(kind.item_type), max_size=3).map(tuple)
        case inspect.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=3)
        case inspect.IntType():
            return st.integers(-(2**63), 2**64 - 1)
        case inspect.FloatType():
            return st.floats()
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StrType():
            return st.text(st.characters(codec="utf-8"), max_size=8)
        case inspect.BytesType():
            return st.binary(max_size=8)
        case _:
            raise AssertionError(f"no strategy for {kind}")


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Any instance of a Struct."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields = {field.name: values(field.type) for field in info.fields}
    return st.builds(kind, **fields)


def disturbed() -> RunState:
    """A state in which much has happened."""
    world = World(7, deaths_max=50)
    world.goes_back = True
    for _ in range(200):
        world.anything()
    return world.state


DISTURBED = disturbed()
any_event = st.one_of([structs(kind) for kind in EVENT_TYPES.values()])


@given(st.lists(any_event, max_size=20), st.integers(0, 20))
def test_folding_in_pieces_is_folding_at_once(events, cut):
    """Any events, sensible or not, cut anywhere, through a capture or not."""
    whole = fold(RunState(), events)
    first = fold(RunState(), events[:cut])
    restored = read_capture(capture(first))

    assert restored is not None
    assert canonical_bytes(fold(first, events[cut:])) == canonical_bytes(whole)
    assert canonical_bytes(fold(restored, events[cut:])) == canonical_bytes(whole)


def test_a_restored_default_has_the_same_bytes_after_a_capture():
    """A rollback to a place without values restores defaults. Found by the test above, once in thousands of lists."""
    back = m.RolledBack(rollback="r", checkpoint="c", branch=1, parent=0, step=0, epoch=0, batch=1)
    finished = m.EpochFinished(epoch=0, step=0, steps=0, train_loss=0.0, seconds=0.0, metric=0.0, metric_name="")
    first = fold(RunState(), (back,))
    restored = read_capture(capture(first))

    assert restored is not None
    assert canonical_bytes(fold(restored, (finished,))) == canonical_bytes(fold(first, (finished,)))


@pytest.mark.parametrize("epoch", [-(2**63), 2**64 - 1])
def test_numbers_at_the_ends_of_what_can_be_stored_stay_storable(epoch):
    """One epoch before the first number there is; found by the test above, once in many runs of it."""
    state = fold(
        RunState(),
        (
            m.CheckpointCommitted(
                id="c", step=0, epoch=epoch, batch=0, manifest="", pieces=(), size=0, seconds=0.0, best=True
            ),
            m.RolledBack(rollback="r", checkpoint="c", branch=1, parent=0, step=0, epoch=epoch, batch=0),
        ),
    )

    assert read_capture(capture(state)) == state


@pytest.mark.sample(35)
@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
def test_every_event_is_accepted_in_every_phase(kind):
    """`apply` never refuses: an impossible transition is recorded, not raised."""

    @settings(max_examples=8, deadline=None, database=None)
    @given(structs(kind))
    def accepted(event):
        for state in (RunState(), DISTURBED):
            for phase in state_.Phase:
                before = msgspec.structs.replace(state, run=msgspec.structs.replace(state.run, phase=phase))
                assert apply(before, event).seq == state.seq + 1
                assert isinstance(apply(before, event).run.phase, state_.Phase)

    accepted()


@given(any_event)
def test_an_event_survives_its_encoding(event):
    """The journal has the events as decided, non-finite numbers included."""
    raw = encode_event(event)
    back = decode_event(raw)

    assert encode_event(back) == raw  # compared as bytes, since NaN is not equal to itself
    assert type(back) is type(event)


def test_an_unknown_or_skippable_event_changes_nothing_but_the_number():
    """A newer version's event passes by; a skippable one of ours never touches the state."""
    world = World(1)
    world.run(60)
    ours = EVENT_TYPES["SchedulingRecorded"](skippable=True, incarnation=9, threads=1, cores=(0,))

    for event in (Unknown("Newer", skippable=True), ours):
        after = apply(world.state, event)
        assert after == msgspec.structs.replace(world.state, seq=world.state.seq + 1)


def test_replay_equals_live_at_every_sequence_number(seed):
    """State hash by state hash, over runs with drawn disasters."""
    for offset in range(10):
        world = World(seed + offset)
        world.goes_back = offset % 2 == 1
        live: list[bytes] = []
        for _ in range(250):
            before = world.state.seq
            world.anything()
            if world.state.seq != before:
                live.append(hash_mark(world.state))
        state, marks = RunState(), iter(live)
        mark = next(marks, None)
        for event in world.events:
            state = apply(state, decode_event(encode_event(event)))
            if mark is not None and msgspec.msgpack.decode(mark)["seq"] == state.seq:
                assert hash_agrees(state, mark), f"seed {seed + offset}: replay differs after event {state.seq}"
                mark = next(marks, None)
        assert mark is None
        assert state == world.state


def test_the_state_hash_does_not_depend_on_the_process():
    """PYTHONHASHSEED 0 to 3: sets, maps and strings are ordered by their values."""
    code = (
        "from tests.core.simulate import World; from tolariad.core.state.run_state import state_hash\n"
        "w = World(5)\nfor _ in range(300): w.anything()\nprint(state_hash(w.state).hex())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": str(n)}, stdout=subprocess.PIPE
        )
        for n in range(4)
    ]

    assert len({process.communicate()[0] for process in processes}) == 1
    assert all(process.returncode == 0 for process in processes)


class _Entry(msgspec.Struct):
    seq: int
    event: msgspec.Raw


class _Kind(msgspec.Struct):
    name: str


class _Mark(msgspec.Struct):
    kind: _Kind
    seq: int
    body: bytes


def _entries(events: list[m.Event], after: int = 0) -> list[_Entry]:
    return [_Entry(n, msgspec.Raw(encode_event(event))) for n, event in enumerate(events, 1) if n > after]


def test_replay_names_the_event_after_which_a_recorded_hash_disagrees():
    """A hash that another state made stops the replay."""
    world = World(3)
    world.run(80)
    records = _entries(world.events)
    wrong = hash_mark(msgspec.structs.replace(fold(RunState(), world.events[:10]), seq=9))
    right = hash_mark(fold(RunState(), world.events[:10]))

    replayed = replay_records(RunState(), [*records[:10], _Mark(_Kind("STATE_HASH"), 10, right), *records[10:]])
    assert replayed.state == world.state
    with pytest.raises(ReplayError, match="after event 10"):
        replay_records(RunState(), [*records[:10], _Mark(_Kind("STATE_HASH"), 10, wrong)])


def test_a_writer_refuses_an_unknown_event_that_a_reader_counts():
    """Newer and not skippable: the daemon must not go on from a state it cannot know."""
    newer = _Entry(1, msgspec.Raw(msgspec.msgpack.encode({"type": "SeedSown", "to": 3})))

    assert replay_records(RunState(), [newer]).unknown == {"SeedSown": 1}
    with pytest.raises(ReplayError, match="SeedSown"):
        replay_records(RunState(), [newer], strict=True)


def test_a_run_of_another_version_is_refused_by_an_event_of_a_former_name_with_that_version():
    """Its daemon said which version it was; the fold of this one has a number."""
    started = m.DaemonStarted(pid=1, boot_id="", host="h", version="0.0.9", limits=m.ServiceLimits())
    former = {"type": "RateChanged", "group": "a", "applied_before_step": 3, "before": 0.1, "rate": 0.2, "curve": 0.1}
    entries = [*_entries([started]), _Entry(2, msgspec.Raw(msgspec.msgpack.encode({**former, "number": 1})))]

    with pytest.raises(
        ReplayError, match=f"'RateChanged'.* tolariad 0.0.9 recorded it, and here is fold {FOLD_VERSION}"
    ):
        replay_records(RunState(), entries, strict=True)


def test_a_capture_of_another_fold_version_is_not_used():
    """The fold begins at the nearest usable one before it, or at the beginning."""
    state = fold(RunState(), World(1).events)
    newer = msgspec.msgpack.encode({"fold_version": 999, "state": {"anything": 1}})

    class Found(msgspec.Struct):
        seq: int
        body: bytes

    assert newest_usable([Found(9, newer), Found(state.seq, capture(state))]) == state
    assert newest_usable([Found(9, newer)]) == RunState()


@pytest.mark.parametrize("number", [-(2**63), 2**64 - 1])
def test_sums_of_impossible_numbers_can_still_be_captured(number):
    """`apply` takes every event; what it adds up stays within what a capture can hold."""
    begun = EVENT_TYPES["RerunBegun"](first=number, last=number, checkpoint="c000001")
    finished = EVENT_TYPES["RerunFinished"](first=number, last=number, compared=number)
    state = fold(RunState(), (begun, finished, begun, finished, begun))

    assert read_capture(capture(state)) == state
