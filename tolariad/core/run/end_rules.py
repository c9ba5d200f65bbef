"""An order for another end of the training: when it is refused, and what the learning rates will do.

Promises: an accepted order takes effect. If the trainer reaches the former end meanwhile, its report is ignored and it
goes on. After the last checkpoint is begun, every such order is refused.
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec.structs import replace

from tolariad.core.base import Actor
from tolariad.core.bounds import EPOCH_MAX
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.control import words as cv
from tolariad.core.decision import Accepted, Decision, Refusal
from tolariad.core.learning_rate.group import Group, rate_of
from tolariad.core.learning_rate.schedule import LRPolicy
from tolariad.core.rates.slice import HasRates
from tolariad.core.run.limit_ask import last_epoch, last_step
from tolariad.core.run.limit_slice import HasLimits
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.steps.slice import HasProgress
from tolariad.core.trainer.slice import HasTrainer


class Reads(HasRun, HasProgress, HasCheckpoints, HasLimits, HasRates, HasTrainer, Protocol):
    """The slices that the rule reads."""


# The curves of these policies have as many steps as the run was planned to have.
_BY_LENGTH: Final = (LRPolicy.HOST_COSINE, LRPolicy.LINEAR, LRPolicy.WSD)
_MORE: Final = "`tolariad run --dir RUN --epochs N` with more epochs goes on"


def order(state: Reads, command: cv.Extend, actor: Actor) -> Decision:
    """Accept another end, or refuse it."""
    if (refusal := _refusal(state, command)) is not None:
        return Decision(answer=refusal)
    former = last_step(state)
    event = cv.EndOrdered(
        epochs=command.epochs,
        steps=command.steps,
        former_epochs=last_epoch(state) if former is None else None,
        former_steps=former,
        rates=_rates(state, command),
        id=command.id,
        actor=actor,
    )
    tell = cv.SetEnd(epochs=EPOCH_MAX if command.epochs is None else command.epochs, last_step=command.steps)
    # A trainer that is not built yet gets the new end with its order to train.
    effects = (tell,) if state.trainer.takes_orders else ()
    return Decision((event,), effects, Accepted())


def _refusal(state: Reads, command: cv.Extend) -> Refusal | None:
    phase, progress = state.run.phase, state.progress
    here = f"the run is in epoch {max(1, progress.epoch)}, at step {progress.step}"
    if phase is Phase.COMPLETED:
        why = f"the run is complete: {progress.epoch_finished} epochs, {progress.step} steps; {_MORE}"
        return Refusal(error="WrongPhase", why=why, phase=phase.value)
    if phase is Phase.FAILED:
        return Refusal(error="WrongPhase", why=f"the run has failed: {state.run.why}", phase=phase.value)
    if (command.epochs is None) == (command.steps is None):
        why = "give the last epoch or the last step, and one of them only"
    elif state.checkpoints.is_ending:
        why = f"the training has come to its end, at step {progress.step}; once the run is complete, {_MORE}"
    elif state.limits.is_spent:
        why = "the run ends here: stop.hours or stop.patience is used up, which no other epoch or step changes"
    elif command.epochs is not None and command.epochs <= progress.epoch_finished:
        why = f"the end of epoch {command.epochs} has passed: {here}; `tolaria stop` ends it at the next step"
    elif command.steps is not None and command.steps <= progress.step:
        why = f"step {command.steps} has passed: {here}; `tolaria stop` ends it at the next step"
    else:
        return None
    return Refusal(error="Refused", why=why, phase=phase.value)


# -- what the learning rates will do -------------------------------------------------------------------------------------


def _rates(state: Reads, command: cv.Extend) -> str:
    """Return one or two sentences on the rates; "" if nothing is known of them yet.

    The schedules stay as they were computed (decision 0025), so a re-run of any step has the rates of the journal.
    """
    groups, an_epoch = state.rates.groups, state.progress.steps_per_epoch
    end = command.steps if command.epochs is None else command.epochs * an_epoch
    if not groups or not end:
        return ""
    told = [text for group in groups if (text := _rate(group, end))]
    if not told:
        return "Learning rates do not depend on it."
    return f"Learning rates keep their curves: {'; '.join(told)}. `tolaria lr set` changes them."


def rates_of_plan(state: Reads, total: int) -> str:
    """Return what the rates will do if the run is planned anew, for `total` steps; "" if they do not depend on it."""
    step = state.progress.step
    told = [
        f"{group.name} ({group.policy.value}) {_planned(group, total, step)}"
        for group in state.rates.groups
        if group.policy in _BY_LENGTH and group.schedule.total_steps not in (None, total - group.schedule.start)
    ]
    return f"learning rates are computed anew for {total} steps: {'; '.join(told)}" if told else ""


def _planned(group: Group, total: int, step: int) -> str:
    """Return the rates of the last step and the next one; only the former if the next depends on the configuration."""
    schedule, before = group.schedule, rate_of(group, step)
    is_shortened = schedule.total_steps is not None and 2 * schedule.warmup_steps >= schedule.total_steps
    if group.policy is LRPolicy.WSD or is_shortened:
        return f"was {before:.3g} at step {step}"
    planned = replace(group, schedule=replace(schedule, total_steps=total - schedule.start))
    return f"was {before:.3g} at step {step} and is {rate_of(planned, step + 1):.3g} at the next"


def _rate(group: Group, end: int) -> str:
    """Return the change of one group, if the length of its curve is the run's and differs from `end`."""
    total = group.schedule.total_steps
    if group.policy not in _BY_LENGTH or total is None or group.schedule.start + total == end:
        return ""
    planned = group.schedule.start + total
    if end < planned:
        return f"{group.name} ({group.policy.value}) ends at {rate_of(group, end):.3g} instead of {rate_of(group, planned):.3g}"
    return f"{group.name} ({group.policy.value}) stays at {rate_of(group, end):.3g} after step {planned}"
