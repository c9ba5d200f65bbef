"""A fake kernel: it decides with the real core and records in a list or a real journal; and a server over it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

import journal
from tolariad.control.connection import ServerLimits
from tolariad.control.methods import Change
from tolariad.control.peer import Operators, operators
from tolariad.control.place import bind
from tolariad.control.pruning import prune_table
from tolariad.control.replies import RunStatus
from tolariad.control.reply_tables import BudgetTable, PruneTable, RateTable, SeedTable
from tolariad.control.server import ControlServer
from tolariad.control.status import Heartbeat, LiveFacts, run_status
from tolariad.control.tables import budget_table, rate_table, seed_table
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import AnyCommand, encode_event
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, apply, capture
from tolariad.telemetry.histograms import BudgetHistograms

START_NS = 1_795_244_400_000_000_000  # 2026-11-21 07:00:00 UTC


class Recorder:
    """Decide, stamp, apply and commit in the calling thread: the kernel without its thread and its channel."""

    def __init__(self, folder: Path, **journal_options) -> None:
        self.state = RunState()
        self.mono = 1_000_000_000
        self.hold_answers = False
        self._listeners: list[Callable[[Change], None]] = []
        self.histograms = BudgetHistograms()
        self.journal = journal.Journal.open(folder, **journal_options)
        self.journal.begin(
            run_id=bytes(range(16)),
            context_hash=bytes(32),
            boot_id=bytes(16),
            capture=lambda: capture(self.state),
            wall_ns=START_NS,
        )

    @property
    def now(self) -> m.Now:
        return m.Now(wall=START_NS + self.mono, mono=self.mono)

    def take(self, given: m.Input, answer=None) -> None:
        """Process one input as one turn."""
        self.mono += 10_000_000
        decision = decide(self.state, given, self.now)
        self.record(*decision.events)
        if answer is not None and decision.answer is not None and not self.hold_answers:
            answer(decision.answer)

    def record(self, *events: m.Event) -> int:
        """Stamp, apply, commit and publish. Return the first event's number."""
        first = self.state.seq + 1
        stamped, head = [], self.state
        for seq, event in enumerate(events, start=first):
            cause = event.cause or (first if seq > first else 0)
            root = event.root or (first if cause == first else 0) or seq
            whole = msgspec.structs.replace(event, wall=self.now.wall, mono=self.mono, cause=cause, root=root)
            stamped.append((seq, whole))
            head = apply(head, whole)
        if stamped:
            progress = head.progress
            self.journal.commit(
                [encode_event(event) for _, event in stamped],
                epoch=progress.epoch,
                step=progress.step,
                wall_ns=self.now.wall,
                mono_ns=self.mono,
            )
            self.state = head
            for _, event in stamped:
                self.histograms.add(event)
            for listener in tuple(self._listeners):
                listener(Change(tuple(stamped)))
        return first

    # The port.

    @property
    def journal_path(self) -> Path:
        return self.journal.folder

    @property
    def durable_seq(self) -> int:
        return self.state.seq

    def status(self) -> RunStatus:
        beat = Heartbeat(step=self.state.progress.step, age_s=0.01, activity="step")
        found = self.journal_path.parent.stat()
        inode = f"{found.st_dev}:{found.st_ino}"
        facts = LiveFacts(
            pid=4711, dir_inode=inode, wall_ns=self.now.wall, mono_ns=self.mono, heartbeat=beat, segment=1
        )
        return run_status(self.state, str(self.journal_path.parent), facts)

    def rates(self) -> RateTable:
        return rate_table(self.state)

    def pruning(self) -> PruneTable:
        return prune_table(self.state)

    def seeds(self) -> SeedTable:
        return seed_table(self.state)

    def budgets(self) -> BudgetTable:
        return budget_table(self.state, self.histograms.by_budget, mono_ns=self.mono, since="just now")

    def submit(self, command: AnyCommand, actor: m.Actor, answer) -> None:
        self.take(m.CommandReceived(command=command, actor=actor), answer)

    def subscribe(self, listener):
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # A run to talk about.

    def begin_run(self, *, epochs: int = 3, name: str = "digits") -> None:
        self.open_run(epochs=epochs, name=name)
        self.spawn_trainer()
        self.report(m.TrainingStartedReport(step=0))
        self.write_checkpoint()

    def open_run(self, *, epochs: int = 3, name: str = "digits") -> None:
        started = m.RunStarted(
            run_id=bytes(range(16)).hex(),
            name=name,
            task="digits",
            rng_seed=7,
            config="{}",
            config_hash="00",
            policy=m.Policy(epochs=epochs, checkpoint_every_epochs=1, checkpoint_gap_s=0.0),
            version="0.1.0",
        )
        daemon = m.DaemonStarted(pid=4711, boot_id="ab", host="node", version="0.1.0", limits=m.ServiceLimits())
        self.take(m.Opened(mode=m.StartMode.EXPLICIT, facts=(started, daemon)))

    def spawn_trainer(self) -> None:
        number = self.state.trainer.incarnation + 1
        self.take(m.TrainerSpawned(incarnation=number, pid=5000 + number, start_ticks=1, boot_id="ab"))
        environment = m.Environment(
            python="3.11",
            torch="2.13.0",
            numpy="2",
            tolariad="0.1.0",
            cpu="x",
            threads=1,
            device="cpu",
            determinism="strict",
            precision="fp32",
            model_hash="00",
            task_hash="00",
            config_hash="00",
        )
        self.report(m.ReadyReport(environment=environment, parameters=10, steps_per_epoch=10))

    def report(self, report) -> None:
        self.take(m.ReportReceived(incarnation=self.state.trainer.incarnation, report=report))

    def write_checkpoint(self) -> None:
        progress = self.state.progress
        epoch, batch = progress.place
        piece = m.Piece(name="model.safetensors", size=100, blake3="ff")
        self.report(
            m.CheckpointWrittenReport(
                id=self.state.checkpoints.open[-1].id,
                step=progress.step,
                epoch=epoch,
                batch=batch,
                manifest="ee",
                pieces=(piece,),
                seconds=0.1,
            )
        )

    def step(self, *, loss: float = 0.5, metrics: dict[str, float] | None = None) -> None:
        """Record one more step, ten in an epoch, with the events around it. `metrics`: of a validation after it."""
        n = self.state.progress.step + 1
        epoch, batch = (n - 1) // 10 + 1, (n - 1) % 10 + 1
        if batch == 1:
            self.report(m.Told(event=m.EpochStarted(epoch=epoch)))
        self.report(m.StepReport(step=n, epoch=epoch, batch=batch, loss=loss, grad_norm=1.0, lr=0.003, rates=1))
        if batch == 10:
            self.report(m.Told(event=m.ValidationBegun(epoch=epoch, step=n)))
            metrics = metrics or {"loss": 0.4, "accuracy": 0.9 + epoch / 100}
            self.report(m.ValidationReport(epoch=epoch, step=n, metrics=metrics, samples=100, seconds=0.1))
            self.report(m.EpochReport(epoch=epoch, step=n))
            if self.state.checkpoints.open:
                self.write_checkpoint()

    def roll_back(self) -> None:
        """The trainer obeys the open rollback."""
        opened = self.state.rollbacks.open
        self.report(m.RollbackPreparedReport(rollback=opened.id, participants=("trainer",), seconds=0.0))
        self.report(m.RolledBackReport(rollback=opened.id, step=opened.to_step, commit_s=0.0, confirm_s=0.0))

    def hold(self) -> None:
        """The trainer reaches the boundary at which it is held."""
        self.report(m.HeldReport(step=self.state.progress.step))


class Served:
    """A server over a Recorder, on a loop in a thread, so that blocking clients can use it."""

    def __init__(
        self,
        recorder,
        folder: Path,
        *,
        limits: ServerLimits | None = None,
        allow: Operators | None = None,
        loop_factory=asyncio.new_event_loop,
    ) -> None:
        self.recorder = recorder
        self.bound = bind(folder)
        self.path = self.bound.path
        self._limits, self._allow = limits, allow
        self._loop = loop_factory()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.server: ControlServer

    def __enter__(self):
        self._thread.start()
        self.call(self._start())
        return self

    async def _start(self) -> None:
        allow = self._allow or operators(None, owner_uid=self.path.stat().st_uid, socket_gid=self.path.stat().st_gid)
        self.server = ControlServer(self.recorder, self.bound, allow, version="0.1.0", limits=self._limits)
        await self.server.start()

    def call(self, coroutine, timeout_s: float = 20.0):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    def do(self, function, *args):
        """Run `function` on the loop: the recorder belongs to it."""

        async def run():
            return function(*args)

        return self.call(run())

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.call(self.server.close())

    def __exit__(self, *_exc) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
