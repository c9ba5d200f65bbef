"""A daemon that ends no trainer while a file `spared` lies in its run folder: what stops it then is the page, or nothing.

With a file `diskless` there the journal can write nothing any more; the file then holds when the first write failed
(CLOCK_MONOTONIC, ns).
"""

from __future__ import annotations

import errno
import json
import sys
import time
from pathlib import Path

from journal.files import OsFiles
from tests.daemon.start_daemon import main
from tolariad.supervisor.incarnation import Incarnation


def spare_and_break() -> None:
    """Put both in; each looks at its file when its time comes."""
    folder = Path(json.loads(sys.argv[1])["run_dir"])
    spared, diskless = folder / "spared", folder / "diskless"
    kill, pwrite = Incarnation.kill, OsFiles.pwrite

    def killing(self: Incarnation, why: str) -> None:
        if not spared.exists():
            kill(self, why)

    def writing(self: OsFiles, *given: object) -> int:
        if not diskless.exists():
            return pwrite(self, *given)
        if not diskless.stat().st_size:
            now_ns = time.monotonic_ns()
            aside = diskless.with_suffix(".new")
            aside.write_text(str(now_ns))
            aside.replace(diskless)
        raise OSError(errno.EIO, "the disk is gone")

    Incarnation.kill, OsFiles.pwrite = killing, writing


if __name__ == "__main__":
    spare_and_break()
    sys.exit(main())
