"""Tables in closed segments: they contain what the events say, and a missing table does no harm."""

from __future__ import annotations

import math
from array import array

import msgspec
import pytest

from journal import Damage, Files, FrameKind, Journal, Mark, Reader, Tabulation, Verdict, columns, read_columns, verify
from journal.columns import ROWS_MAX, Gathering
from journal.format import CRC_STRUCT, HEADER_BYTES
from journal.frame import crc32c
from journal.packing import Packer
from tests.journal.faults.lab import forged, pieces_of, put_pieces
from tests.journal.make import FaultyFiles, begin, commit, numbered, read_all
from tolariad.core import messages as m
from tolariad.core.calc.steps.table import METRIC, PLOTTED, STEP_COLUMNS, plotted_row, step_row
from tolariad.core.messages.vocabulary import encode_event

SEGMENT = 24 * 4096
TABLE = Tabulation(STEP_COLUMNS, step_row, METRIC)


def step(n: int, **changed: object) -> m.StepCompleted:
    values = {
        "step": n,
        "loss": 1 / n,
        "grad_norm": n / 7,
        "lr": 1e-3 / n,
        "rates": n,
        "branch": n % 2,
        "wall": n * 10,
        "root": n,
    }
    return m.StepCompleted(epoch=1, batch=n, **{**values, **changed})


def value(one: m.StepCompleted, name: str) -> float:
    return len(one.metrics) if name == "metrics" else getattr(one, name)


def rows(steps: list[m.StepCompleted]) -> dict[str, array]:
    found = {name: array(kind, [value(one, name) for one in steps]) for name, kind in STEP_COLUMNS}
    for n in range(max((len(one.metrics) for one in steps), default=0)):
        found[f"metric{n + 1}"] = array("d", [one.metrics[n] if n < len(one.metrics) else math.nan for one in steps])
    return found


def fill(folder, steps: list[m.StepCompleted], files: Files | None = None, batch: int = 2) -> list[bytes]:
    """Commit steps, a few in a frame, with other events between them."""
    written = []
    with begin(Journal.open(folder, segment_bytes=SEGMENT, files=files or Files(), tabulation=TABLE)) as journal:
        for at in range(0, len(steps), batch):
            events = [*map(encode_event, steps[at : at + batch]), encode_event(m.RunResumed(origin="start"))]
            written += events
            commit(journal, events, step=steps[at].step)
    return written


def same(found, steps) -> bool:
    return {name: data.tobytes() for name, data in found.by_name.items()} == {
        name: data.tobytes() for name, data in rows(steps).items()
    }


def tables(folder) -> list[int]:
    with Reader(folder) as reader:
        return [one.seq for one in reader.records() if isinstance(one, Mark) and one.kind is FrameKind.STEP_TABLE]


def test_the_columns_are_those_of_the_events(quick_path):
    """Over several segments, also packed, the newest one open: every row once and in order, and verify agrees."""
    steps = [step(n) for n in range(1, 121)]
    written = fill(quick_path, steps)

    assert len(tables(quick_path)) >= 2
    assert same(read_columns(quick_path, TABLE), steps)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN
    assert read_all(quick_path, Files()) == (numbered(written), None)
    Packer(Files(), quick_path, pause_s=0).pack_all()
    assert same(read_columns(quick_path, TABLE), steps)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN


def test_numbers_that_are_not_finite_keep_their_bits(quick_path):
    """A NaN loss, infinite norms, minus zero and the largest step come back bit for bit."""
    strange = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308]
    steps = [step(n, loss=strange[n % 6], grad_norm=strange[(n + 1) % 6]) for n in range(1, 80)]
    steps.append(step(1, step=(1 << 63) - 1))
    fill(quick_path, steps)

    assert same(read_columns(quick_path, TABLE), steps)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN


def test_metrics_are_columns_of_their_own_in_the_segments_that_have_some(quick_path):
    """None at first, then more and more, and none again: NaN stands for a missing one; verify compares them."""
    many = tuple(float(n) for n in range(64))
    steps = [step(n, metrics=many[: max(0, n - 40)] if n < 130 else ()) for n in range(1, 181)]
    fill(quick_path, steps)

    assert len(tables(quick_path)) >= 3
    found = read_columns(quick_path, TABLE)
    assert same(found, steps)
    assert len(found.by_name) == len(STEP_COLUMNS) + 64
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN
    lying = Tabulation(
        STEP_COLUMNS, lambda event: (row := step_row(event)) and (*row[:12], *(-one for one in row[12:])), METRIC
    )
    assert verify(quick_path, tabulation=lying).verdict is Verdict.DAMAGED


def test_a_row_has_no_more_metrics_than_a_run_may_have(quick_path):
    """This holds for any event; a row that is too long for another reason costs the table."""
    event = encode_event(step(1, metrics=(0.0,) * 65))
    assert len(step_row(event)) == len(STEP_COLUMNS) + 64
    gathering = Gathering(Tabulation(STEP_COLUMNS, step_row))
    gathering.add([event], 1, 0)
    assert gathering.body() is None


