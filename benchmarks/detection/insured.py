"""The autopilot in a plain loop: its machine (`tolariad.core.calc.detection.autopilot`), and what carries out its acts.

A kept state is a deep copy of the training with torch's generator, the detector and the position. The run keeps one
every `EVERY` positions, as the product keeps snapshots, and pins one of them when the machine asks for it. A position
is a batch of the only epoch that the machine knows.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass, field

import torch

from benchmarks.detection.training import Training
from tolariad.core.calc.detection import autopilot as ap
from tolariad.core.calc.detection.announced import announced
from tolariad.core.calc.detection.carried import loud, with_loud
from tolariad.core.calc.detection.comparison import Comparison, Losses, lost
from tolariad.core.calc.detection.detector import Detector, DetectorState
from tolariad.core.calc.detection.envelope import Scale, exp
from tolariad.core.calc.detection.rules import Action, Finding, Verdict, is_watched

EVERY = 50
KEPT = 12
# From the end of a watch to the comparison, as in the product.
AHEAD = 16


@dataclass
class Kept:
    """One kept state. `at`: batches that were passed."""

    at: int
    training: Training
    generator: torch.Tensor
    detector: DetectorState

    @classmethod
    def of(cls, at: int, training: Training, detector: Detector) -> Kept:
        return cls(at, copy.deepcopy(training), torch.get_rng_state(), copy.deepcopy(detector.state()))


@dataclass
class Told:
    """What the autopilot did. `back`: (count of steps so far, position) of every return."""

    skips: int = 0
    pins: int = 0
    came_down: int = 0
    changed: int = 0
    compared: int = 0
    tried: int = 0
    back: list[tuple[int, int]] = field(default_factory=list)
    gave_up: int = 0
    halted: bool = False
    lines: list[str] = field(default_factory=list)


class Insured:
    """One run under the autopilot. `training`, `at`: where it is; a return changes both."""

    def __init__(self, training: Training, policy: ap.Policy) -> None:
        self.training, self.at = training, 0
        self.told = Told()
        self.steps = 0
        self.quarantined: set[int] = set()
        self.pin: Kept | None = None
        self._policy = policy
        self._machine = ap.Autopilot()
        self._detector = Detector()
        self._kept: deque[Kept] = deque(maxlen=KEPT)
        self._went_on: Kept | None = None
        self._has_moved = False
        # The position after which the states are compared; None: no comparison is due.
        self._due: int | None = None

    @property
    def _batch(self) -> tuple[int, int]:
        return 1, self.at

    def trainings(self) -> list[Training]:
        """Return the training and its kept states."""
        kept = [*self._kept, *(one for one in (self.pin, self._went_on) if one is not None)]
        return [self.training, *(one.training for one in kept)]

    def begin_step(self) -> bool:
        """Keep a state now and then. Return False if this position is in quarantine."""
        self._has_moved = False
        if self.at % EVERY == 0 and not (self._kept and self._kept[-1].at == self.at):
            self._kept.append(Kept.of(self.at, self.training, self._detector))
        if self.at in self.quarantined:
            self._compare_if_due()
            return False
        return True

    def judge(self, loss: float, norm: float) -> bool:
        """Return whether the update is made. False as well if the run went back or elsewhere: nothing is updated."""
        self.steps += 1
        self._has_moved = False
        rate = float(self.training.optimizer.param_groups[0]["lr"])
        verdict = self._detector.judge(loss, norm, rate)
        if verdict is not None and is_watched(verdict):
            began = self._detector.began
            at = ap.Found(step=self.at, batch=self._batch, first=(1, max(0, self.at - began - 1)), began=began)
            self._do(*ap.found(self._machine, verdict, at, self._policy), verdict)
        if not self._has_moved:
            self._do(*ap.stepped(self._machine, self._batch, loss))
        if not self._has_moved:
            self._compare_if_due()
        if self._has_moved:
            return False
        # A loss that exploded is as high as a spike, and its update is not made either.
        is_skipped = verdict is not None and (
            verdict.action is Action.SKIP or verdict.finding is Finding.EXPLOSION or not math.isfinite(verdict.value)
        )
        self.told.skips += is_skipped
        return not is_skipped

    @property
    def has_moved(self) -> bool:
        return self._has_moved

    def _compare_if_due(self) -> None:
        if self._due is None or self.at < self._due:
            return
        self._due = None
        if self._machine.trial is not None:
            held = self.training.held()
            self._say(f"branches {held:.4g} {self._machine.trial.held}")
            self._do(*ap.branches_compared(self._machine, held))
            return
        self.told.compared += 1
        measured = self._measured()
        self._say(f"compared {_shown(measured)}")
        self._do(*ap.compared(self._machine, measured, self._batch, self._policy))

    # -- acts ----------------------------------------------------------------------------------------------------------

    def _do(self, machine: ap.Autopilot, acts: tuple[ap.Act, ...], verdict: Verdict | None = None) -> None:
        self._machine = machine
        for act in acts:
            self._one(act, verdict)

    def _say(self, line: str) -> None:
        self.told.lines.append(f"{self.at}: {line}")

    def _one(self, act: ap.Act, verdict: Verdict | None) -> None:
        match act:
            case ap.PinState(step):
                self._pin(step, verdict)
            case ap.Release(why, anew):
                self._release(why, anew=anew)
            case ap.Compare():
                self._due = self.at + AHEAD + ap.COMPARED
            case ap.GoBack():
                self._go_back(act)
            case ap.TryBoth():
                self.told.tried += 1
                self._went_on = Kept.of(self.at, self.training, self._detector)
                self._due = self.at
                self._do(*ap.kept(self._machine, self._batch, self._policy))
            case ap.Choose(future):
                if future is ap.Future.WENT_ON and self._went_on is not None:
                    self._restore(self._went_on, announced(self._went_on.detector))
                    self._kept.clear()
                    self.pin = None
                self._went_on = None
                self._say(f"chose {future.value}")
            case ap.GoOn(why):
                self.told.gave_up += 1
                self._say(f"goes on: {why}")
            case ap.Halt(why):
                self.told.halted = True
                self._say(f"halts: {why}")

    def _pin(self, step: int, verdict: Verdict | None) -> None:
        if self.pin is None:
            older = [one for one in self._kept if one.at <= step]
            self.pin = older[-1] if older else self._kept[0]
            self.told.pins += 1
        found = "" if verdict is None else f" {verdict.finding.value} {verdict.value:.3g} of {verdict.baseline:.3g}"
        self._say(f"pin {self.pin.at}{found}")

    def _release(self, why: str, *, anew: bool) -> None:
        self.pin = None
        self.told.came_down += "itself" in why
        self.told.changed += "sound" in why
        if anew:
            self._detector = Detector(announced(self._detector.state()))
        self._say(f"released: {why}")

    def _go_back(self, act: ap.GoBack) -> None:
        # A value that is not finite is gone back for at once: then the newest state from before it is the target.
        older = [one for one in self._kept if one.at <= act.first[1] - ap.MARGIN]
        target = self.pin or (older[-1] if older else self._kept[0])
        self.told.back.append((self.steps, self.at))
        first = act.first[1]
        self.quarantined |= set(range(first, first + act.batches))
        self._say(f"back to {target.at}, {act.batches} batches from {first}: {act.why}")
        state = with_loud(target.detector, loud(self._detector.state())) if act.keeps_loud else target.detector
        if self._machine.trial is None:
            self._due = None
        self._restore(target, state)
        while self._kept and self._kept[-1].at > target.at:
            self._kept.pop()

    def _restore(self, kept: Kept, detector: DetectorState) -> None:
        self.training, self.at = copy.deepcopy(kept.training), kept.at
        torch.set_rng_state(kept.generator)
        self._detector = Detector(copy.deepcopy(detector))
        self._has_moved = True

    # -- comparisons ---------------------------------------------------------------------------------------------------

    def _measured(self) -> Comparison:
        assert self.pin is not None
        course = self._detector.state().course
        begin = exp(self.pin.detector.course.begin) if self.pin.detector.course.losses.count else exp(course.begin)
        newest = [at for at in range(self.at - ap.COMPARED + 1, self.at + 1) if at not in self.quarantined]
        state = torch.get_rng_state()
        now, pinned = (self.training.with_model(model) for model in (self.training.model, self.pin.training.model))
        means = []
        for one in (now, pinned):
            with torch.no_grad():
                torch.manual_seed(self.at)
                means.append(sum(float(one.loss(at)) for at in newest) / len(newest))
        held = Losses(now.held(), pinned.held())
        torch.set_rng_state(state)
        losses = self.pin.detector.course.losses
        usual = exp(losses.level) if losses.scale is Scale.LOG and losses.count else 0.0
        return Comparison(Losses(*means), held, begin, usual)


def _shown(found: Comparison) -> str:
    newest, held = lost(found.newest, found.begin), lost(found.held, found.begin)
    return f"newest {newest:.2f} {found.newest}, held {held:.2f} {found.held}, begin {found.begin:.3g}"
