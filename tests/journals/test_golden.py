"""Old journals for ever: what a released version wrote folds, under today's code, to the state it folded to then."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from journal import FrameKind, Journal, Reader, Rows, Tabulation, Verdict, rows_and_records, verify
from tests.journals.make_golden import as_json, changed
from tests.journals.make_real import NOT_MADE
from tests.journals.packed import REAL, unpacked
from tests.journals.renamed import renamed
from tolariad.core.calc.steps.table import METRIC, STEP_COLUMNS, step_row, steps_in
from tolariad.core.messages.vocabulary import EVENT_TYPES, decode_event
from tolariad.core.state.replay import newest_usable, replay_records
from tolariad.core.state.run_state import RunState, apply, canonical_bytes

GOLDEN = sorted(path.parent for path in Path(__file__).parent.glob("*/expected.json"))


def test_there_is_a_golden_journal():
    """Of every version from 0.1 on."""
    assert GOLDEN


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_a_golden_journal_folds_to_the_recorded_state(folder):
    """Field by field; from its first event, and from each of its captures if they are of this FOLD_VERSION."""
    recorded = msgspec.json.decode((folder / "expected.json").read_bytes())
    reader = Reader(folder / "journal")
    whole = replay_records(RunState(), renamed(reader.records()), strict=True)

    assert msgspec.json.decode(as_json(whole.state)) == recorded
    assert whole.unknown == {}
    captures = list(Reader(folder / "journal").captures())
    assert len(captures) >= 3
    for one in captures:
        start = newest_usable([one])
        records = renamed(Reader(folder / "journal").records(start.seq))
        assert replay_records(start, records, strict=True).state == whole.state


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: path.name)
def test_a_golden_journal_verifies_and_holds_every_kind_of_frame(folder):
    """Bytes, chain, seals and links; and state hashes, so that the fold is checked inside, not only at its end."""
    report = verify(folder / "journal")
    marks = [record.kind for record in Reader(folder / "journal").records() if hasattr(record, "kind")]

    assert report.verdict is Verdict.CLEAN
    assert report.segments >= 3
    assert marks.count(FrameKind.STATE_HASH) >= 3


def test_a_record_may_gain_fields_and_never_change_one():
    """The record is written again with every field that RunState gains: what it held must be in it still."""
    recorded = {"a": 1, "b": [{"c": 2.0}, {"c": None}]}

    assert list(changed(recorded, {"a": 1, "b": [{"c": 2.0, "e": 5}, {"c": None}], "d": 4})) == []
    assert list(changed(recorded, {"a": 2, "b": [{"c": 2.0}, {"d": None}]})) == ["state.a", "state.b.1.c"]
    assert list(changed(recorded, {"a": 1, "b": [{"c": 2.0}]})) == ["state.b"]
    assert list(changed(recorded, {"b": recorded["b"]})) == ["state.a"]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The kept journals of real runs, unpacked, by name."""
    folder = tmp_path_factory.mktemp("real")
    return {path.name.split(".")[0]: unpacked(path, folder / path.name) for path in sorted(REAL.glob("*.tar.zst"))}


def test_the_journal_of_a_real_run_folds_to_the_state_that_was_recorded(real):
    """Field by field; daemon, trainer and torch wrote them, through deaths, orders, a full disk and damage."""
    assert real
    for name, folder in real.items():
        state = replay_records(RunState(), renamed(Reader(folder).records()), strict=True).state
        assert msgspec.json.decode(as_json(state)) == msgspec.json.decode((REAL / f"{name}.json").read_bytes()), name


def test_a_kept_journal_folds_to_the_same_state_by_tables_and_event_by_event(real, tmp_path):
    """Every event of every kept journal, written again with tables: `apply` for each, and the fold that readers use."""
    kept = {path.name: path / "journal" for path in Path(__file__).parent.iterdir() if (path / "journal").is_dir()}
    tables: dict[str, int] = {}
    for name, folder in (real | kept).items():
        events = [entry for entry in renamed(Reader(folder)) if hasattr(entry, "event")]
        whole = RunState()
        for entry in events:
            whole = apply(whole, decode_event(entry.event))
        with Reader(_with_tables(tmp_path / name, [bytes(entry.event) for entry in events])) as reader:
            records = list(rows_and_records(reader, steps_in))
            tables[name] = sum(isinstance(one, Rows) for one in records)

        assert canonical_bytes(replay_records(RunState(), records).state) == canonical_bytes(whole), name
    assert sum(map(bool, tables.values())) > 2, tables


def _with_tables(folder: Path, events: list[bytes]) -> Path:
    """Write a journal with these events, some in a frame, in many short segments with tables."""
    with Journal.open(folder, segment_bytes=1 << 16, tabulation=Tabulation(STEP_COLUMNS, step_row, METRIC)) as journal:
        journal.begin(run_id=bytes(16), context_hash=bytes(32), capture=lambda: b"\xc0", wall_ns=1, boot_id=bytes(16))
        for at in range(0, len(events), 7):
            journal.commit(events[at : at + 7], epoch=0, step=0, wall_ns=1, mono_ns=1)
    return folder


def test_every_type_of_event_is_in_the_journal_of_a_real_run(real):
    """But those that no run can make, each with its reason. `make_real` says what to do for a new one."""
    types = {
        msgspec.msgpack.decode(entry.event)["type"] for folder in real.values() for entry in renamed(Reader(folder))
    }
    assert set(EVENT_TYPES) - types == set(NOT_MADE)
    assert types <= set(EVENT_TYPES)
