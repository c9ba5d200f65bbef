"""Measure the memory of the parts of a run, and give memory back while a part holds more than its share.

Model, optimizer and gradients are in the memory of the model's device. Copies for checkpoints are in host memory. While
memory is short, the trainer gives up what costs speed only. That is the copy of a checkpoint when it is written, all
slots for snapshots but two, and batches that workers load ahead. Every collection then returns free memory too.
Promise: nothing of this changes a bit of the training.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from typing import TYPE_CHECKING, Final

import torch

from tolariad.core import messages as m
from tolariad.trainer.data.iterated import IteratedFeed
from tolariad.trainer.health.stopwatch import Staged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn

    from tolariad.trainer.checkpoints.save import Saver
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.orders.inbox import OrderInbox
    from tolariad.trainer.rollback import SnapshotHandler
    from tolariad.trainer.setup import Setup

# The sources' interval for checkpoints, the only part of which tolariad itself keeps memory here.
COLLECTION_S: Final = 300.0


class MemoryBudgetManager:
    """Measures the shares of one trainer's memory, runs collections, and gives memory back while it is short."""

    def __init__(
        self,
        setup: Setup,
        saver: Saver,
        snapshots: SnapshotHandler,
        inbox: OrderInbox,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._setup = setup
        self._saver, self._snapshots = saver, snapshots
        self._clock = clock
        self._collected = clock()
        self.is_pressed = False
        inbox.register(m.SetMemoryPressure, self._obey)

    def shares(self) -> dict[str, float]:
        """Collect if it is time, then return what each part holds, in percent by the names of the budgets."""
        if self._clock() - self._collected >= COLLECTION_S:
            self.collect()
        setup = self._setup
        found = memory_shares(setup.model, setup.host, setup.device, self._saver.copy_bytes)
        if setup.garden.active:
            # Their parameters are a part of the model's too.
            of_seeds = memory_shares(
                torch.nn.ModuleList(setup.garden.modules), setup.garden.owned_by_seeds(), setup.device, 0
            )
            found["memory_morphogenetic"] = sum(of_seeds.values())
        return found

    def staged(self) -> Staged:
        """Return the memory for copies of the state: of checkpoints, while it is given back too, and of snapshots."""
        saver = self._saver
        unshared = 0 if self._setup.device.type == "cuda" else saver.held_bytes
        return Staged(saver.copy_bytes + self._snapshots.held_bytes, unshared)

    def collect(self) -> None:
        """Free what only cycles hold; if memory is short, return free memory to the system and to the device."""
        gc.collect()
        if self.is_pressed:
            _trim()
            if self._setup.device.type == "cuda":
                torch.cuda.empty_cache()
        self._collected = self._clock()

    def _obey(self, order: m.SetMemoryPressure) -> None:
        self.is_pressed = order.pressed
        self._saver.keep_copy(kept=not order.pressed)
        for feed in (self._setup.train, self._setup.validation):
            if isinstance(feed, IteratedFeed):
                feed.load_ahead(None if not order.pressed else 1)
        if order.pressed:
            self._snapshots.narrow(order.slots)
            self.collect()
        else:
            self._snapshots.widen()


def _trim() -> None:
    """Let the C library return its free pages, if it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def memory_shares(model: nn.Module, owners: Sequence[Owner], device: torch.device, copies: int) -> dict[str, float]:
    """Return the percentage of each component, by the names of the budgets.

    `copies` is the number of bytes in buffers for checkpoints. Gradients count with their size during a step, even if
    there are none at the moment.
    """
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pool = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else host
    parameters = tuple(model.parameters())
    held = (entry for owner in owners for entry in owner.optimizer.state.values())
    state = (one for entry in held for one in entry.values() if isinstance(one, torch.Tensor))
    return {
        "memory_model": 100.0 * (_bytes(parameters) + _bytes(model.buffers())) / pool,
        "memory_optimizer": 100.0 * _bytes(state) / pool,
        "memory_gradients": 100.0 * _bytes(one for one in parameters if one.requires_grad) / pool,
        "memory_checkpoints": 100.0 * copies / host,
    }


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)
