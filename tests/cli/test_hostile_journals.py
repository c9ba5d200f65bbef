"""Every command that reads, on journals that no run has written: each ends with a sentence, never with a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.hostile import make, real_events
from tests.cli.stored import record
from tests.descriptors import opened
from tests.waiting import within
from tolariad.cli.errors import translated
from tolariad.cli.tolaria import tolaria

COMMANDS = [
    ["events", "RUN"],
    ["events", "RUN", "-o", "verbose"],
    ["events", "RUN", "-o", "json", "-r"],
    ["events", "RUN", "-o", "cat", "-n", "5"],
    ["events", "RUN", "-t", "Step", "--since", "step:2", "--until", "epoch:2"],
    ["events", "RUN", "-g", "evil|loss", "--lineage", "--since", "@1"],
    ["state", "RUN"],
    ["state", "RUN", "--json"],
    ["state", "RUN", "--full", "--at", "step:3"],
    ["state", "RUN", "--at", "seq:9"],
    ["why", "RUN", "phase"],
    ["why", "RUN", "lr", "--json"],
    ["why", "RUN", "checkpoint", "-o", "verbose"],
    ["why", "RUN", "step:3"],
    ["why", "RUN", "seq:20"],
    ["why", "RUN", "OrderActed:SetRate"],
    ["why", "RUN", "c000001"],
    ["why", "RUN", "slow"],
    ["diff", "RUN", "RUN"],
    ["diff", "RUN", "step:2", "now"],
    ["report", "RUN", "-o", "PAGE"],
    ["metrics", "RUN"],
    ["metrics", "RUN", "--epochs"],
    ["metrics", "RUN", "--csv"],
    ["metrics", "RUN", "--json", "-n", "3"],
    ["plot", "RUN"],
    ["plot", "RUN", "--log"],
    ["checkpoints", "RUN"],
    ["checkpoints", "RUN", "--verify", "--json"],
    ["status", "RUN"],
    ["status", "RUN", "--json"],
    ["status", "RUN", "--budgets"],
    ["list", "RUNS"],
    ["list", "RUNS", "--json"],
    ["logs", "--dir", "RUN"],
    ["lr", "show", "RUN"],
    ["seeds", "list", "RUN"],
    ["prune", "status", "RUN"],
    ["prune", "status", "RUN", "--json"],
    ["quarantine", "list", "RUN"],
    ["quarantine", "list", "RUN", "--json"],
    ["journal", "verify", "RUN"],
    ["journal", "verify", "RUN", "--json"],
    ["journal", "stats", "RUN"],
    ["journal", "repair", "RUN", "-n"],
    ["journal", "export", "RUN"],
    ["journal", "export", "RUN", "--raw"],
    ["export-weights", "RUN", "-o", "FILE"],
]
CODES = {0, 1, 2, 3, 4}


def wrong_with(arguments: list[str]) -> str:
    """Run one command in this process. Return what is wrong with its end, or ""."""
    before = opened()
    result = CliRunner().invoke(tolaria, arguments)
    error, shown = result.exception, result.output
    if error is not None and not isinstance(error, SystemExit):
        known = translated(error)
        if known is None:
            return f"raised {error!r}"[:300]
        shown += f"{known.what}\n{known.hint}"
        if not known.what.strip() or len(known.what) > 10_000:
            return f"says {known.what[:100]!r}"
    elif result.exit_code not in CODES:
        return f"exit code {result.exit_code}"
    if "Traceback" in result.output:
        return f"printed a traceback: {result.output[-300:]}"
    raw = {one for one in result.output if one not in "\n\t" and not one.isprintable()}
    if raw:
        return f"printed {raw}"
    # A server of the test, in this process, closes its end a moment later.
    return "" if within(5.0, lambda: not opened() - before) else f"left {opened() - before} open"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The events of a real run."""
    return real_events(record(tmp_path_factory.mktemp("real")))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The checkpoints of such a run: what a hostile journal may name."""
    return record(tmp_path_factory.mktemp("kept")) / "checkpoints"


@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.torture)])
def test_every_reading_command_ends_with_a_sentence(quick_path, real, checkpoints, seed, count, monkeypatch):
    """Drawn journals; in the ordinary suite a part of the commands each, so that every command meets several."""
    monkeypatch.setenv("COLUMNS", "100")
    wrong = []
    for number in range(count):
        run = make(quick_path / "runs" / f"r{number}", f"{seed} {number}", real)
        shutil.copytree(checkpoints, run / "checkpoints")
        chosen = COMMANDS if count > 100 else COMMANDS[number % 4 :: 4]
        places = {"RUN": str(run), "RUNS": str(quick_path / "runs"), "FILE": str(quick_path / "w.safetensors")}
        places |= {"PAGE": str(quick_path / "page.html")}
        for command in chosen:
            what = wrong_with([places.get(word, word) for word in command])
            if what:
                wrong.append((number, " ".join(command), what))
        if count > 100:
            shutil.rmtree(run)
    assert wrong == []


def broken_runs(folder: Path, real) -> list[Path]:
    """Return folders with a journal that is empty, foreign, cut or damaged."""
    made = []

    def add(name: str, *, whole: bool = True) -> Path:
        run = folder / name
        made.append(run)
        return make(run, "calm", real) if whole else run

    (add("no segment", whole=False) / "journal").mkdir(parents=True)
    foreign = add("foreign", whole=False) / "journal"
    foreign.mkdir(parents=True)
    (foreign / "00000001-0000000000000001.wal").write_bytes(b"LevelDB" * 5000)
    other = add("other names", whole=False) / "journal"
    other.mkdir(parents=True)
    (other / "000003.wal.log").write_bytes(b"x")
    empty = add("empty segment") / "journal"
    min(empty.glob("*.wal")).write_bytes(b"")
    half = min((add("cut") / "journal").glob("*.wal"))
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2 + 17])
    flipped = min((add("damaged") / "journal").glob("*.wal"))
    data = bytearray(flipped.read_bytes())
    data[4096 * 5 + 300] ^= 0xFF
    flipped.write_bytes(data)
    zeros = min((add("zeros") / "journal").glob("*.wal"))
    zeros.write_bytes(bytes(zeros.stat().st_size))
    folder_in_place = min((add("folder in place") / "journal").glob("*.wal"))
    folder_in_place.unlink()
    folder_in_place.mkdir()
    return made


def test_a_journal_that_is_empty_foreign_or_damaged_ends_every_command_with_a_sentence(quick_path, real):
    """No segment, another program's files, a cut or flipped or zeroed segment, a folder in its place."""
    wrong = []
    for run in broken_runs(quick_path / "runs", real):
        for command in COMMANDS:
            places = {"RUN": str(run), "RUNS": str(run.parent), "FILE": str(quick_path / "w.safetensors")}
            places |= {"PAGE": str(quick_path / "page.html")}
            what = wrong_with([places.get(word, word) for word in command])
            if what:
                wrong.append((run.name, " ".join(command), what))
    assert wrong == []
