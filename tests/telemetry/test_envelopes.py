"""What travels on the bus: every event of a run in an envelope that is read back, with an id that a repeat shares."""

from __future__ import annotations

import math

import pytest

from tests.core.simulate import World, completes
from tolariad import leyline as wire
from tolariad.core import messages as m
from tolariad.core.calc.priorities import TelemetryPriority as P
from tolariad.telemetry.envelopes import EMERGENCY, NORMAL, TELEMETRY, entries
from tolariad.telemetry.messages import TelemetryMessage, message_of, span_message
from tolariad.telemetry.spans import Spans

RUN = bytes(range(16))
WALL = 1_700_000_000_123_456_789


def sent(*events: m.Event, first: int = 1):
    """Return the envelopes of these events, and what is in them."""
    messages = [message_of(seq, one, epoch=1, step=2, phase="running") for seq, one in enumerate(events, first)]
    return [opened(one) for one in entries(RUN, "blue\x1b", messages)]


def opened(entry):
    envelope = wire.EventEnvelope.FromString(entry.envelope)
    kind = getattr(wire, envelope.payload_type.removeprefix("esper.leyline.v1."))
    assert envelope.event_id == entry.event_id
    return entry, envelope, kind.FromString(envelope.payload)


def step(loss: float = 0.5, grad_norm: float = 2.0) -> m.StepCompleted:
    return m.StepCompleted(
        step=7, epoch=2, batch=3, loss=loss, grad_norm=grad_norm, lr=0.1, rates=1, branch=1, wall=WALL
    )


def test_a_step_is_measurements():
    """With its labels; NaN too; a norm that was not measured is left out."""
    (entry, envelope, packet), (_, _, odd) = sent(step(), step(math.nan, -1.0))

    assert (entry.stream, entry.is_urgent) == (TELEMETRY, False)
    assert envelope.priority == wire.MessagePriority.MESSAGE_PRIORITY_LOW
    assert envelope.created_at.ToNanoseconds() == WALL
    assert {one.name: one.value for one in packet.metrics} == {
        "tolaria.training.loss": 0.5,
        "tolaria.training.gradient_norm": 2.0,
        "tolaria.training.learning_rate": 0.1,
    }
    assert packet.metrics[0].attributes == {
        "run": "blue\\x1b",
        "run_id": RUN.hex(),
        "epoch": "2",
        "step": "7",
        "branch": "1",
    }
    assert [one.name for one in odd.metrics] == ["tolaria.training.loss", "tolaria.training.learning_rate"]
    assert math.isnan(odd.metrics[0].value)


@pytest.mark.parametrize(
    ("level", "number", "priority"),
    [
        (m.Level.MINOR, 1, P.HIGH),
        (m.Level.MAJOR, 2, P.HIGH),
        (m.Level.SEVERE, 3, P.EMERGENCY),
        (m.Level.CRITICAL, 4, P.EMERGENCY),
    ],
)
def test_an_emergency_is_a_signal(level, number, priority):
    """By Leyline's number of its level, in the stream of emergencies; the two upper levels pass the queue."""
    event = m.EmergencyRaised(level=level, why="loss is NaN\ud800", wall=WALL, mono=5_000_000)
    assert message_of(9, event, epoch=1, step=2, phase="running").priority is priority
    ((entry, envelope, signal),) = sent(event)

    assert isinstance(signal, wire.EmergencySignal)
    assert (signal.version, signal.level, signal.origin) == (1, number, "tolaria")
    assert signal.reason == "loss is NaN\\ud800"
    assert (signal.monotonic_time_ms, signal.run_id) == (5, RUN.hex())
    assert entry.is_urgent
    assert list(envelope.routing_keys) == [EMERGENCY]


def test_every_event_of_a_run_travels():
    """A whole run with a rollback: each envelope is read back, the ids differ, a repeat has the same bytes."""
    world = World(1, epochs=3)
    completes(world)
    events = world.events
    first, again = sent(*events), sent(*events)

    assert [entry for entry, _, _ in first] == [entry for entry, _, _ in again]
    assert len({entry.event_id for entry, _, _ in first}) == len(events)
    assert {envelope.event_type for _, envelope, _ in first} >= {"RunStarted", "StepCompleted", "RunCompleted"}
    assert all(packet.events[0].description for _, _, packet in first if getattr(packet, "events", ()))


def test_a_span_has_its_times_and_its_parent():
    """The piece of work of a checkpoint, with its fields as texts."""
    spans = Spans(RUN)
    begun = m.CheckpointBegun(id="c1", reason=m.CheckpointReason.END, wall=WALL)
    assert spans.add(4, begun) is None
    span = spans.add(9, m.CheckpointAborted(id="c1", why="disk", wall=WALL + 5))
    ((entry, envelope, packet),) = map(opened, entries(RUN, "blue", [span_message(span)]))

    (found,) = packet.spans
    assert (found.name, len(found.span_id), len(found.parent_span_id)) == ("checkpoint", 16, 16)
    assert (found.start_time.ToNanoseconds(), found.end_time.ToNanoseconds()) == (WALL, WALL + 5)
    assert found.attributes["failed"] == "disk"
    assert found.attributes["reason"] == m.CheckpointReason.END.value
    assert entry.is_urgent
    assert envelope.event_type == "span checkpoint"


def test_a_programs_own_message_travels():
    """What `collect_telemetry` was given: single values as texts."""
    message = TelemetryMessage(WALL, P.NORMAL, "kasmina", "Germinated", {"slot": "a", "alpha": 0.5, "more": [1]})
    ((entry, envelope, packet),) = map(opened, entries(RUN, "blue", [message]))

    assert (entry.stream, envelope.source_subsystem) == (NORMAL, "kasmina")
    assert packet.events[0].attributes == {"slot": "a", "alpha": "0.5"}
