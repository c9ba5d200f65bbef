"""The simulated run with snapshots in memory: a ring that lives as long as the daemon, and may be damaged."""

from __future__ import annotations

from collections import deque

from tests.core.simulate import World, rows_of
from tests.core.simulated_trainer import Trainer
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.messages.vocabulary import Report

SIZE = 4096


class SnappedTrainer(Trainer):
    """Copies its position into the world's memory if it is told to."""

    memory: dict[int, str]
    ring: m.Ring | None = None
    told = False
    wanted: m.TakeSnapshot | None = None
    garbled: set[str]

    def act(self, durable):
        if self.step and not self.told:
            self.told = True
            self.todo.append(m.SnapshotSizeReport(size=SIZE, least=SIZE))
        return super().act(durable)

    def _obey_orders(self) -> None:
        mine = [one for one in self.orders if isinstance(one, m.UseRing | m.TakeSnapshot | m.SetMemoryPressure)]
        self.orders = deque(one for one in self.orders if one not in mine)
        for one in mine:
            if isinstance(one, m.UseRing):
                self.ring = one.ring
            elif isinstance(one, m.SetMemoryPressure):
                for slot in [slot for slot in self.memory if one.pressed and slot not in one.slots]:
                    del self.memory[slot]
            else:
                self.wanted = one
        super()._obey_orders()
        stands = self.order is not None and not self.script and not self.prepared and not self.exited
        if self.wanted is not None and stands:
            self.todo.extend([self.copied(self.wanted.id), self._snapshot(self.wanted)])
            self.wanted = None

    def _snapshot(self, order: m.TakeSnapshot) -> Report:
        assert self.ring is not None
        assert order.slot < self.ring.slots
        self.memory[order.slot] = f"table of {order.id}"
        return m.SnapshotTakenReport(
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

    def _holds(self, ref: m.CheckpointRef) -> bool:
        return ref.slot is None or (self.ring is not None and self.memory.get(ref.slot) == ref.manifest)

    def _begin(self, order: m.TrainFrom) -> None:
        ref = order.checkpoint
        if ref is not None and not self._holds(ref):
            self.todo.append(m.CheckpointUnusableReport(id=ref.id, file="slot", why="it is damaged"))
        else:
            super()._begin(order)

    def _prepared(self, order: m.PrepareRollback) -> Report:
        if not self._holds(order.checkpoint):
            return m.RollbackRefusedReport(rollback=order.rollback, file="slot", why="it is damaged")
        return super()._prepared(order)

    def _roll_back(self, to: m.CheckpointRef) -> None:
        if to.slot is not None and to.id in self.garbled:
            refused = m.RollbackRefusedReport(
                rollback=self.prepared.rollback, file="model", why="it is another", restored=True
            )
            self.todo.append(refused)
            return
        if self.wanted is not None:
            self.todo.append(m.SnapshotFailedReport(id=self.wanted.id, why="a rollback"))
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

    def _do(self, effect: m.Effect) -> None:
        if isinstance(effect, m.PrepareRing):
            self.due.append(m.RingPrepared(slots=min(self.slots, effect.slots), slot_bytes=effect.slot_bytes))
        elif isinstance(effect, m.VerifySnapshot):
            if self.memory.get(effect.slot) != effect.table:
                differs = m.SnapshotDiffers(id=effect.id, why="it is damaged")
                self.due.insert(self.random.randrange(len(self.due) + 1), differs)
        else:
            super()._do(effect)

    def _script(self, checkpoint: m.CheckpointRef) -> tuple[deque, dict[int, dict[str, float]]]:
        entry = q.restorable(self.state, checkpoint.id)
        script = q.script_from_journal(
            self.events[entry.script_from - 1 :], checkpoint, entry.branch, self.state.rollbacks.branches
        )
        return rows_of(script), script.within

    def new_trainer(self, incarnation: int) -> SnappedTrainer:
        made = SnappedTrainer(incarnation, self.environment, self.accuracy, self.broken)
        made.memory, made.garbled = self.memory, self.garbled
        return made

    def restart_daemon(self, mode: m.StartMode = m.StartMode.EXPLICIT) -> None:
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
            self.give(m.SnapshotDiffers(id=self.random.choice(self.state.snapshots.kept).id, why="it is damaged"))
        super().anything()
