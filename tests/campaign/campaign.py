"""The campaign: a real daemon and trainer, killed at random points, must end with the bits of an undisturbed run.

A plan is a value (tests/campaign/plans.py). Carrying it out starts the program, kills, pauses, resumes, orders
checkpoints, writes notes, and looks up afterwards whatever was acknowledged. Every planned kill must happen.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from journal import Reader, Verdict, verify
from tests.campaign.forks import Forked, Template
from tests.campaign.plans import BY_TIME, Kill, Plan
from tests.campaign.variants import EPOCHS, Order, configuration
from tests.core.test_lifecycle import ENDS
from tolariad.control.client import Client, ControlError, NotReachable
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import decode_event
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState
from tolariad.failpoints import VARIABLE
from tolariad.supervisor.lock import holder_pid, is_held

# Seconds for a whole run, and for one whose starts take long.
LIMIT_S, LONG_LIMIT_S = 300.0, 1800.0
INTERFACE = "io.esper.tolaria"
# Whose children some runs are, and its checkpoint with which they begin: after the third epoch, not its last.
PARENT, PARENTS_CHECKPOINT = "parent", "c000004"
_COMMAND = Path(sys.executable).with_name("tolariad")
_AT_ONCE_S, _LOOK_S = 0.002, 0.01  # between two looks; the first if another process is to die at once
_END_S = 0.2


@dataclass
class Outcome:
    """The result of a plan, with everything that the test checks."""

    pieces: dict[str, str]
    metrics: list[dict[str, float]]
    line: list[bytes]
    digest: bytes
    orders: bytes
    fired: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    lost: int = 0
    pauses: int = 0
    checkpoints: int = 0
    reruns: int = 0
    rollbacks: int = 0
    by_start: int = 0


class Disturbance:
    """One run under its plan."""

    def __init__(self, folder: Path, plan: Plan, template: Template) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        # One of the campaign's own, finished before the others begin.
        self.parent = folder.parents[1] / PARENT / "run"
        self.plan = plan
        self.template = template
        self.waiting = list(plan.kills)
        self.fired: Counter[str] = Counter()
        self.give_up = time.monotonic() + (LONG_LIMIT_S if plan.variant.is_long else LIMIT_S)
        self.operator = Operator(self)

    def carry_out(self) -> Outcome:
        """Start, kill and start again until the run is complete. Raises AssertionError with details."""
        (self.folder / "config.yaml").write_text(configuration(self.plan.variant, self.plan.sync))
        self.release()
        thread = threading.Thread(target=self.operator.work, daemon=True)
        thread.start()
        try:
            self._until_complete()
        finally:
            self.operator.over.set()
            thread.join()
        return self._look()

    def release(self) -> None:
        """Let the run continue to the end of the epoch of the next kill or order."""
        epochs = [order.epoch - 1 for order in self.operator.orders]
        if self.waiting:
            epochs.append(self.fired.total())
        aside = self.folder / f"brake.{threading.get_ident()}"
        # The end of epoch n is passed when n kills have happened and everything ordered for it was accepted.
        aside.write_text(str(min(epochs, default=EPOCHS)))
        aside.replace(self.folder / "brake")

    def is_due(self, order: Order) -> bool:
        """Return whether the kills before `order` have happened and the next one can."""
        if self.fired.total() < min(order.kills, len(self.plan.kills)):
            return False
        return not order.kills or all(kill.point == BY_TIME or self._token(kill).exists() for kill in self.waiting[:1])

    def _until_complete(self) -> None:
        while True:
            expected = any(kill.takes_daemon for kill in self.waiting)
            code = self._one_daemon()
            if code == 0:
                break
            assert expected, self._say("a daemon died that nobody had killed")
            assert code == -signal.SIGKILL, self._say(f"exit {code}")
        assert not self.waiting, self._say(f"never happened: {self.waiting}")

    def _one_daemon(self) -> int:
        """Run the daemon from its start to its end, with the kills that are due."""
        daemon = self._start()
        try:
            while self.waiting:
                kill = self.waiting[0]
                (self._kill_by_time if kill.point == BY_TIME else self._kill_at_point)(daemon, kill)
                self.fired[kill.point] += 1
                self.waiting.pop(0)
                self.release()
                if kill.takes_daemon:
                    break
                self._arm()
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return daemon.wait(_END_S)
                self._look_at_the_clock(daemon, "the run does not end")
        finally:
            daemon.kill()
            daemon.wait()

    def _start(self) -> subprocess.Popen | Forked:
        """Start the daemon as a user would, or as a fork.

        Arm the points of the pending kills, each by its own token.
        """
        rules = [
            f"{kill.point}:{kill.count}:{kill.delay_us}@{self._token(kill)}"
            for kill in self.waiting
            if kill.point != BY_TIME
        ]
        arguments = ["run", str(self.folder / "config.yaml"), "--dir", str(self.run_dir), *self._begins_from()]
        environment = {**os.environ, VARIABLE: ",".join(rules), "XDG_RUNTIME_DIR": str(self.folder)}
        self._arm()
        with (self.folder / "daemon.log").open("ab") as log:
            if self.plan.as_user:
                return subprocess.Popen(
                    [_COMMAND, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env=environment,
                )
            shells = 1 + sum(not kill.takes_daemon for kill in self.waiting)
            return self.template.start(
                arguments, environment=environment, folder=self.folder, log=log.fileno(), shells=shells
            )

    def _begins_from(self) -> tuple[str, ...]:
        """Return the arguments of every start: those of the first one, repeated."""
        words = self.plan.variant.begins_from
        return () if words is None else ("--from", f"{self.parent}@{PARENTS_CHECKPOINT}", *words)

    def _arm(self) -> None:
        """Arm the next kill, if it is at a point: once, for a daemon may be there before `start` returns."""
        if self.waiting and self.waiting[0].point != BY_TIME:
            self._token(self.waiting[0]).touch()

    def _token(self, kill: Kill) -> Path:
        return self.folder / f"token{self.plan.kills.index(kill)}"

    def _kill_by_time(self, daemon: subprocess.Popen | Forked, kill: Kill) -> None:
        time.sleep(kill.delay_us / 1e6)
        while kill.who == "trainer" and not self._kill_trainer(daemon):
            self._wait_a_little(daemon, kill)
        if kill.who != "trainer":
            self._kill_daemon(daemon, kill)

    def _kill_at_point(self, daemon: subprocess.Popen | Forked, kill: Kill) -> None:
        """Let the process that reaches the point kill itself, and the other one too if the plan says so."""
        while self._token(kill).exists():
            self._wait_a_little(daemon, kill)
        if kill.who == "both":
            time.sleep(kill.delay_us / 1e6)
            self._kill_daemon(daemon, kill)

    def _kill_daemon(self, daemon: subprocess.Popen | Forked, kill: Kill) -> None:
        if kill.who == "both":
            self._kill_trainer(daemon)
        daemon.kill()

    def _kill_trainer(self, daemon: subprocess.Popen | Forked) -> bool:
        """SIGKILL for the trainer that holds the run's lock, if there is one."""
        if not is_held(self.run_dir) or not (pid := holder_pid(self.run_dir)):
            return False
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            # A number in a file may be another's by now; the descriptor stays with whom it was opened for.
            if parent_of(pid) != daemon.pid:
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    def _wait_a_little(self, daemon: subprocess.Popen | Forked, kill: Kill) -> None:
        ended = daemon.poll()
        assert ended is None or not self._token(kill).exists(), self._say(f"{kill} did not happen: exit {ended}")
        self._look_at_the_clock(daemon, f"{kill} did not happen", _AT_ONCE_S if kill.who == "both" else _LOOK_S)

    def _look_at_the_clock(self, daemon: subprocess.Popen | Forked, what: str, moment_s: float = _LOOK_S) -> None:
        """Wait a moment. After the deadline, ask the daemon for its stacks and fail."""
        time.sleep(moment_s)
        if time.monotonic() > self.give_up:
            os.kill(daemon.pid, signal.SIGABRT)
            daemon.wait()
            raise AssertionError(self._say(what))

    def _look(self) -> Outcome:
        """Read the journal, with the reader only, and the last checkpoint."""
        journal = self.run_dir / "journal"
        report = verify(journal)
        assert report.verdict is Verdict.CLEAN, report
        events: dict[int, m.Event] = {entry.seq: decode_event(entry.event) for entry in Reader(journal)}
        state = replay_records(RunState(), Reader(journal).records(), strict=True).state
        for begun, ends in ENDS.items():
            ended = sum(isinstance(event, ends) for event in events.values())
            assert ended == sum(isinstance(event, begun) for event in events.values()), begun
        last = [e for e in events.values() if isinstance(e, m.RunCompleted)][-1].checkpoint
        committed = next(e for e in events.values() if getattr(e, "id", "") == last and hasattr(e, "pieces"))
        operator = self.operator
        return Outcome(
            pieces={piece.name: piece.blake3 for piece in committed.pieces},
            metrics=living_metrics(events.values(), state),
            line=living_line(events.values(), state, branches=not self.plan.variant.in_memory),
            digest=state.progress.digest,
            orders=state.boundary.digest,
            fired=self.fired,
            acknowledged=len(operator.acknowledged),
            lost=sum(not _is_there(events.get(seq), what) for seq, what in operator.acknowledged.items()),
            pauses=operator.pauses,
            checkpoints=operator.checkpoints,
            reruns=sum(event.compared for event in events.values() if isinstance(event, m.RerunFinished)),
            rollbacks=state.rollbacks.done,
            by_start=sum(isinstance(event, m.RolledBack) and event.by_start for event in events.values()),
        )

    def _say(self, what: str) -> str:
        log = self.folder / "daemon.log"
        return f"{what}\n{self.plan}\n{log.read_text(errors='replace')[-6000:] if log.exists() else '(no log)'}"


