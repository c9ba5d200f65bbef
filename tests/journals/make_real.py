"""Keeps journals of real runs that between them hold every type of event that a run can make.

    python -m tests.journals.make_real [--from FOLDER …]

It runs `drive_real.py` and the tests named in `SOURCES`: runs with a real trainer, through deaths, orders and failures.
It takes the fewest of their journals that hold every type. Each becomes `real/NAME.tar.zst`, beside `real/NAME.json`,
what it folds to. It takes eight minutes and root, for a small file system. `--from`: take the journals of earlier calls
of pytest that kept their folders (`drive` says how).

Run it again if a type of event is added: give `drive_real.py` a few lines that make a run record it. If no run can make
it, say why in `NOT_MADE`. A journal holds the paths of the files in its stack traces. So run this in a folder whose
path may be published, such as a bind mount of the checkout at /mnt
(`PYTHONPATH=/mnt /mnt/.venv/bin/python -m tests.journals.make_real`).
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zstandard

from journal import JournalEntry, JournalError, Reader
from tests.journals.make_golden import as_json
from tests.journals.packed import REAL
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import EVENT_TYPES, decode_event
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState

ROOT = Path(__file__).parents[2]
# The captures of a state at the segments' heads repeat one another: the window holds all of a journal.
COMPRESSOR = zstandard.ZstdCompressor(
    compression_params=zstandard.ZstdCompressionParameters.from_level(22, window_log=27, enable_ldm=True)
)
SOURCES = (
    "tests/library/test_autopilot.py",
    "tests/library/test_growing.py",
    "tests/library/test_recorded_growth.py",
    "tests/library/test_extend.py",
    "tests/library/test_emergency.py",
    "tests/library/test_backing_off.py",
    "tests/library/test_seeds.py",
    "tests/library/test_pruning.py",
    "tests/daemon/test_pruning.py",
    "tests/daemon/test_seeds.py",
    "tests/library/test_strategy.py",
    "tests/daemon/test_strategy.py",
    "tests/daemon/test_fast_rollback.py",
    "tests/campaign/test_campaign.py",
)
# The events that are in no kept journal, and why.
NOT_MADE = {
    "TrainerUnkillable": "a process that SIGKILL does not end hangs inside the system's kernel",
    "StrategyAnswerVoided": "an answer is void only if it crosses with its deadline, or with a rollback",
    "SpareChanged": "the kept journals are of runs that had no spare; the next `make_real` takes this line out",
    "ParametersDigested": "the kept journals are of versions before it; the next `make_real` takes this line out",
    "TelemetryDropped": "the queue whose losses it counted is gone until there is a bus",
}


def drive(folder: Path) -> None:
    """Run what makes journals, and keep its folders below `folder`."""
    kept = ["--basetemp", str(folder), "-o", "tmp_path_retention_policy=all", "-p", "no:cacheprovider"]
    tests = ["tests/journals/drive_real.py", *SOURCES]
    # All cases, also those that a session draws from, and a campaign of all variants.
    every = ["-m", "sample or not torture"]
    environment = os.environ | {"TOLARIA_CAMPAIGN_RUNS": "16"}
    subprocess.run([sys.executable, "-m", "pytest", "-q", *every, *kept, *tests], cwd=ROOT, env=environment, check=True)


def found(folder: Path) -> Iterator[tuple[Path, frozenset[str], int]]:
    """Yield each whole journal of a run with a real trainer: its folder, its types of events, its size."""
    for journal in sorted(folder.rglob("journal")):
        if any(path.is_symlink() for path in journal.parents) or not any(journal.glob("*.wal*")):
            continue
        try:
            events = [decode_event(entry.event) for entry in Reader(journal) if isinstance(entry, JournalEntry)]
        except JournalError:
            continue
        contexts = [event for event in events if isinstance(event, m.ExecutionContextRecorded)]
        if contexts and all("+" in one.environment.torch or one.environment.torch[0].isdigit() for one in contexts):
            yield (
                journal,
                frozenset(type(event).__name__ for event in events if isinstance(event, m.Event)),
                len(events),
            )


def fewest(journals: list[tuple[Path, frozenset[str], int]]) -> list[Path]:
    """Return journals that together hold every type that any of them has: again and again the one that adds most."""
    left, taken = set().union(*(types for _, types, _ in journals)), list[Path]()
    while left:
        path, types, _ = max(journals, key=lambda one: (len(one[1] & left), -one[2]))
        taken.append(path)
        left -= types
    return taken


def keep(journal: Path, name: str) -> None:
    """Pack one journal, without its empty spares and locks, and write what it folds to."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(journal.glob("*.wal*")):
            # A packed segment is kept unpacked: all of them compressed together take a quarter of the space.
            content = path.read_bytes()
            if path.suffix == ".zst":
                content = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
            entry = tarfile.TarInfo(path.name.removesuffix(".zst"))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    (REAL / f"{name}.tar.zst").write_bytes(COMPRESSOR.compress(packed.getvalue()))
    state = replay_records(RunState(), Reader(journal).records(), strict=True).state
    (REAL / f"{name}.json").write_bytes(as_json(state))


def main() -> None:
    """Drive, choose, keep; say what is missing."""
    with tempfile.TemporaryDirectory() as made:
        folders = [Path(name) for name in sys.argv[2:]]
        if not folders:
            folders = [Path(made) / "runs"]
            drive(folders[0])
        journals = [one for folder in folders for one in found(folder)]
        REAL.mkdir(exist_ok=True)
        for old in REAL.iterdir():
            old.unlink()
        for number, journal in enumerate(fewest(journals), start=1):
            keep(journal, f"{number:02d}")
        there = set().union(*(types for _, types, _ in journals))
        print(f"{len(there)} types in {number} journals; missing: {sorted(set(EVENT_TYPES) - there - set(NOT_MADE))}")


if __name__ == "__main__":
    main()
