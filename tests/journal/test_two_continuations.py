"""Segments of two continuations of one run are not read as one history; a reader that refuses leaves nothing open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journal import (
    Damage,
    Files,
    Journal,
    JournalDamaged,
    JournalError,
    Reader,
    Verdict,
    plan_repair,
    read_columns,
    verify,
)
from tests.descriptors import opened
from tests.journal.make import begin, commit, entries, event, read_all
from tests.journal.test_columns import TABLE, fill, step
from tests.journal.test_upkeep import edit

SEGMENT = 16 * 4096


def continued(folder: Path, mark: str, count: int = 45) -> None:
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
        for n in range(count):
            commit(journal, [event(n if mark == "a" else n + 1000)], step=n)


@pytest.fixture(params=[2, 3], ids=["from the second on", "only the last ones"])
def mixed(tmp_path, request):
    """The first segments of one continuation, and the later ones of another, which have the same names."""
    one, other = tmp_path / "one", tmp_path / "other"
    with begin(Journal.open(one, segment_bytes=SEGMENT)) as journal:
        commit(journal, [event(0)])
    shutil.copytree(one, other)
    continued(one, "a")
    continued(other, "b")
    ours, theirs = sorted(one.glob("*.wal")), sorted(other.glob("*.wal"))
    assert [path.name for path in ours] == [path.name for path in theirs]
    assert len(ours) > request.param
    for path in theirs[request.param - 1 :]:
        shutil.copy(path, one / path.name)
    return one, int(theirs[request.param - 1].name[9:25])


def test_two_continuations_of_a_run_are_not_one_history(mixed):
    """Read on from the first segment, or begun in the second one: the link is named, and nothing of it is given out."""
    folder, first = mixed
    before = opened()
    got, refused = read_all(folder, Files())
    assert refused.damage is Damage.LINK
    assert [seq for seq, _ in got] == list(range(1, first))

    for move in ({"seq": first + 1}, {"seq": first}):
        with Reader(folder) as reader, pytest.raises(JournalDamaged, match="predecessor"):
            list(reader.seek(**move))
    with Reader(folder) as reader, pytest.raises(JournalDamaged, match="predecessor"):
        list(reader.records())
    assert verify(folder).verdict is Verdict.TAMPERED
    assert not opened() - before


def test_the_numbers_of_two_continuations_are_not_one_table(quick_path):
    """`tolaria metrics` and `tolaria plot` read columns."""
    one, other = quick_path / "one", quick_path / "other"
    fill(one, [step(1)])
    shutil.copytree(one, other)
    fill(one, [step(n) for n in range(2, 121)])
    fill(other, [step(n, loss=n) for n in range(2, 121)])
    later = sorted(other.glob("*.wal"))[1:]
    for path in later:
        shutil.copy(path, one / path.name)

    with pytest.raises(JournalDamaged) as refused:
        read_columns(one, TABLE)
    assert later
    assert refused.value.damage is Damage.LINK


def test_rows_after_damage_are_not_left_out_without_a_word(quick_path):
    """The newest segment has no table yet, so its rows come from its events."""
    fill(quick_path, [step(n) for n in range(1, 12)])
    edit(max(quick_path.glob("*.wal")), 3 * 4096 + 300, b"\xff\xff")
    with pytest.raises(JournalDamaged):
        read_columns(quick_path, TABLE)


def test_a_later_segment_is_read_if_the_end_of_the_one_before_it_is_damaged(tmp_path):
    """Damage is no sign of another continuation: what lies after it can still be looked at."""
    continued(tmp_path, "a")
    first, second, *_ = sorted(tmp_path.glob("*.wal"))
    length = first.stat().st_size
    with first.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(length - 4096))
    with Reader(tmp_path) as reader:
        found = entries(reader.seek(seq=int(second.name[9:25]) + 1))
        assert found
        with pytest.raises(JournalDamaged):
            list(reader.seek(seq=1))


@pytest.mark.parametrize("segment", [0, 1, -1])
@pytest.mark.parametrize("offset", [0, 16, 4096 + 16, 4096 + 200, 3 * 4096 + 260])
def test_what_refuses_a_damaged_journal_leaves_no_descriptor_open(tmp_path, segment, offset):
    """Every function that reads, over damage at any place."""
    continued(tmp_path, "a")
    edit(sorted(tmp_path.glob("*.wal"))[segment], offset, os.urandom(9))
    before = opened()

    def read() -> None:
        with Reader(tmp_path) as reader:
            list(reader)

    def seek() -> None:
        with Reader(tmp_path) as reader:
            list(reader.seek(step=20))

    def back() -> None:
        with Reader(tmp_path) as reader:
            reader.tail(100)

    def captured() -> None:
        with Reader(tmp_path) as reader:
            list(reader.captures())
            assert reader.last_seq >= 0

    def others() -> Iterator[Callable[[], object]]:
        yield lambda: verify(tmp_path)
        yield lambda: plan_repair(tmp_path)
        yield lambda: read_columns(tmp_path, TABLE)
        yield lambda: Journal.open(tmp_path, segment_bytes=SEGMENT).close()

    refused = 0
    for use in (read, seek, back, captured, *others()):
        try:
            use()
        except JournalError:
            refused += 1
        assert not opened() - before, use
    assert refused