class Operator:
    """Gives orders through the socket. `acknowledged`: what was confirmed as durable, by sequence number."""

    def __init__(self, run: Disturbance) -> None:
        self.run = run
        self.draw = random.Random(run.plan.seed)
        self.over = threading.Event()
        self.orders: list[Order] = list(run.plan.variant.orders)
        self.acknowledged: dict[int, str] = {}
        self.notes = self.pauses = self.checkpoints = self.refused = 0

    def work(self) -> None:
        """Until the run has ended: write notes all the time, and sometimes give other orders."""
        while not self.over.wait(self.draw.uniform(0.02, 0.2)):
            try:
                with Client(self.run.run_dir / "control.sock", timeout_s=10.0) as client:
                    self._act(client)
            except (NotReachable, ControlError):
                continue
            except BaseException:
                # Nobody would resume the run again, or give its orders.
                self.run.give_up = 0.0
                raise

    def _act(self, client: Client) -> None:
        self.notes += 1
        text = f"note {self.notes}"
        self._call(client, "Note", {"text": text}, text)
        if self.orders:
            self._give_order(client, self.orders[0])
        if self.pauses < self.run.plan.pauses and self.draw.random() < 0.2:
            try:
                self._call(client, "Pause", {"reason": "a look"}, "PauseRequested")
                self.pauses += 1
            finally:
                # A daemon may have recorded it and died with the answer: the run would stand for good.
                self._resume()
        if self.checkpoints < self.run.plan.checkpoints and self.draw.random() < 0.2:
            self._call(client, "Checkpoint", {}, "CheckpointRequested")
            self.checkpoints += 1

    def _call(self, client: Client, method: str, parameters: dict[str, Any], event: str) -> None:
        self.acknowledged[client.call(f"{INTERFACE}.{method}", parameters)["seq"]] = event

    def _give_order(self, client: Client, order: Order) -> None:
        """Give the order when every step of its epoch is durable, with an id, in case a killed daemon loses the answer.

        One that a kill may meet is given to a trainer that lives and stands at the epoch's end.
        """
        if not self.run.is_due(order):
            return
        status = client.call(f"{INTERFACE}.Status")["status"]
        if status["step"] < order.epoch * self.run.plan.variant.steps:
            return
        stands = status["phase"] == "running" and (status["trainer"] or {}).get("activity") == "hook"
        if order.kills and not stands:
            return
        id_ = f"order {len(self.orders)}, refused {self.refused}"
        try:
            self._call(client, order.method, {**order.parameters, "id": id_}, order.event)
        except ControlError:
            # A repeated id gets the first answer, also when that was a refusal: given again it is another order.
            self.refused += 1
            raise
        self.orders.pop(0)
        self.run.release()

    def _resume(self) -> None:
        while not self.over.wait(self.draw.uniform(0.01, 0.2)):
            # A daemon that is killed meanwhile finds the run paused: only a resume wakes it, so it is tried until then.
            try:
                with Client(self.run.run_dir / "control.sock", timeout_s=10.0) as client:
                    self._call(client, "Resume", {}, "ResumeRequested")
                    return
            except ControlError:
                return
            except NotReachable:
                continue


