"""A run that is short of memory for an epoch: what it gives up costs speed only, and comes back."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace

from torch.utils.data import DataLoader

from tests.library.inside import state_of
from tests.library.small import EPOCHS, bits, data, made, network
from tests.library.test_library import calm as calm  # noqa: PLC0414 - a fixture
from tests.recorded import events_of, of
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.trainer.health import memory

# What a short memory leads to is a consequence of a budget.
SNAPSHOTS = {"snapshots": {"every": 1, "watch_steps": 1}, "budgets": {"act": True}}
# The slots with memory after these steps: within the first epoch, while memory is short, and after that.
SLOTS = {8: 5, 16: 2, 23: 5}


def arenas() -> dict[int, int]:
    """Return how much memory each file for snapshots takes that this process holds, by inode.

    Files without a name. Another test of this process may have left one of another run.
    """
    found = {}
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(one.readlink()).startswith("/memfd:tolaria-snapshots"):
                status = one.stat()
                found[status.st_ino] = status.st_blocks * 512
    return found


class Shrinking:
    """Makes the machine look small until the end of the first epoch."""

    def __init__(self, tolaria, machine):
        self.tolaria, self.machine = tolaria, machine
        self.others = arenas().keys()

    def on_step_end(self, model, step):
        snapshots = state_of(self.tolaria).snapshots
        if step == 2:
            wait_for(lambda: state_of(self.tolaria).snapshots.ring)
        if step in SLOTS:
            # A thread of low priority maps the slots. What is given back is given back at once, and stays so.
            wait_for(lambda: self.count(snapshots.ring) == SLOTS[step], (step, arenas(), snapshots.ring))

    def count(self, ring):
        """Return how many slots have memory, rounded: the kernel may count a page more or less than is there."""
        (size,) = (size for inode, size in arenas().items() if inode not in self.others)
        return round(size / ring.slot_bytes)

    def on_epoch_end(self, model, epoch, metrics):
        self.machine["SC_PHYS_PAGES"] = 1 << 20


def test_what_a_pressure_takes_changes_no_bit_and_comes_back(tmp_path, monkeypatch, calm):
    """Two of five slots stay meanwhile; the run ends with the bits of one that never was short."""
    machine = {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(memory, "os", SimpleNamespace(sysconf=machine.__getitem__))
    tolaria = made(tmp_path, **SNAPSHOTS)
    model, task = network(), Shrinking(tolaria, machine)
    loader = DataLoader(data(), batch_size=12, shuffle=True, num_workers=2, persistent_workers=True)
    assert tolaria.train(model, loader, DataLoader(data(48), batch_size=24), EPOCHS, task=task).phase == "completed"
    events = events_of(tmp_path)
    (pressed,), (relieved,) = of(events, m.MemoryPressed), of(events, m.MemoryRelieved)
    during = [
        one.slot for one in events[events.index(pressed) : events.index(relieved)] if isinstance(one, m.SnapshotBegun)
    ]

    assert len(set(during)) <= 2
    assert of(events, m.RolledBack) == []
    assert bits(model) == calm
