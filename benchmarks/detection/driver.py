"""Run a training to its end: under the autopilot, under a peer, or with a detector that only records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct

from benchmarks.detection.faults import AT, Fault
from benchmarks.detection.insured import Insured
from benchmarks.detection.peers import PEERS, Recording, norm_of
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


def run(make: Make, how: str, seed: int, fault: Fault | None = None, **settings: Any) -> Result:
    """Return the result of one run. `how`: the autopilot, recording, or a peer's name."""
    training = make(seed)
    if fault is not None:
        fault.begin(training)
    return _insured(training, fault, settings) if how == AUTOPILOT else _with_peer(training, fault, how)


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


def _insured(training: Training, fault: Fault | None, settings: dict[str, Any]) -> Result:
    run = Insured(training, Policy(epoch_batches=training.epoch, **settings))
    most = STEPS_MOST * training.steps
    while run.at < run.training.steps and run.steps < most and not run.told.halted:
        if run.begin_step():
            loss, norm = computed(run.training, run.at, run.steps, fault)
            if run.judge(loss, norm):
                run.training.optimizer.step()
                run.training.after(run.at)
        if not run.has_moved:
            run.at += 1
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


def _with_peer(training: Training, fault: Fault | None, how: str) -> Result:
    peer = Recording() if how == RECORDING else PEERS[how]()
    for at in range(training.steps):
        loss, norm = computed(training, at, at, fault)
        if peer.allows(training, loss, norm):
            training.optimizer.step()
            training.after(at)
    return Result(measure=training.measure(), steps=training.steps, acts=peer.acts)


def pinned_threads() -> None:
    """Use one thread: the sums of other thread counts have other bits."""
    torch.set_num_threads(1)
