"""The campaign: a real daemon and trainer, killed at drawn points, must end with the bits of the run that was not.

A plan is a value made from a seed: which points, the how-many-eth time, how much later, who dies. Carrying it out starts
the program as a user would, kills, pauses, resumes, writes notes, and looks up afterwards whatever was acknowledged.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from journal import Reader, Verdict, verify
from tests.core.test_lifecycle import ENDS
from tolariad.control.client import Client, ControlError, NotReachable
from tolariad.core.replay import replay_records
from tolariad.core.state import RunState
from tolariad.core.vocabulary import Event, decode_event
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import run as rv
from tolariad.core.vocabulary import steps as sv
from tolariad.failpoints import POINTS, VARIABLE

HERE = Path(__file__).parent
EPOCHS = 3
STEPS = EPOCHS * 8
BY_TIME = "by_time"
LIMIT_S = 150.0
_RUN = "import sys; from tolariad.cli.tolariad import main; sys.exit(main())"

# How often a point is passed in a run, so that the how-many-eth time can be drawn.
_TIMES = {
    "start": 1,
    "replay": 3,
    "build": 1,
    "restore": 1,
    "rerun": 2,
    "step": 20,
    "gate": 20,
    "validation": 5,
    "boundary": 24,
    "checkpoint_file": 8,
    "manifest": 3,
    "commit": 40,
    "rotation": 3,
}
# These are passed only after something was killed in the middle of an epoch.
_NEEDS_DEATH = ("replay", "restore", "rerun")
_DECK = (*POINTS, BY_TIME)
_SOON = ("start", "build", "commit", "replay")
_IN_DAEMON = ("start", "replay", "commit", "rotation")


@dataclass(frozen=True)
class Kill:
    """One death: of whoever reaches `point` for the `count`-th time, or after `delay_s` for `by_time`."""

    point: str
    count: int
    delay_us: int
    who: str  # "self": the process at the point; "both": the other one too


@dataclass
class Plan:
    """What is done to one run."""

    seed: int
    kills: list[Kill]
    pauses: int
    sync: str = "step"


@dataclass
class Outcome:
    """What came of it; everything that the claims are about."""

    pieces: dict[str, str]
    metrics: list[dict[str, float]]
    digest: bytes
    fired: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    lost: int = 0
    pauses: int = 0
    reruns: int = 0


def deal(seed: int, runs: int) -> list[Plan]:
    """Deal the points over the runs like cards, so that each comes at least twice; then draw the rest.

    Two to four kills a run. Beside the dealt ones stand deaths soon after a start (`_SOON`): they come before torch is
    imported, which is what a start of a trainer costs.
    """
    draw = random.Random(seed)
    cards = [point for _ in range(max(2, -(-runs // len(_DECK)))) for point in draw.sample(_DECK, len(_DECK))]
    plans = []
    for number in range(runs):
        dealt = cards[number::runs]
        soon = [draw.choice(_SOON) for _ in range(draw.choice((2, 2, 3, 4)) - len(dealt))]
        kills = _ordered(draw, [_kill(draw, point) for point in dealt]) + [
            Kill(point, 1, draw.randrange(300), "self") for point in soon
        ]
        plans.append(Plan(seed * 1000 + number, kills, draw.choice((0, 1, 1)), draw.choice(("step", "batch"))))
    return plans


def _ordered(draw: random.Random, kills: list[Kill]) -> list[Kill]:
    """What needs an earlier death comes behind one that happens amid an epoch and takes the daemon along."""
    needy = [kill for kill in kills if kill.point in _NEEDS_DEATH]
    others = [kill for kill in kills if kill.point not in _NEEDS_DEATH]
    if not needy:
        return others
    amid = Kill("boundary", draw.choice((4, 6, 7)), draw.randrange(200), "both")
    return [amid, *needy, *others]


def deal_again(seed: int, missing: list[str]) -> list[Plan]:
    """Plans for points that were not reached often enough, each as early as it can be."""
    draw = random.Random(seed)
    return [
        Plan(seed * 1000 + 900 + number, _ordered(draw, [Kill(point, 1, 0, "both")]), 0)
        for number, point in enumerate(missing)
    ]


def _kill(draw: random.Random, point: str) -> Kill:
    who = draw.choice(("self", "self", "both"))
    if point == BY_TIME:
        return Kill(point, 0, draw.randrange(100_000, 5_000_000), draw.choice(("daemon", "trainer", "both")))
    return Kill(point, draw.randint(1, _TIMES[point]), draw.randrange(0, 300), who)


class Disturbance:
    """One run under its plan."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.plan = plan
        self.acknowledged: dict[int, str] = {}
        self.fired: Counter[str] = Counter()
        self.pauses = 0
        self.over = threading.Event()
        self.draw = random.Random(plan.seed)

    def carry_out(self) -> Outcome:
        """Start, kill, start again, until the run says that it is complete. Raises AssertionError with what was seen."""
        (self.folder / "config.yaml").write_text(_config(self.plan.sync))
        operator = threading.Thread(target=self._operate, daemon=True)
        operator.start()
        try:
            self._until_complete()
        finally:
            self.over.set()
            operator.join()
        return self._look()

    def _until_complete(self) -> None:
        waiting = list(self.plan.kills)
        give_up = time.monotonic() + LIMIT_S
        for _ in range(len(self.plan.kills) + 3):
            code = self._one_daemon(waiting, give_up)
            if code == 0:
                return
            assert code == -signal.SIGKILL, f"exit {code}\n{self._log()}"
        raise AssertionError(f"the run did not complete\n{self._log()}")

    def _one_daemon(self, waiting: list[Kill], give_up: float) -> int:
        """From a start of the daemon to its end, with the kills that are due meanwhile."""
        tokens = {id(kill): self.folder / f"token{n}" for n, kill in enumerate(self.plan.kills)}
        rules = ",".join(
            f"{kill.point}:{kill.count}:{kill.delay_us}@{tokens[id(kill)]}" for kill in waiting if kill.point != BY_TIME
        )
        with (self.folder / "daemon.log").open("ab") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-c", _RUN, "run", str(self.folder / "config.yaml"), "--dir", str(self.run_dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, VARIABLE: rules, "XDG_RUNTIME_DIR": str(self.folder)},
            )
        try:
            while waiting and daemon.poll() is None:
                self._one_kill(daemon, waiting, tokens[id(waiting[0])], give_up)
            return daemon.wait(max(1.0, give_up - time.monotonic()))
        finally:
            daemon.kill()
            daemon.wait()

    def _one_kill(self, daemon: subprocess.Popen, waiting: list[Kill], token: Path, give_up: float) -> None:
        """Wait until the next kill has happened (or the daemon has ended without it)."""
        kill = waiting[0]
        if kill.point == BY_TIME:
            time.sleep(kill.delay_us / 1e6)
            if daemon.poll() is None:
                self._kill(daemon, kill.who)
                self.fired[kill.point] += 1
            waiting.pop(0)
            return
        token.touch()
        while token.exists():
            if daemon.poll() is not None:
                token.unlink(missing_ok=True)
                return
            assert time.monotonic() < give_up, f"{kill} never happened\n{self._log()}"
            time.sleep(0.002)
        self.fired[kill.point] += 1
        waiting.pop(0)
        if kill.who == "both" or kill.point in _IN_DAEMON:
            time.sleep(kill.delay_us / 1e6)
            self._kill(daemon, "both")

    def _kill(self, daemon: subprocess.Popen, who: str) -> None:
        if who in ("trainer", "both"):
            try:
                os.kill(int((self.run_dir / "trainer.lock").read_text()), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, ValueError):
                who = who if who == "both" else "nobody"
        if who in ("daemon", "both"):
            daemon.kill()
            daemon.wait()

    def _operate(self) -> None:
        """Notes all the time, and now and then a pause that lasts a moment; what is acknowledged is kept."""
        number = 0
        while not self.over.wait(self.draw.uniform(0.05, 0.4)):
            number += 1
            try:
                with Client(self.run_dir / "control.sock", timeout_s=10.0) as client:
                    text = f"note {number}"
                    self.acknowledged[client.call("io.esper.tolaria.Note", {"text": text})["seq"]] = text
                    if self.pauses < self.plan.pauses and self.draw.random() < 0.3:
                        self._pause_and_resume(client)
            except (NotReachable, ControlError):
                continue

    def _pause_and_resume(self, client: Client) -> None:
        self.acknowledged[client.call("io.esper.tolaria.Pause", {"reason": "a look"})["seq"]] = "PauseRequested"
        self.pauses += 1
        while not self.over.wait(self.draw.uniform(0.01, 0.3)):
            # A daemon that is killed meanwhile finds the run paused: only a resume wakes it, so it is tried until then.
            try:
                with Client(self.run_dir / "control.sock", timeout_s=10.0) as again:
                    self.acknowledged[again.call("io.esper.tolaria.Resume", {})["seq"]] = "ResumeRequested"
                    return
            except ControlError:
                return
            except NotReachable:
                continue

    def _look(self) -> Outcome:
        """Read the journal with nothing but the reader, and the last checkpoint."""
        journal = self.run_dir / "journal"
        report = verify(journal)
        assert report.verdict is Verdict.CLEAN, report
        events: dict[int, Event] = {entry.seq: decode_event(entry.event) for entry in Reader(journal)}
        state = replay_records(RunState(), Reader(journal).records(), strict=True).state
        assert [e.step for e in events.values() if isinstance(e, sv.StepCompleted)] == list(range(1, STEPS + 1))
        for begun, ends in ENDS.items():
            ended = sum(isinstance(event, ends) for event in events.values())
            assert ended == sum(isinstance(event, begun) for event in events.values()), begun
        last = [e for e in events.values() if isinstance(e, rv.RunCompleted)][-1].checkpoint
        committed = next(e for e in events.values() if getattr(e, "id", "") == last and hasattr(e, "pieces"))
        return Outcome(
            pieces={piece.name: piece.blake3 for piece in committed.pieces},
            metrics=[e.metrics for e in events.values() if isinstance(e, sv.ValidationFinished)],
            digest=state.progress.digest,
            fired=self.fired,
            acknowledged=len(self.acknowledged),
            lost=sum(not _is_there(events.get(seq), what) for seq, what in self.acknowledged.items()),
            pauses=self.pauses,
            reruns=state.rerun.compared,
        )

    def _log(self) -> str:
        path = self.folder / "daemon.log"
        return path.read_text(errors="replace")[-6000:] if path.exists() else "(no log)"


def _is_there(event: Event | None, what: str) -> bool:
    return event.text == what if isinstance(event, cv.NoteAdded) else type(event).__name__ == what


def _config(sync: str) -> str:
    return f"""\
tolaria:
  task: {HERE / "task.py"}:Disturbed
  rng_seed: 11
  epochs: {EPOCHS}
  torch_threads: 1
  determinism: strict
  checkpoint_interval_epochs: 1
  checkpoint: {{min_gap_s: 0}}
  journal: {{segment_bytes: 65536, sync: {sync}}}
  learning_rate: {{base_lr: 0.01, warmup_epochs: 1}}
"""
