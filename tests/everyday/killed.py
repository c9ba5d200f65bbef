"""Programs that are killed at planned steps, and what is compared of them afterwards.

A kill is SIGKILL for everything that the program started. The process that trains kills itself at a step that the plan
names, and a daemon is killed as soon as that has happened. The plans are drawn from the seed of the tests.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from journal import Reader, Verdict, verify
from tests.campaign.campaign import living_line, living_metrics
from tests.campaign.forks import Forked, Template
from tests.recorded import events_of, files_of, of
from tolariad.core import messages as m
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState
from tolariad.failpoints import VARIABLE

STEPS = {"reinforcement": 40}
STEPS_MOST = 32
# The failpoint `step` is passed after each update, and after the last one of a step.
PASSES = {"gan": 3}
KILLS = 2
_LIMIT_S = 120.0
_AT_ONCE_S, _LOOK_S = 0.002, 0.01


class Kill(NamedTuple):
    """SIGKILL when the process that trains has passed a failpoint so many times, and so many microseconds later.

    `or_step`: SIGKILL at this pass of `step` already, if it comes first; 0: not.
    """

    point: str
    passes: int
    delay_us: int
    or_step: int = 0

    def armed(self, token: Path) -> str:
        """Return the value of the failpoints' variable."""
        rules = f"{self.point}:{self.passes}:{self.delay_us}@{token}"
        return f"{rules},step:{self.or_step}@{token}" if self.or_step else rules


class End(NamedTuple):
    """The values that two runs of the same program must have in common, bit for bit."""

    files: dict[str, bytes]
    steps: list[bytes]
    metrics: list[dict[str, float]]
    weights: dict[str, bytes]


def plan_of(kind: str, how: str, seed: int) -> list[Kill]:
    """Draw both kills of a run. The second start makes more steps than the second kill waits for.

    Every other second kill is while a checkpoint is written, which has three files at least.
    """
    draw = random.Random(f"{seed} {kind} {how}")
    steps, passes = STEPS.get(kind, STEPS_MOST), PASSES.get(kind, 1)
    first = draw.randint(2, steps - 4)
    second = draw.randint(1, steps - first - 2)
    plan = [Kill("step", one * passes + draw.randrange(passes), draw.randrange(4000)) for one in (first, second)]
    if draw.random() < 0.5:
        plan[1] = Kill("checkpoint_file", draw.randint(1, 3), draw.randrange(1000))
    print(f"{kind} by {how}: {plan}")
    return plan


def dense_plan_of(kind: str, how: str, seed: int) -> list[Kill]:
    """Draw both kills of a run that begins a checkpoint as soon as the one before is committed.

    When the third one is taken, the second is committed, which has a step at least: so both resumes begin from a step.
    The first kill comes at step 20 at the latest. Twelve steps are left then, and the second one comes within eleven.
    """
    draw = random.Random(f"{seed} {kind} {how} dense")
    points, passes = ("capture", "manifest", "publish"), PASSES.get(kind, 1)
    plan = [
        Kill(draw.choice(points), count, draw.randrange(10_000), latest * passes)
        for count, latest in ((draw.randint(3, 6), 20), (draw.randint(1, 3), 11))
    ]
    print(f"{kind} by {how}, dense: {plan}")
    return plan


# Points that every start passes, because it restores a checkpoint and takes one at its end, and how often.
ANEW = {"restore": 1, "capture": 1, "checkpoint_file": 3, "manifest": 1, "publish": 1}


def later_kills(draw: random.Random, points: Sequence[str] = tuple(ANEW)) -> list[Kill]:
    """Return up to two more kills, each at a drawn point of a later start."""
    drawn = [draw.choice(points) for _ in range(draw.randrange(3))]
    return [Kill(point, draw.randint(1, ANEW[point]), draw.randrange(1000)) for point in drawn]


class Program:
    """A program in a folder of its own: `tolariad` with the kind's configuration, or a script."""

    def __init__(self, folder: Path, template: Template, program: str, *arguments: str) -> None:
        folder.mkdir()
        self.folder, self._template = folder, template
        self._program, self._arguments = program, arguments

    def carry_out(self, plan: Sequence[Kill] = ()) -> None:
        """Start it, kill it and start it again, until it has ended by itself. Raises AssertionError with its output."""
        for number, kill in enumerate(plan):
            token = self.folder / f"token{number}"
            token.touch()
            process = self._start(kill.armed(token))
            self._await(process, lambda token=token: not token.exists(), _AT_ONCE_S)
            process.kill()
            assert process.wait(_LIMIT_S) == -signal.SIGKILL, self._said(f"{kill} did not happen")
        process = self._start("")
        self._await(process, lambda: False)
        assert process.poll() == 0, self._said(f"exit {process.poll()}")

    def _start(self, failpoint: str) -> Forked:
        environment = {**os.environ, VARIABLE: failpoint, "XDG_RUNTIME_DIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("ab") as log:
            return self._template.start(
                self._arguments,
                environment=environment,
                folder=self.folder,
                log=log.fileno(),
                shells=1 if self._program == "tolariad" else 0,
                program=self._program,
            )

    def _await(self, process: Forked, happened, moment_s: float = _LOOK_S) -> None:
        """Wait until it has ended, or `happened`."""
        give_up = time.monotonic() + _LIMIT_S
        while process.poll() is None and not happened():
            time.sleep(moment_s)
            if time.monotonic() > give_up:
                process.kill()
                raise AssertionError(self._said("it did not end"))

    def _said(self, what: str) -> str:
        return f"{what}\n{(self.folder / 'log').read_text(errors='replace')[-6000:]}"


class Result(NamedTuple):
    """How a run ended, how many checkpoints it committed, and the steps from which its later starts went on."""

    end: End
    checkpoints: int
    resumed: list[int]


def result_of(folder: Path, run: Path, kills: int) -> Result:
    """Read the journal and the last checkpoint of a run that was killed so many times, and the weights it saved."""
    journal = run / "journal"
    assert verify(journal).verdict is Verdict.CLEAN
    events = events_of(run)
    state = replay_records(RunState(), Reader(journal).records(), strict=True).state
    assert all(event.first_difference is None for event in of(events, m.RerunFinished))
    last = next(event for event in reversed(events) if isinstance(event, m.RunCompleted)).checkpoint
    assert state.trainer.incarnation >= kills + 1, "it was killed, and it went on"
    end = End(
        files=files_of(run / "checkpoints" / last),
        steps=living_line(events, state),
        metrics=living_metrics(events, state),
        weights=saved_in(folder),
    )
    starts = [event.step for event in of(events, m.TrainingStarted)]
    return Result(end, len(of(events, m.CheckpointCommitted)), starts[1:])


def saved_in(folder: Path) -> dict[str, bytes]:
    """Return the tensors that the script saved at its end, by file and name."""
    return {
        f"{path.name}: {name}": value.numpy().tobytes()
        for path in sorted(folder.glob("*.pt"))
        for name, value in torch.load(path, weights_only=True).items()
    }
