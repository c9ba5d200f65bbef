"""A daemon that kills no trainer while a file `spared` is in its run folder: only the page can stop the trainer.

With a file `diskless` there the journal can write nothing any more; the file then holds when the first write failed
(CLOCK_MONOTONIC, ns).
"""

from __future__ import annotations

import errno
import json
import sys
import time
from pathlib import Path

from journal.files import Files
from tests.daemon.start_daemon import main
from tolariad.supervisor.incarnation import Incarnation


def spare_and_break() -> None:
    """Install both; each checks its file when it is called."""
    folder = Path(json.loads(sys.argv[1])["run_dir"])
    spared, diskless = folder / "spared", folder / "diskless"
    kill, pwrite = Incarnation.kill, Files.pwrite

    def killing(self: Incarnation, why: str) -> None:
        if not spared.exists():
            kill(self, why)

    def writing(self: Files, *given: object) -> int:
        if not diskless.exists():
            return pwrite(self, *given)
        if not diskless.stat().st_size:
            now_ns = time.monotonic_ns()
            aside = diskless.with_suffix(".new")
            aside.write_text(str(now_ns))
            aside.replace(diskless)
        raise OSError(errno.EIO, "the disk is gone")

    Incarnation.kill, Files.pwrite = killing, writing


if __name__ == "__main__":
    spare_and_break()
    sys.exit(main())
