"""Start the ranks of a group as forks of the test's process, and collect what they return."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from tests.waiting import PATIENCE_S, wait_for

LOOPBACK = "lo"


class Group:
    """Ranks that run `work(rank, ranks, mapping)`, each in a process of its own, with one mapping and gloo."""

    def __init__(self, folder: Path, ranks: int, work: Callable[[int, int, int], Any]) -> None:
        self._folder, self._ranks, self._work = folder, ranks, work
        folder.mkdir()
        self.mapping = os.memfd_create("gradients", os.MFD_CLOEXEC)
        self.pids = [self._forked(rank) for rank in range(ranks)]
        self._left = dict(enumerate(self.pids))

    def _forked(self, rank: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
            store = distributed.FileStore(str(self._folder / "store"), self._ranks)
            distributed.init_process_group(
                "gloo", store=store, rank=rank, world_size=self._ranks, timeout=timedelta(seconds=PATIENCE_S)
            )
            found = self._work(rank, self._ranks, self.mapping)
            written = self._folder / f"{rank}.new"
            written.write_text(json.dumps(found))
            written.rename(self._folder / f"{rank}.json")
            code = 0
        except BaseException:
            (self._folder / f"{rank}.error").write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def wait_for(self, rank: int) -> Any:
        """Return what one rank returned, after its end. Fails if it raised."""
        wait_for(lambda: (self._folder / f"{rank}.json").exists() or self.error(rank), f"the end of rank {rank}")
        assert not self.error(rank), self.error(rank)
        return self.returned(rank)

    def wait(self, seconds: float = PATIENCE_S) -> dict[int, int]:
        """Return the exit codes of all ranks by rank. Fails after so many seconds, and ends those that are left."""
        codes: dict[int, int] = {}
        deadline = time.monotonic() + seconds
        while self._left and time.monotonic() < deadline:
            for rank, pid in list(self._left.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[rank] = os.waitstatus_to_exitcode(status)
                    del self._left[rank]
            time.sleep(0.002)
        silent = sorted(self._left)
        self.end()
        assert not silent, f"ranks {silent} did not end within {seconds} s"
        return codes

    def end(self) -> None:
        """End the ranks that have not ended."""
        for pid in self._left.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._left.clear()
        if self.mapping >= 0:
            os.close(self.mapping)
            self.mapping = -1

    def returned(self, rank: int) -> Any:
        """Return what a rank returned."""
        return json.loads((self._folder / f"{rank}.json").read_text())

    def error(self, rank: int) -> str:
        """Return the traceback of a rank that raised, or ""."""
        path = self._folder / f"{rank}.error"
        return path.read_text() if path.exists() else ""


def results(folder: Path, ranks: int, work: Callable[[int, int, int], Any]) -> list[Any]:
    """Run the ranks to their end and return what each returned. Fails if one of them raises."""
    group = Group(folder, ranks, work)
    codes = group.wait()
    errors = [group.error(rank) for rank in range(ranks)]
    assert set(codes.values()) == {0}, f"{codes}\n" + "\n".join(errors)
    return [group.returned(rank) for rank in range(ranks)]
