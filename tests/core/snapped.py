"""The simulated run with snapshots in memory: a ring that lives as long as the daemon, and may be damaged."""

from __future__ import annotations

from collections import deque

from tests.core.simulate import World
from tests.core.simulated_trainer import Trainer
from tolariad.core.base import Effect
from tolariad.core.checkpoints import words as ck
from tolariad.core.health.budget_words import SetMemoryPressure
from tolariad.core.inputs import RingPrepared, SnapshotDiffers, StartMode
from tolariad.core.rollback import words as rb
from tolariad.core.snapshots import words as sn
from tolariad.core.snapshots.ask import restorable
from tolariad.core.steps import script_words as sc
from tolariad.core.steps.ask import script_from_journal
from tolariad.core.vocabulary import Report

SIZE = 4096


class SnappedTrainer(Trainer):
    """Copies its position into the world's memory if it is told to."""

    memory: dict[int, str]
    ring: sn.Ring | None = None
    told = False
    wanted: sn.TakeSnapshot | None = None
    garbled: set[str]

    def act(self, durable):
        if self.step and not self.told:
            self.told = True
            self.todo.append(sn.SnapshotSizeReport(size=SIZE, least=SIZE))
        return super().act(durable)

    def _obey_orders(self) -> None:
        mine = [one for one in self.orders if isinstance(one, sn.UseRing | sn.TakeSnapshot | SetMemoryPressure)]
        self.orders = deque(one for one in self.orders if one not in mine)
        for one in mine:
            if isinstance(one, sn.UseRing):
                self.ring = one.ring
            elif isinstance(one, SetMemoryPressure):
                for slot in [slot for slot in self.memory if one.pressed and slot not in one.slots]:
                    del self.memory[slot]
            else:
                self.wanted = one
        super()._obey_orders()
        stands = self.order is not None and not self.script and not self.prepared and not self.exited
        if self.wanted is not None and stands:
            self.todo.extend([self.copied(self.wanted.id), self._snapshot(self.wanted)])
            self.wanted = None

    def _snapshot(self, order: sn.TakeSnapshot) -> Report:
        assert self.ring is not None
        assert order.slot < self.ring.slots
        self.memory[order.slot] = f"table of {order.id}"
        return sn.SnapshotTakenReport(
            id=order.id,
            step=self.step,
            epoch=self.done_epoch + 1,
            batch=self.batch,
            size=SIZE,
            table=self.memory[order.slot],
            xxh3="ab",
            state="cd",
            orders=0,
            held_s=0.1,
            seconds=0.1,
        )

    def _holds(self, ref: ck.CheckpointRef) -> bool:
        return ref.slot is None or (self.ring is not None and self.memory.get(ref.slot) == ref.manifest)

    def _begin(self, order: ck.TrainFrom) -> None:
        ref = order.checkpoint
        if ref is not None and not self._holds(ref):
            self.todo.append(ck.CheckpointUnusableReport(id=ref.id, file="slot", why="it is damaged"))
        else:
            super()._begin(order)

    def _prepared(self, order: rb.PrepareRollback) -> Report:
        if not self._holds(order.checkpoint):
            return rb.RollbackRefusedReport(rollback=order.rollback, file="slot", why="it is damaged")
        return super()._prepared(order)

    def _roll_back(self, to: ck.CheckpointRef) -> None:
        if to.slot is not None and to.id in self.garbled:
            refused = rb.RollbackRefusedReport(
                rollback=self.prepared.rollback, file="model", why="it is another", restored=True
            )
            self.todo.append(refused)
            return
        if self.wanted is not None:
            self.todo.append(sn.SnapshotFailedReport(id=self.wanted.id, why="a rollback"))
            self.wanted = None
        super()._roll_back(to)


class SnappedWorld(World):
    """`slots`: what the daemon can have."""

    def __init__(self, seed: int, slots: int = 3, **policy: object) -> None:
        self.slots = slots
        self.memory: dict[int, str] = {}
        self.garbled: set[str] = set()
        policy = {"snapshot_slots": 5, "snapshot_every": 1, "snapshot_watch": 2, **policy}
        super().__init__(seed, **policy)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, sn.PrepareRing):
            self.due.append(RingPrepared(slots=min(self.slots, effect.slots), slot_bytes=effect.slot_bytes))
        elif isinstance(effect, sn.VerifySnapshot):
            if self.memory.get(effect.slot) != effect.table:
                differs = SnapshotDiffers(id=effect.id, why="it is damaged")
                self.due.insert(self.random.randrange(len(self.due) + 1), differs)
        else:
            super()._do(effect)

    def _script(self, checkpoint: ck.CheckpointRef) -> deque:
        entry = restorable(self.state, checkpoint.id)
        script = script_from_journal(
            self.events[entry.script_from - 1 :], checkpoint, entry.branch, self.state.rollbacks.branches
        )
        return deque(sorted((*script.skips, *script.steps), key=lambda one: (one.step, isinstance(one, sc.ScriptStep))))

    def new_trainer(self, incarnation: int) -> SnappedTrainer:
        made = SnappedTrainer(incarnation, self.environment, self.accuracy, self.broken)
        made.memory, made.garbled = self.memory, self.garbled
        return made

    def restart_daemon(self, mode: StartMode = StartMode.EXPLICIT) -> None:
        self.memory.clear()
        super().restart_daemon(mode)

    def damage(self, *, when: str = "prepared") -> str:
        """The newest promoted snapshot is no good: seen when it is read, or only when it was restored."""
        newest = self.state.snapshots.promoted[-1]
        if when == "prepared":
            self.memory[newest.slot] = "noise"
        else:
            self.garbled.add(newest.id)
        return newest.id

    def anything(self) -> None:
        """Now and then memory is damaged, or said to be, too."""
        if self.random.random() < 0.02 and self.memory:
            self.memory[self.random.choice(list(self.memory))] = "noise"
        if self.random.random() < 0.05 and self.state.snapshots.kept:
            # The daemon's word on one, whenever it comes: nobody waits for it.
            self.give(SnapshotDiffers(id=self.random.choice(self.state.snapshots.kept).id, why="it is damaged"))
        super().anything()
