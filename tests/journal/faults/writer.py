"""The writer as a separate program, for faults that affect a whole process. It prints its acknowledgements."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.journal.faults.harness import SEGMENT, PipedAcks, Plan, work


def command(folder: Path, seed: str, turns: int, acked: int = 0, segment_bytes: int = SEGMENT) -> list[str]:
    """Return the command line of a writer."""
    where = [str(folder), seed, str(turns), str(acked), str(segment_bytes)]
    return [sys.executable, "-m", "tests.journal.faults.writer", *where]


def main(folder: str, seed: str, turns: str, acked: str, segment_bytes: str) -> int:
    """Run one life. The exit status is that of `work`."""
    plan = Plan(seed=seed, turns=int(turns), segment_bytes=int(segment_bytes))
    return work(Path(folder), plan, PipedAcks(1, int(acked)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
