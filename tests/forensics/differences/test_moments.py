"""What changed between two moments of a run."""

from __future__ import annotations

import msgspec
import pytest

from journal import Reader
from tests.forensics.differences.written import events_of_a_run, step_at, write
from tolariad.core import messages as m
from tolariad.forensics.differences.contexts import Part, flattened
from tolariad.forensics.differences.moments import between


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """The events of a run of 30 steps."""
    return events_of_a_run(tmp_path_factory.mktemp("run") / "journal")


def test_a_field_is_named_with_the_event_that_changed_it(events, tmp_path):
    """The quarantine got a batch after step 12; nothing else did it."""
    at = step_at(events, 12) + 1
    added = m.QuarantineAdded(name="q1", checkpoint="c000009", why="by hand")
    write(tmp_path / "j", [*events[:at], added, *events[at:]])
    with Reader(tmp_path / "j") as reader:
        found = between(reader, at - 1, reader.last_seq)

    quarantined = {one.seq for one in found.changed if one.name.startswith("quarantine.")}
    assert quarantined == {at + 1}
    assert at + 1 in found.events
    assert found.steps == 30 - 11


def test_between_a_moment_and_itself_nothing_changed(events, tmp_path):
    """No event, no field, no condition."""
    write(tmp_path / "j", events)
    with Reader(tmp_path / "j") as reader:
        found = between(reader, 20, 20)

    assert (found.steps, found.types, found.changed, found.context, found.events) == (0, {}, (), (), ())


def test_another_library_after_a_restart_is_a_condition(events, tmp_path):
    """The trainer that began again has another torch."""
    context = next(one for one in events if isinstance(one, m.ExecutionContextRecorded))
    newer = m.ExecutionContextRecorded(
        incarnation=2,
        environment=msgspec.structs.replace(context.environment, torch="2.14.0"),
        hash="other",
        parameters=10,
        steps_per_epoch=10,
    )
    started = m.TrainerStarted(incarnation=2, pid=9, start_ticks=1, boot_id="ab")
    at = len(events)
    write(tmp_path / "j", [*events, started, newer])
    with Reader(tmp_path / "j") as reader:
        found = between(reader, at, at + 2)

    assert [(one.part, one.name, one.a, one.b) for one in found.context] == [
        (Part.LIBRARIES, "torch", "2.13.0", "2.14.0")
    ]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (("losses=1.0", "pillow=9"), ("losses=2.0", "pillow=9"), [("losses", "1.0", "2.0")]),
        (("losses=1.0",), ("losses=1.0", "pillow=9"), [("pillow", None, "9")]),
        # A journal of an older version does not say what was loaded.
        ((), ("losses=2.0",), []),
    ],
)
def test_any_library_of_another_version_is_a_condition(events, tmp_path, before, after, told):
    """Not those alone of which the environment has fields."""
    at = next(n for n, one in enumerate(events) if isinstance(one, m.ExecutionContextRecorded))

    def of(listed, incarnation):
        libraries = tuple(m.Library(*one.split("=")) for one in listed)
        return msgspec.structs.replace(events[at], libraries=libraries, incarnation=incarnation)

    started = m.TrainerStarted(incarnation=2, pid=9, start_ticks=1, boot_id="ab")
    write(tmp_path / "j", [*events[:at], of(before, 1), *events[at + 1 :], started, of(after, 2)])
    with Reader(tmp_path / "j") as reader:
        found = between(reader, len(events), len(events) + 2)

    assert [(one.name, one.a, one.b) for one in found.context if one.part is Part.LIBRARIES] == told
    assert all(one.matters for one in found.context if one.part is Part.LIBRARIES)


def test_a_map_that_has_lost_its_keys_differs_by_them_alone():
    """Not by itself as well. A value is found by its dotted key."""
    assert flattened('{"tolaria": {"a": {"b": 1, "c": {}}, "d": null}}') == {"a.b": 1, "d": None}
    assert flattened('{"tolaria": {"a": {}}}') == {}
    assert flattened("no JSON") == {"*": "no JSON"}
