"""Spans are made from events: each work with its begin and end, the same ids again, nothing of what was not seen."""

from __future__ import annotations

from tests.core.simulate import World, completes
from tolariad.core import messages as m
from tolariad.telemetry.spans import Spans

RUN = bytes(range(16))


def spans_of(events, **given):
    made = Spans(RUN, **given)
    return [span for seq, event in events if (span := made.add(seq, event)) is not None]


def a_run():
    world = World(1, epochs=3)
    completes(world)
    return list(enumerate(world.events, 1))


def test_a_run_has_a_span_for_each_work():
    """As many as events that end work; all but the run's own have the run as their parent, and lie within it."""
    events = a_run()
    spans = spans_of(events)
    count = {kind: sum(isinstance(event, kind) for _, event in events) for kind in (m.EpochFinished, m.TrainerEnded)}
    names = [span.name for span in spans]
    (run,) = [span for span in spans if span.name == "run"]

    assert names.count("epoch") == count[m.EpochFinished] == 3
    assert names.count("trainer") == count[m.TrainerEnded]
    assert names.count("checkpoint") == sum(isinstance(event, m.CheckpointCommitted) for _, event in events)
    assert {span.parent_id for span in spans if span is not run} == {run.span_id}
    assert run.parent_id == 0
    (completed,) = [event for _, event in events if isinstance(event, m.RunCompleted)]
    assert (run.start_ns, run.end_ns) == (events[0][1].wall, completed.wall)
    assert all(span.start_ns <= span.end_ns for span in spans)
    assert len({span.span_id for span in spans}) == len(spans)


def test_spans_of_a_part_are_among_those_of_the_whole():
    """A recorder that starts in the middle sends the same ids; work whose begin it has not seen is left out."""
    events = a_run()
    whole = {span.span_id: span for span in spans_of(events)}
    for begin in range(1, len(events)):
        part = spans_of(events[begin:], started_ns=events[0][1].wall)
        assert all(whole[span.span_id] == span for span in part)
        assert {span.seq for span in part if span.name in ("run", "epoch")} == {
            span.seq for span in whole.values() if span.name in ("run", "epoch") and span.seq > begin
        }


def test_work_that_failed_says_why():
    """A death, a checkpoint and a rollback that were given up; a clock that went back gives no negative duration."""
    begun = m.TrainerStarted(incarnation=1, pid=5, start_ticks=1, boot_id="ab", wall=100)
    died = m.TrainerDied(incarnation=1, reason=m.DeathReason.SIGNAL, step=3, signal="SIGSEGV", wall=90)
    (span,) = spans_of([(1, begun), (2, died)])

    assert span.failed == m.DeathReason.SIGNAL.value
    assert (span.start_ns, span.end_ns) == (100, 100)
    assert span.attributes == {"incarnation": 1, "pid": 5, "step": 3, "signal": "SIGSEGV"}


def test_work_that_never_ends_is_forgotten():
    """The number of open spans is bounded."""
    made = Spans(RUN)
    for number in range(3000):
        made.add(number + 1, m.CheckpointBegun(id=f"c{number}", reason=m.CheckpointReason.END, wall=1))

    assert made.add(9999, m.CheckpointAborted(id="c0", why="x", wall=2)) is None
    assert made.add(9999, m.CheckpointAborted(id="c2999", why="x", wall=2)) is not None
