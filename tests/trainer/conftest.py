"""A fake daemon: it records a trainer's reports, answers like the kernel, and outlives the trainer."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.campaign.forks import Forked, shared_template
from tests.in_memory import tmp_path
from tests.quick_torch import enter_no_pytest, keep_no_stacks
from tests.recorded import files_of, of
from tolariad.channel import Reports, TrainerEnd, channel_pair
from tolariad.core import messages as m
from tolariad.core.calc.settings.reading import read_settings
from tolariad.core.calc.settings.rules import resolved_json
from tolariad.core.calc.settings.task_defaults import defaults_of, layer
from tolariad.trainer.build import build
from tolariad.trainer.errors import ToldToExit
from tolariad.trainer.loop import Trainer
from tolariad.trainer.setup import Setup
from tolariad.trainer.torch_private import light_start

# Of this folder's tests.
__all__ = ["tmp_path"]
keep_no_stacks()
enter_no_pytest()
light_start.install()  # as the trainer's process does, and as much sooner are these tests there


def config(task: str, **explicit: Any) -> bytes:
    """Return the resolved configuration of a small run."""
    base = {"task": task, "rng_seed": 7, "device": "cpu", "torch_threads": 1}
    return resolved_json(read_settings(layer(layer(defaults_of(task), base), explicit)))


@dataclass
class FakeDaemon:
    """Its fields hold what a journal would; they outlive each trainer."""

    run_dir: Path
    epochs: int
    checkpoint_every_epoch: bool = True
    steps: dict[int, m.StepReport] = field(default_factory=dict)
    skips: list[m.StepSkippedReport] = field(default_factory=list)
    validations: dict[int, m.ValidationReport] = field(default_factory=dict)
    committed: list[m.CheckpointWrittenReport] = field(default_factory=list)
    reports: list[Any] = field(default_factory=list)
    epoch_started: int = 0
    epoch_finished: int = 0
    incarnation: int = 0
    exit_after_step: int | None = None
    exit_after_skips: int | None = None
    last_step_of_all: int | None = None
    end_after_step: int | None = None
    end_after_epoch: int | None = None
    epoch_to_keep: int = 0
    parent: m.Parent | None = None
    script_orders: tuple[m.ScriptOrder, ...] = ()
    tell_rates: bool = False
    waiting: tuple[Any, ...] = ()
    checkpoint_after_step: int | None = None
    hold_durable_after: int | None = None
    ended: bool = False
    ordered: int = 0
    writing: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)

    def connect(self) -> Any:
        """Open a new channel for the next trainer; return the other end's socket."""
        self.incarnation += 1
        self.writing.clear()
        self.copied.clear()
        self.end, theirs = channel_pair(self.incarnation)
        self._drain = Reports(self.end, self.incarnation)
        # As a daemon that sleeps in select: a record in the ring is followed by a packet that wakes it.
        self.end.page.set_asleep(1)
        return theirs

    @property
    def last_step(self) -> int:
        return max(self.steps, default=0)

    def train_from(self) -> tuple[m.TrainFrom, bytes]:
        """Return the order after a restart: the newest checkpoint, and the steps after it."""
        ref, after, position = None, 0, (1, 0)
        if self.committed:
            c = self.committed[-1]
            ref = m.CheckpointRef(id=c.id, step=c.step, epoch=c.epoch, batch=c.batch, manifest=c.manifest)
            after, position = c.step, (c.epoch, c.batch)
        script = m.Script(
            steps=tuple(
                m.ScriptStep(s.step, s.loss, s.grad_norm, s.lr, s.rates)
                for n, s in sorted(self.steps.items())
                if n > after
            ),
            validations={v.epoch: v.metrics for v in self.validations.values()},
            skips=tuple(m.StepSkipped.of(s) for s in self.skips if (s.epoch, s.batch) > position),
            orders=self.script_orders,
            digests=tuple(
                m.ScriptDigest(one.step, one.method, one.tensors)
                for one in self.of(m.ParametersDigestedReport)
                if one.step > after and not one.checkpoint
            ),
        )
        order = m.TrainFrom(
            checkpoint=ref,
            epochs=self.epochs,
            durable_step=self.last_step,
            epoch_started=self.epoch_started,
            epoch_validated=max(self.validations, default=0),
            epoch_finished=self.epoch_finished,
            epoch_to_keep=self.epoch_to_keep,
            last_step=self.last_step_of_all,
            parent=self.parent,
            tell_rates=self.tell_rates,
        )
        return order, msgspec.msgpack.encode(script)

    def take(self, reason: m.CheckpointReason, id_: str | None = None) -> None:
        self.ordered += 1
        name = id_ or f"ck-{self.ordered:04d}-{self.incarnation}"
        self.writing.add(name)
        self.end.send(m.TakeCheckpoint(id=name, reason=reason, cause=len(self.reports) + 1))

    def pump(self) -> None:
        """Take the reports that arrived, make them durable, and answer."""
        for report in self._drain.drain(100):
            told = report.event if isinstance(report, m.Told) else report
            self.reports.append(told)
            self._answer(told)
        if not self._holds_back:
            self.end.page.set_durable(self._drain.last_number)

    @property
    def _holds_back(self) -> bool:
        """Keep the trainer at its gate: for ever, or until the checkpoint is written that it must resume from.

        Not before its copy is made: it waits for the one before it, and is then made at the next boundary.
        """
        if self.hold_durable_after is not None and self.last_step >= self.hold_durable_after:
            return True
        is_due = self.exit_after_step is not None and self.last_step >= self.exit_after_step
        return is_due and bool(self.writing & self.copied)

    def _exit_if_due(self) -> None:
        if self.exit_after_step is not None and self.last_step >= self.exit_after_step and not self.writing:
            self.exit_after_step = None
            self.end.send(m.ExitTrainer())

    def _answer(self, report: Any) -> None:
        match report:
            case m.ReadyReport():
                order, script = self.train_from()
                self.end.send(order, script)
                for waiting in self.waiting:
                    self.end.send(waiting)
                if not self.committed:
                    self.take(m.CheckpointReason.START)
                else:
                    self.end.page.thaw()
            case m.StateCopiedReport():
                self.copied.add(report.id)
            case m.CheckpointWrittenReport():
                self.committed.append(report)
                self.writing.discard(report.id)
                self.end.page.thaw()
                self._exit_if_due()
            case m.CheckpointFailedReport():
                self.writing.discard(report.id)
            case m.CheckpointUnusableReport():
                self.committed = [c for c in self.committed if c.id != report.id]
                self.end.send(*self.train_from())
            case m.StepReport():
                assert report.step == self.last_step + 1, report
                self.steps[report.step] = report
                if self.checkpoint_after_step == report.step:
                    self.take(m.CheckpointReason.ORDERED)
                if self.end_after_step == report.step:
                    self.end.send(m.EndTraining())
                self._exit_if_due()
            case m.StepSkippedReport():
                assert report.step == self.last_step + 1, report
                self.skips.append(report)
                if self.exit_after_skips == len(self.skips):
                    self.exit_after_skips = None
                    self.end.send(m.ExitTrainer())
            case m.EpochStarted():
                self.epoch_started = report.epoch
            case m.ValidationReport():
                self.validations[report.epoch] = report
            case m.EpochReport():
                self.epoch_finished = report.epoch
                if self.checkpoint_every_epoch:
                    self.take(m.CheckpointReason.EPOCH)
                if self.end_after_epoch == report.epoch:
                    self.end.send(m.EndTraining())
                self.end.send(m.Continue(epoch=report.epoch))
            case m.TrainingEndedReport():
                self.ended = True
                self.take(m.CheckpointReason.END, "end")
            case m.HeldReport():
                pass
        if isinstance(report, m.CheckpointWrittenReport) and report.id == "end":
            self.end.send(m.ExitTrainer())

    # -- in this process -----------------------------------------------------------------------------------------------

    def train_here(self, configuration: bytes, also: Any = None) -> Setup:
        """Build, and train in this thread until told to exit; the daemon's part runs in another. Return the setup."""
        theirs = self.connect()
        end = TrainerEnd(theirs, self.end.page)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                select.select([self.end], [], [], 0.002)
                self.pump()
                if also is not None:
                    also(self)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        setup = build(configuration)
        trained = Trainer(setup, end, self.run_dir, "feed")
        try:
            _run_until_told(trained)
        finally:
            stop.set()
            thread.join()
            self.pump()
            end.close()
            _end_workers(setup)
        return setup

    # -- as a process --------------------------------------------------------------------------------------------------

    def spawn(self, configuration: bytes, failpoint: str = "") -> Forked:
        """Start a trainer process with the daemon's arguments: a fork of the template, which is its parent."""
        path = self.run_dir / "config.resolved.json"
        path.write_bytes(configuration)
        theirs = self.connect()
        fds = {3: theirs.fileno(), 4: self.end.page.descriptor}
        template = shared_template()
        arguments = ["--run", str(self.run_dir), "--config-json", str(path), "--incarnation", str(self.incarnation)]
        arguments += ["--channel-fd", "3", "--page-fd", "4", "--parent-pid", str(template.pid)]
        environment = {**os.environ, "TOLARIA_FAILPOINT": failpoint}
        process = template.start(
            arguments,
            environment=environment,
            folder=Path.cwd(),
            log=1,
            shells=0,
            program="tolariad.trainer",
            passed=fds,
        )
        theirs.close()
        return process

    def serve(self, process: Forked, timeout_s: float = 60.0) -> int:
        """Answer until the trainer ends. Return its exit code."""
        give_up = time.monotonic() + timeout_s
        while process.poll() is None:
            assert time.monotonic() < give_up, f"the trainer hangs; last report: {self.reports[-1:]}"
            select.select([self.end], [], [], 0.02)
            self.pump()
        self.pump()
        return process.returncode

    def kill(self, process: Forked) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.pump()

    def of(self, *kinds: type) -> list[Any]:
        """Return the reports of these types, and the events that were told."""
        return of(self.reports, *kinds)

    def reruns(self) -> list[m.RerunReport]:
        """Return the reports of re-runs. Fails if a step came out otherwise."""
        found = self.of(m.RerunReport)
        assert [one.first_difference for one in found] == [None] * len(found)
        return found

    def files(self, id_: str) -> dict[str, bytes]:
        """Return the files of a checkpoint that are equal for equal states."""
        return files_of(self.run_dir / "checkpoints" / id_)


