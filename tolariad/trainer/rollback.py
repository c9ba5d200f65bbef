"""A rollback in the living trainer: the target's state is read and verified at PREPARE, copied at COMMIT, compared at CONFIRM.

Promises: PREPARE changes nothing, so a rollback that is aborted leaves even a half-made step as it was; COMMIT unwinds
whatever was going on, wherever the trainer stood; nothing is reported as restored that was not compared bit for bit.
It must not know: who ordered it, or which target is the right one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from msgspec.structs import replace

from tolariad.channel import Activity
from tolariad.core.vocabulary import rollback as rb
from tolariad.failpoints import reached
from tolariad.storage import CheckpointUnusable
from tolariad.trainer.checkpoints.capture import live_tensors
from tolariad.trainer.checkpoints.restore import Loaded, check_fits, load, restore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tolariad.core.vocabulary.checkpoints import CheckpointRef, TrainFrom
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.orders import Orders
    from tolariad.trainer.setup import Setup

PARTICIPANTS: Final = ("training",)


class RollbackCommitted(BaseException):
    """COMMIT: whatever is going on ends here. Not an Exception: a task's own `except Exception` must not swallow it."""


class RollbackUnconfirmed(RuntimeError):
    """What was restored is not what was prepared: this process is not to be trusted any more."""


class _Prepared(NamedTuple):
    order: rb.PrepareRollback
    loaded: Loaded


class RollbackDesk:
    """The trainer's part of every rollback."""

    def __init__(self, setup: Setup, orders: Orders, checkpoints: Path) -> None:
        self._setup = setup
        self._orders = orders
        self._checkpoints = checkpoints
        self._prepared: _Prepared | None = None

    def obey(self, order: rb.PrepareRollback | rb.CommitRollback | rb.AbortRollback) -> None:
        """At any wait, the gate's among them. Raises RollbackCommitted."""
        match order:
            case rb.PrepareRollback():
                self._prepare(order)
            case rb.AbortRollback():
                self._prepared = None
            case rb.CommitRollback():
                if self._prepared is not None and self._prepared.order.rollback == order.rollback:
                    raise RollbackCommitted

    def _prepare(self, order: rb.PrepareRollback) -> None:
        """Read and verify the target, and see whether it fits. Nothing of the run changes."""
        begun = time.perf_counter()
        ref = order.checkpoint

        def each() -> None:
            self._orders.beat(Activity.RESTORE)

        each()
        reached("rollback_prepare")
        try:
            loaded = load(self._checkpoints / ref.id, ref.manifest, each)
            check_fits(self._setup, loaded)
        except CheckpointUnusable as unusable:
            refused = rb.RollbackRefusedReport(rollback=order.rollback, file=unusable.file, why=unusable.why)
            self._orders.report(refused)
            return
        self._prepared = _Prepared(order, loaded)
        report = rb.RollbackPreparedReport(
            rollback=order.rollback, participants=PARTICIPANTS, seconds=time.perf_counter() - begun
        )
        self._orders.report(report)

    def commit(self) -> tuple[Position, rb.PrepareRollback, rb.RolledBackReport]:
        """Copy what was prepared into the live tensors and compare. Raises RollbackUnconfirmed."""
        if self._prepared is None:
            raise RollbackUnconfirmed("a rollback was committed that was not prepared")
        order, loaded = self._prepared
        self._prepared = None
        self._orders.beat(Activity.RESTORE)
        begun = time.perf_counter()
        # Of the step that was going on: the next one must not add to them.
        self._setup.model.zero_grad(set_to_none=True)
        position = restore(self._setup, loaded)
        copied = time.perf_counter()
        reached("rollback_commit")
        self._orders.beat(Activity.RESTORE)
        for name in differing(self._setup, loaded):
            raise RollbackUnconfirmed(
                f"{name} is not what checkpoint {order.checkpoint.id} holds after it was restored"
            )
        report = rb.RolledBackReport(
            rollback=order.rollback,
            step=position.step,
            commit_s=copied - begun,
            confirm_s=time.perf_counter() - copied,
            rates=self._setup.rates.standing,
        )
        return position, order, report


def standing_at(order: TrainFrom, target: CheckpointRef, position: Position) -> TrainFrom:
    """The order to train as it is from the target on: what was told of later epochs is told again."""
    before = position.epoch - 1
    return replace(
        order,
        checkpoint=target,
        durable_step=position.step,
        epoch_started=position.epoch if position.batch else before,
        epoch_validated=min(order.epoch_validated, before),
        epoch_finished=min(order.epoch_finished, before),
        epoch_to_keep=0,
        # This trainer's own report of the rollback does.
        tell_rates=False,
    )


def differing(setup: Setup, loaded: Loaded) -> Iterator[str]:
    """The restored parameters and buffers whose bits are not those that were prepared."""
    for name, tensor in live_tensors(setup.model).items():
        if not _same_bits(tensor.detach(), loaded.model[name]):
            yield name


def _same_bits(live: torch.Tensor, stored: torch.Tensor) -> bool:
    here, there = live.cpu().contiguous(), stored.contiguous()
    if here.numel() == 0:
        return True
    return torch.equal(here.reshape(-1).view(torch.uint8), there.reshape(-1).view(torch.uint8))
