"""A worker of a loader ends with the process that trains, however it was started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from tests.waiting import PATIENCE_S, within
from tolariad.trainer.data.loaders import LoaderFeed


class Telling(Dataset):
    """Each item is the number of the process that reads it."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return os.getpid()


def test_workers_that_a_fork_server_started_end_with_a_killed_trainer():
    """The server is their parent, and lives as long as they do: without tolariad they wait for the next batch for ever.
    It is the default of Python 3.14.
    """
    reader, writer = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        try:
            loader = DataLoader(Telling(), 1, num_workers=2, multiprocessing_context="forkserver")
            batches = LoaderFeed(loader, 1).epoch(1, 0)
            os.write(writer, b"%d %d" % (next(batches).item(), next(batches).item()))
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    workers = os.read(reader, 100).split()
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    os.close(reader)

    assert len(set(workers)) == 2
    ended = within(PATIENCE_S, lambda: not any(Path(f"/proc/{int(pid)}/exe").exists() for pid in workers))
    for pid in workers * (not ended):
        os.kill(int(pid), signal.SIGKILL)
    assert ended, "a worker outlives its trainer"
