"""Run a training to its end: under the autopilot, under a peer, or with a detector that only records."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from msgspec import Struct

from benchmarks.detection.faults import AT, Fault
from benchmarks.detection.insured import Insured
from benchmarks.detection.peers import PEERS, Peer, Recording, norm_of
from benchmarks.detection.training import Training
from tolariad.core.calc.detection.autopilot import Policy

AUTOPILOT = "autopilot"
RECORDING = "recording"
# A run that goes back again and again would never end; none may make so many steps.
STEPS_MOST = 4


class Result(Struct, frozen=True):
    """How a run ended. `kept`: the measure of the pinned state, if the run ended with one.

    `found`: steps from the fault to the first return after it; -1 if there was none. `acts`: what a peer did.
    """

    measure: float
    kept: float | None = None
    steps: int = 0
    acts: int = 0
    skips: int = 0
    pins: int = 0
    came_down: int = 0
    changed: int = 0
    compared: int = 0
    tried: int = 0
    backs: int = 0
    gave_up: int = 0
    halted: bool = False
    found: int = -1
    lines: tuple[str, ...] = ()


Make = Callable[[int], Training]


class Begun(Protocol):
    """A run that can be followed until it has made so many steps. `trainings`: all that it may go on with."""

    def follow(self, steps: int, fault: Fault | None) -> None: ...

    def trainings(self) -> list[Training]: ...

    def ended(self, fault: Fault | None) -> Result: ...


class Insuring:
    """A run under the autopilot."""

    def __init__(self, run: Insured) -> None:
        self._run = run

    def trainings(self) -> list[Training]:
        return self._run.trainings()

    def follow(self, steps: int, fault: Fault | None) -> None:
        run = self._run
        while run.at < run.training.steps and run.steps < steps and not run.told.halted:
            if run.begin_step():
                loss, norm = computed(run.training, run.at, run.steps, fault)
                if run.judge(loss, norm):
                    run.training.optimizer.step()
                    run.training.after(run.at)
            if not run.has_moved:
                run.at += 1

    def ended(self, fault: Fault | None) -> Result:
        run = self._run
        self.follow(STEPS_MOST * run.training.steps, fault)
        told, pin = run.told, run.pin
        after = [step - AT for step, _ in told.back if step > AT] if fault is not None else []
        return Result(
            measure=run.training.measure(),
            kept=None if pin is None else pin.training.measure(),
            steps=run.steps,
            skips=told.skips,
            pins=told.pins,
            came_down=told.came_down,
            changed=told.changed,
            compared=told.compared,
            tried=told.tried,
            backs=len(told.back),
            gave_up=told.gave_up,
            halted=told.halted,
            found=after[0] if after else -1,
            lines=tuple(told.lines),
        )


class Looping:
    """A plain loop, or one with a peer."""

    def __init__(self, training: Training, peer: Peer) -> None:
        self._training, self._peer, self._at = training, peer, 0

    def trainings(self) -> list[Training]:
        return [self._training]

    def follow(self, steps: int, fault: Fault | None) -> None:
        training = self._training
        for at in range(self._at, steps):
            loss, norm = computed(training, at, at, fault)
            if self._peer.allows(training, loss, norm):
                training.optimizer.step()
                training.after(at)
        self._at = steps

    def ended(self, fault: Fault | None) -> Result:
        self.follow(self._training.steps, fault)
        return Result(measure=self._training.measure(), steps=self._training.steps, acts=self._peer.acts)


def run(make: Make, how: str, seed: int, fault: Fault | None = None, **settings: Any) -> Result:
    """Return the result of one run. `how`: the autopilot, recording, or a peer's name."""
    begun = begin(make, how, seed, **settings) if fault is None else struck(make, how, seed, fault, **settings)
    return begun.ended(fault)


def begin(make: Make, how: str, seed: int, **settings: Any) -> Begun:
    """Return a run before its first step."""
    training = make(seed)
    if how == AUTOPILOT:
        return Insuring(Insured(training, Policy(epoch_batches=training.epoch, **settings)))
    return Looping(training, Recording() if how == RECORDING else PEERS[how]())


# Runs up to the step at which a fault strikes, with torch's generator: all faults of a training have these steps.
_BEFORE: dict[tuple[Any, ...], tuple[Begun, torch.Tensor]] = {}


def struck(make: Make, how: str, seed: int, fault: Fault, **settings: Any) -> Begun:
    """Return a run at the step at which the fault strikes."""
    key = (make, how, seed, *sorted(settings.items()))
    if key not in _BEFORE:
        begun = begin(make, how, seed, **settings)
        begun.follow(AT, None)
        _BEFORE[key] = (begun, torch.get_rng_state())
    kept, generator = _BEFORE[key]
    begun = copy.deepcopy(kept)
    torch.set_rng_state(generator)
    for one in begun.trainings():
        fault.begin(one)
    return begun


def computed(training: Training, at: int, step: int, fault: Fault | None) -> tuple[float, float]:
    """Return loss and gradient norm of a position, before its update."""
    if fault is not None:
        fault.before(training, step)
    training.before(at)
    loss = training.loss(at)
    training.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if fault is not None:
        fault.before_update(training, step)
    return float(loss.detach()), norm_of(training)


def pinned_threads() -> None:
    """Use one thread: the sums of other thread counts have other bits."""
    torch.set_num_threads(1)