def _run_until_told(trained: Trainer) -> None:
    """Only that ends `run`. In a function of its own, so that the frames of the loop are gone when it returns."""
    with pytest.raises(ToldToExit):
        trained.run()


def _end_workers(setup: Setup) -> None:
    """A process that trains ends here. Workers that live on with the loader would be ended by some later collection,
    after the queues they listen to. Each of them would then cause a wait.
    """
    for feed in (setup.train, setup.validation):
        loader = getattr(feed, "_loader", None)
        if loader is not None:
            loader._iterator = None


@pytest.fixture
def daemon_in(tmp_path: Path) -> Any:
    """Make a fake daemon with a run folder of its own under the test's."""

    def make(name: str, epochs: int, **more: Any) -> FakeDaemon:
        folder = tmp_path / name
        folder.mkdir()
        return FakeDaemon(folder, epochs, **more)

    return make


@pytest.fixture
def resumes(daemon_in: Any) -> Any:
    """Train once undisturbed and once with a checkpoint and an exit after given steps. Both end with equal files.

    Without steps the one exit is after two thirds. Return the daemon of the interrupted run, and of the other.
    """

    def train(configuration: bytes, epochs: int, *interruptions: tuple[int | None, int], **more: Any) -> Any:
        calm, broken = daemon_in("calm", epochs, **more), daemon_in("broken", epochs, **more)
        calm.train_here(configuration)
        for checkpoint_at, exit_at in interruptions or [(None, calm.last_step * 2 // 3 + 1)]:
            broken.checkpoint_after_step, broken.exit_after_step = checkpoint_at, exit_at
            broken.train_here(configuration)
        broken.train_here(configuration)

        assert broken.ended
        assert broken.files("end") == calm.files("end")
        assert {n: r.metrics for n, r in broken.validations.items()} == {
            n: r.metrics for n, r in calm.validations.items()
        }
        assert any(one.compared for one in broken.reruns()), "no interruption left a step to run again"
        return broken, calm

    return train


@pytest.fixture(scope="session")
def configured() -> Any:
    """Make a resolved configuration: `configured("digits", epochs=2)`."""
    return config
