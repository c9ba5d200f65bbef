"""A trainer without torch: the real lifelines, channel and orders, with steps that compute nothing.

`FAKE_TRAINER=ACTION@STEP[,…]` makes it misbehave, each once in the life of a run; `FAKE_STEP_S` is how long a step
takes, `FAKE_EPOCH` how many an epoch has. `FAKE_SLOTS=NAME[,…]`: slots of its model, in which every move succeeds.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tolariad import lifelines, run_files, signals
from tolariad.channel import Activity, Page, TrainerEnd
from tolariad.core import messages as m
from tolariad.trainer.errors import ToldToExit
from tolariad.trainer.orders import Boundary, Link
from tolariad.trainer.process.lifelines import dump_stacks_on_request, lock_run

STEPS_PER_EPOCH = int(os.environ.get("FAKE_EPOCH", "10"))
# How long a step takes; `crawl` makes the rest of a trainer's steps slow, so that a test can catch it in the middle.
PACE = {"step_s": float(os.environ.get("FAKE_STEP_S", "0.001"))}
CRAWL_S = 0.3
ENVIRONMENT = m.Environment(
    **dict.fromkeys(("python", "torch", "numpy", "tolariad", "cpu", "device", "determinism", "precision"), "fake"),
    threads=1,
    model_hash="0" * 64,
    task_hash="0" * 64,
    config_hash="0" * 64,
)


def a_pipe() -> int:
    """Return the end of a pipe that nobody writes to."""
    return os.pipe()[0]


# Packets that are none of ours: bytes, and what makes the descriptor beside them.
HOSTILE: dict[str, tuple[bytes, Callable[[], int] | None]] = {
    "naked": (b"\x01", None),
    "pipe": (b"\x01", a_pipe),
    "folder": (b"\x01", lambda: os.open("/", os.O_RDONLY)),
    "emptiness": (b"", None),
}


def send_on_the_channel(packet: bytes, make: Callable[[], int] | None) -> None:
    """Send a packet to the recorder, past everything that is ours."""
    for path in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(path.name))) as sock:
                if sock.type == socket.SOCK_SEQPACKET:
                    socket.send_fds(sock, [packet], [make()] if make else [])
        except OSError:
            continue


def misbehave(run: Path, step: int) -> None:
    """Do what this step is to do, unless an earlier trainer of this run did it already."""
    for action, _, at in (one.partition("@") for one in filter(None, os.environ.get("FAKE_TRAINER", "").split(","))):
        done = run / f"did-{action}-{at}"
        if int(at) != step or (done.exists() and action != "always"):
            continue
        done.touch()
        if action == "hang":
            time.sleep(600)
        elif action == "crawl":
            PACE["step_s"] = CRAWL_S
        elif action == "raise":
            raise RuntimeError("the loss is a teapot")
        elif action == "memory":
            raise MemoryError
        elif action == "worker":
            worker = os.fork()
            if worker == 0:
                time.sleep(600)
            (run / "worker").write_text(str(worker))
        elif action == "print":
            print("a line of the task", flush=True)
        elif action in HOSTILE:
            send_on_the_channel(*HOSTILE[action])
            time.sleep(600)
        elif action == "flood":
            print(("x" * 200 + "\n") * 50_000, flush=True)
        else:
            number = {"segv": signal.SIGSEGV, "kill": signal.SIGKILL, "abort": signal.SIGABRT, "always": signal.SIGKILL}
            os.kill(os.getpid(), number[action])


class Fake:
    """One incarnation of the fake trainer."""

    def __init__(self, run: Path, end: TrainerEnd) -> None:
        self.run = run
        self.link = Link.over(end)
        self.boundary = Boundary(self.link)
        self.progress, self.reporter, self.gate = self.link.progress, self.link.reporter, self.link.gate
        self.link.inbox.register(m.TakeCheckpoint, self.take)
        self.link.inbox.register(m.AbortCheckpoints, lambda _: None)
        self.link.inbox.register(m.SetQuarantine, lambda _: None)
        self.link.inbox.register(m.SetEnd, self.set_end)
        self.link.inbox.register(m.MoveSeed, self.move)
        self.link.inbox.register(m.BeginStage, self.begin_stage)
        self.epochs = 0
        slots = tuple(map(m.SlotFound, filter(None, os.environ.get("FAKE_SLOTS", "").split(","))))
        self.reporter.report(
            m.ReadyReport(
                environment=ENVIRONMENT,
                parameters=1,
                steps_per_epoch=STEPS_PER_EPOCH,
                slots=slots,
                blueprints=("conv",) if slots else (),
            )
        )

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch."""
        return self.progress.step // STEPS_PER_EPOCH + 1

    def set_end(self, order: m.SetEnd) -> None:
        """Epochs only."""
        self.epochs = order.epochs

    def move(self, order: m.MoveSeed) -> None:
        """Move a seed that has no module."""
        before = self.progress.step + 1
        self.reporter.report(m.SeedMovedReport(order=order.cause, applied_before_step=before, parameters_added=4))

    def begin_stage(self, order: m.BeginStage) -> None:
        """Answer that the stage begins."""
        self.reporter.report(m.BoundaryOrderReport(order=order.cause, applied_before_step=self.progress.step + 1))

    def take(self, order: m.TakeCheckpoint) -> None:
        """Write a checkpoint without content."""
        self.gate.fence()
        time.sleep(float(os.environ.get("FAKE_CHECKPOINT_S", "0")))
        for name in ("checkpoints", f"checkpoints/{order.id}"):
            run_files.make_folder(self.run, name)
        run_files.replace_file(self.run / "checkpoints" / order.id, "manifest.json", b"{}")
        step = self.progress.step
        self.reporter.report(
            m.CheckpointWrittenReport(
                id=order.id,
                step=step,
                epoch=self.epoch,
                batch=step % STEPS_PER_EPOCH,
                manifest="0" * 64,
                pieces=(),
                seconds=0.0,
            )
        )

    def train(self) -> None:
        """Train from the order to the end."""
        order, _ = self.boundary.wait_for_start()
        start = order.checkpoint.step if order.checkpoint else 0
        self.progress.reached(start)
        identity = order.checkpoint.id if order.checkpoint else ""
        self.reporter.report(m.TrainingStartedReport(step=start, checkpoint=identity))
        if order.durable_step > start:
            self.rerun(start, order.durable_step)
        self.epochs = order.epochs
        while True:
            while self.epoch <= self.epochs:
                self.one_epoch(order)
            self.reporter.report(m.TrainingEndedReport(step=self.progress.step))
            self.boundary.serve_until_exit(lambda: self.epoch <= self.epochs)

    def rerun(self, start: int, last: int) -> None:
        self.progress.begin_rerun()
        for step in range(start + 1, last + 1):
            self.boundary.stop()
            self.progress.reached(step)
        self.progress.end_rerun()
        self.reporter.report(m.RerunReport(first=start + 1, last=last, compared=last - start))

    def one_epoch(self, order: m.TrainFrom) -> None:
        epoch = self.epoch
        last = epoch * STEPS_PER_EPOCH
        if epoch > order.epoch_started:
            self.reporter.report(m.Told(event=m.EpochStarted(epoch=epoch)))
        while self.progress.step < last:
            self.step(epoch)
        step = self.progress.step
        if epoch > order.epoch_validated:
            self.reporter.report(m.Told(event=m.ValidationBegun(epoch=epoch, step=step)))
            metrics = {"loss": 1 / step, "accuracy": 1 - 1 / step}
            report = m.ValidationReport(epoch=epoch, step=step, metrics=metrics, samples=1, seconds=0.0)
            self.reporter.report(report)
        if epoch > order.epoch_finished:
            self.reporter.report(m.EpochReport(epoch=epoch, step=step))
            self.boundary.wait_for_continue(epoch)

    def step(self, epoch: int) -> None:
        self.boundary.stop()
        time.sleep(PACE["step_s"])
        self.gate.wait()
        step = self.progress.step + 1
        self.progress.reached(step)
        batch = (step - 1) % STEPS_PER_EPOCH + 1
        self.gate.report_step((step, epoch, batch, 1 / step, 1.0, 0.1, 7))
        misbehave(self.run, step)


def main() -> int:
    """Start like a real trainer, then run the fake."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path)
    parser.add_argument("--printed")
    for name in ("--incarnation", "--channel-fd", "--page-fd", "--parent-pid", "--ring-fd"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    orphan = os.environ.get("FAKE_ORPHAN") and not (args.run / "orphan").exists()
    if orphan:
        (args.run / "orphan").write_text(str(os.getpid()))
    else:
        lifelines.die_with_parent(args.parent_pid)
    lifelines.be_ordinary()
    signals.leave_to_the_daemon()
    dump_stacks_on_request(args.run)
    page = Page.attach(args.page_fd)
    page.beat(0, time.monotonic_ns(), Activity.BUILD)
    lock = lock_run(args.run, lambda: None)
    lifelines.guard_children((args.channel_fd, lock, args.page_fd))
    end = TrainerEnd(socket.socket(fileno=args.channel_fd), page)
    if os.environ.get("FAKE_REFUSAL"):
        end.report(m.SetupRefusedReport(why=os.environ["FAKE_REFUSAL"]))
        return 78
    fake = Fake(args.run, end)
    try:
        fake.train()
    except ToldToExit:
        if orphan:
            time.sleep(600)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