def test_tables_of_an_older_version_are_read_from_the_events(quick_path):
    """It had no column `epoch` and no metrics."""
    steps = [step(n) for n in range(1, 61)]
    older = Tabulation(STEP_COLUMNS[:6], lambda event: (row := step_row(event)) and row[:6])
    with begin(Journal.open(quick_path, segment_bytes=SEGMENT, tabulation=older)) as journal:
        for one in steps:
            commit(journal, [encode_event(one)], step=one.step)

    assert tables(quick_path)
    assert same(read_columns(quick_path, TABLE), steps)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN


def test_columns_that_are_in_the_tables_are_read_from_there(monkeypatch, quick_path):
    """Those that plots need, from tables that have them alone and from tables that have more."""
    steps = [step(n, metrics=(float(n),)) for n in range(1, 121)]
    plotted = Tabulation(PLOTTED, plotted_row, METRIC)
    for at, tabulation in ((0, plotted), (60, TABLE)):
        with begin(Journal.open(quick_path, segment_bytes=SEGMENT, tabulation=tabulation)) as journal:
            for one in steps[at : at + 60]:
                commit(journal, [encode_event(one)], step=one.step)
    by_frames: list[object] = []
    from_events = columns._from_events
    monkeypatch.setattr(columns, "_from_events", lambda *given: by_frames.append(given) or from_events(*given))

    found = read_columns(quick_path, plotted)
    assert list(found.by_name) == [*(name for name, _ in PLOTTED), "metric1"]
    assert list(found.by_name["loss"]) == [one.loss for one in steps]
    assert list(found.by_name["metric1"]) == [float(one.step) for one in steps]
    assert len(by_frames) < len(tables(quick_path)), "the newest segment, and one that two writers shared"


def test_a_table_of_an_older_version_that_says_something_else_is_damage(quick_path):
    """The columns that both versions have are compared."""
    older = Tabulation(PLOTTED, lambda event: (row := plotted_row(event)) and (*row[:3], row[3] * 2, *row[4:7]))
    with begin(Journal.open(quick_path, segment_bytes=SEGMENT, tabulation=older)) as journal:
        for n in range(1, 61):
            commit(journal, [encode_event(step(n))], step=n)

    assert verify(quick_path, tabulation=TABLE).problem.damage == Damage.INDEX


def test_a_writer_that_starts_again_knows_the_rows_it_finds(quick_path):
    """After several restarts in the middle of a segment the tables are still complete."""
    steps = [step(n) for n in range(1, 121)]
    for at in range(0, 120, 15):
        fill(quick_path, steps[at : at + 15])

    assert len(tables(quick_path)) >= 2
    assert same(read_columns(quick_path, TABLE), steps)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN


def test_a_segment_that_failed_has_no_table_and_its_steps_are_read_from_the_events(quick_path):
    """A failed write ends a segment without seal and table. No row is lost or duplicated."""
    steps = [step(n) for n in range(1, 121)]
    fill(quick_path, steps, FaultyFiles("pwrite", 12, 12, "short"))

    assert same(read_columns(quick_path, TABLE), steps)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN


@pytest.mark.parametrize("call", range(1, 40))
def test_a_failed_write_anywhere_costs_no_row(quick_path, call):
    """This also holds for the write of a table or of the seal after it."""
    steps = [step(n) for n in range(1, 61)]
    fill(quick_path, steps, FaultyFiles("pwrite", call, call, 5))

    assert same(read_columns(quick_path, TABLE), steps)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN


def test_a_journal_that_was_written_without_tables_has_columns_all_the_same(quick_path):
    """The columns then come from the events, also if the tables have other columns."""
    steps = [step(n) for n in range(1, 61)]
    with begin(Journal.open(quick_path, segment_bytes=SEGMENT)) as journal:
        for one in steps[:30]:
            commit(journal, [encode_event(one)], step=one.step)
    other = Tabulation((("step", "Q"),), lambda event: row and row[:1] if (row := step_row(event)) else None)
    with begin(Journal.open(quick_path, segment_bytes=SEGMENT, tabulation=other)) as journal:
        for one in steps[30:]:
            commit(journal, [encode_event(one)], step=one.step)

    assert same(read_columns(quick_path, TABLE), steps)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN


def test_a_row_function_that_fails_costs_the_table_and_nothing_else(quick_path):
    """The journal continues, verifies as clean, and closes segments without tables."""

    def fails(event: bytes) -> None:
        raise ZeroDivisionError

    with begin(Journal.open(quick_path, segment_bytes=SEGMENT, tabulation=Tabulation(STEP_COLUMNS, fails))) as journal:
        for n in range(1, 61):
            assert commit(journal, [encode_event(step(n))]) == n

    assert (tables(quick_path), verify(quick_path).verdict) == ([], Verdict.CLEAN)
    assert same(read_columns(quick_path, TABLE), [step(n) for n in range(1, 61)])