def parent_of(pid: int) -> int:
    """Return the parent's pid; 0 if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def living_line(events: Iterable[m.Event], state: RunState, *, branches: bool = True) -> list[bytes]:
    """Return the lineage's steps, applied and skipped, without times and sequence numbers.

    Without `branches` if it depends on the moment how far was gone back, and so what was done again.
    """
    lines, found = state.rollbacks.branches, []
    for event in events:
        match event:
            case m.StepCompleted() if lines.holds_step(event.branch, event.step):
                found.append(_plain(event if branches else replace(event, branch=0)))
            case m.StepSkipped() if lines.holds_position(event.branch, event.epoch, event.batch):
                found.append(_plain(event if branches else replace(event, branch=0)))
            case _:
                pass
    return found


def living_metrics(events: Iterable[m.Event], state: RunState) -> list[dict[str, float]]:
    """Return the metrics of the lineage's validations; a validation belongs to the branch before it."""
    branch, found = 0, []
    for event in events:
        match event:
            case m.RolledBack():
                branch = event.branch
            case m.ValidationFinished() if state.rollbacks.branches.holds_position(branch, event.epoch + 1, 0):
                found.append(event.metrics)
            case _:
                pass
    return found


def _plain(event: m.StepCompleted | m.StepSkipped) -> bytes:
    """Return the value as bytes, so that NaN equals NaN."""
    return msgspec.msgpack.encode(replace(event, wall=0, mono=0, cause=0, root=0))


def _is_there(event: m.Event | None, what: str) -> bool:
    return event.text == what if isinstance(event, m.NoteAdded) else type(event).__name__ == what
