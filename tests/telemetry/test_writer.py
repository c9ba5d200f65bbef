"""A trainer that prints for weeks does not fill the disk, and whoever follows the log misses no line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.waiting import wait_for
from tolariad.cli.logs import followed, last_printed
from tolariad.telemetry.writer import LogFile, previous


def written(log: LogFile, count: int, first: int = 0) -> list[bytes]:
    lines = [b"%06d a line of a trainer\n" % n for n in range(first, first + count)]
    for line in lines:
        log.write(line)
    return lines


def test_the_log_and_the_one_before_it_are_all_there_is(tmp_path):
    """Ten times what a file holds: two files of whole lines, the newest ones, in order."""
    path = tmp_path / "trainer.log"
    log = LogFile(path, "test", file_bytes=2700)
    lines = written(log, 1000)
    log.close(30)

    kept = (previous(path).read_bytes() + path.read_bytes()).splitlines(keepends=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["trainer.log", "trainer.log.1"]
    assert len(previous(path).read_bytes()) == 2700
    assert kept == lines[-len(kept) :]
    assert len(kept) > 100
    assert log.dropped_count == 0


def test_a_later_life_goes_on_with_the_same_file(tmp_path):
    """The output of an earlier daemon counts towards the size."""
    path = tmp_path / "trainer.log"
    for life in range(3):
        log = LogFile(path, "test", file_bytes=2700)
        written(log, 60, life * 60)
        log.close(30)

    assert len(path.read_bytes().splitlines()) == 80
    assert previous(path).read_bytes().startswith(b"000000")


def test_a_piece_larger_than_a_file_is_written_whole(tmp_path):
    """A traceback of megabytes is not divided; the next piece begins the next file."""
    path = tmp_path / "trainer.log"
    log = LogFile(path, "test", file_bytes=100)
    for piece in (b"x" * 999 + b"\n", b"next\n"):
        log.write(piece)
    log.close(30)

    assert (previous(path).stat().st_size, path.read_bytes()) == (1000, b"next\n")


def test_a_log_that_somebody_took_away_is_begun_again(tmp_path):
    """As after any logrotate: the lines go to the file that has the name."""
    path = tmp_path / "trainer.log"
    log = LogFile(path, "test", file_bytes=50)
    log.write(b"x" * 50)
    wait_for(lambda: path.stat().st_size >= 50)
    path.unlink()
    log.write(b"again\n")
    log.close(30)

    assert path.read_bytes() == b"again\n"


def test_the_last_lines_reach_into_the_file_before(tmp_path):
    """`tolaria logs -n` a moment after a rotation."""
    path = tmp_path / "trainer.log"
    log = LogFile(path, "test", file_bytes=2700)
    lines = written(log, 105)
    log.close(30)

    for count in (0, 1, 5, 6, 50, 105, 500):
        with path.open("rb") as file:
            assert last_printed(path, file, count) == b"".join(lines[len(lines) - min(count, 105) :]), count


def test_a_follower_misses_no_line_of_a_rotation(tmp_path: Path):
    """The rest of the file that was replaced, then the new one, however often it looks."""
    path = tmp_path / "trainer.log"
    path.touch()
    turns = iter(range(40))
    lines: list[bytes] = []

    def meanwhile(_s: float) -> None:
        turn = next(turns)  # its end ends the follower: StopIteration becomes the generator's RuntimeError
        log = LogFile(path, "test", file_bytes=270)
        lines.extend(written(log, turn % 9, len(lines)))
        log.close(30)

    seen: list[bytes] = []
    with pytest.raises(RuntimeError):
        seen.extend(followed(path, path.open("rb"), meanwhile))

    assert b"".join(seen).splitlines(keepends=True) == lines
    assert previous(path).exists()