def test_a_table_that_says_something_else_than_the_events_is_damage(quick_path):
    """One bit of a loss differs, with checksums and chain recomputed: verify names the table."""
    steps = [step(n) for n in range(1, 61)]
    fill(quick_path, steps)
    lying = Tabulation(STEP_COLUMNS, lambda event: (row := step_row(event)) and (*row[:3], row[3] * 2, *row[4:]))

    report = verify(quick_path, tabulation=lying)
    assert report.verdict is Verdict.DAMAGED
    assert (report.problem.damage, "step table" in report.problem.sentence) == (Damage.INDEX, True)
    assert verify(quick_path, tabulation=TABLE).verdict is Verdict.CLEAN


def test_a_table_that_was_changed_and_made_good_is_not_read(quick_path):
    """The seal after it has another hash of it, so the columns are read from the events."""
    steps = [step(n) for n in range(1, 61)]
    fill(quick_path, steps)
    path = min(quick_path.glob("*.wal"))
    image = path.read_bytes()
    table = next(one for one in pieces_of(image) if one.header.kind == FrameKind.STEP_TABLE)
    body = table.body[:-1] + bytes([table.body[-1] ^ 1])
    path.write_bytes(put_pieces(image, [forged(table, body)]))

    assert same(read_columns(quick_path, TABLE), steps)


def test_a_table_whose_columns_are_of_different_lengths_is_damage(quick_path):
    """Verify checks this even if it was not given the row function."""
    fill(quick_path, [step(n) for n in range(1, 61)])
    path = min(quick_path.glob("*.wal"))
    image = bytearray(path.read_bytes())
    frame = next(
        at for at in range(4096, len(image), 4096) if image[at : at + 8] == b"ESPERENT" and image[at + 12] == 10
    )
    (length,) = msgspec.convert([int.from_bytes(image[frame + 28 : frame + 32], "little")], list[int])
    body = msgspec.msgpack.decode(bytes(image[frame + HEADER_BYTES : frame + HEADER_BYTES + length]))
    body["rows"] += 1
    again = msgspec.msgpack.encode(body)
    assert len(again) == length
    image[frame + HEADER_BYTES : frame + HEADER_BYTES + length] = again
    image[frame + 248 : frame + 252] = CRC_STRUCT.pack(crc32c(again))
    image[frame + 252 : frame + 256] = CRC_STRUCT.pack(crc32c(bytes(image[frame : frame + 252])))
    path.write_bytes(image)

    assert verify(quick_path).problem.damage == Damage.INDEX


def test_a_segment_with_very_many_rows_is_closed(monkeypatch, quick_path):
    """Rows are kept in memory, so their number is bounded by ROWS_MAX, which is made small here."""
    monkeypatch.setattr("journal.rotation.ROWS_MAX", 10)
    steps = [step(n) for n in range(1, 61)]
    with begin(Journal.open(quick_path, tabulation=TABLE, segment_bytes=1_000_000)) as journal:
        for one in steps:
            commit(journal, [encode_event(one)], step=one.step)
        assert journal.statistics().segment_no == 6
    assert same(read_columns(quick_path, TABLE), steps)
    assert ROWS_MAX * len(STEP_COLUMNS) * 8 < 32 << 20


def test_the_row_function_takes_completed_steps_and_nothing_else():
    """Only a completed step has a row, with one number for each column."""
    assert step_row(encode_event(m.RunResumed(origin="start"))) is None
    assert step_row(b"\xc0") is None
    values = {"step": 3, "loss": 0.5, "grad_norm": 0.25, "lr": 0.125}
    # A map of up to 15 fields has a head of one byte, as events of steps had before they could have more.
    row = (3, 0, 0, 0.5, 0.25, 0.125, 0, 0, 0, 0, 0, 0)
    assert step_row(msgspec.msgpack.encode({"type": "StepCompleted", **values})) == row
    assert step_row(b"\xde\x00\x05" + msgspec.msgpack.encode({"type": "StepCompleted", **values})[1:])[0] == 3
    assert step_row(encode_event(step(3))) == (3, 1, 30, 1 / 3, 3 / 7, 1e-3 / 3, 1, 0, 3, 3, 0, 0)
    assert step_row(encode_event(step(3, metrics=(0.5, math.inf))))[11:] == (2, 0.5, math.inf)
    assert plotted_row(encode_event(step(3, metrics=(0.5,)))) == (3, 1, 30, 1 / 3, 3 / 7, 1e-3 / 3, 1, 0.5)
    gathering = Gathering(TABLE)
    gathering.add([encode_event(step(n, actor=None, cause=n)) for n in range(1, 4)], 1, 0)
    assert len(gathering.columns()) == 3
