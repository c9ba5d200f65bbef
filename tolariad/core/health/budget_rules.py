"""What follows when something took longer than its budget: an event, and if it lasts, conservative mode."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.health import budget_words as budgets
from tolariad.core.health import conservative_words as sv
from tolariad.core.health.budget_slice import SAY, SHOWN_ONLY, HasOverruns, Overruns, in_unit
from tolariad.core.health.budgets import BUDGETS
from tolariad.core.health.conservative_ask import reason_to_enter
from tolariad.core.health.conservative_slice import HasStability
from tolariad.core.inputs import BudgetsTold
from tolariad.core.run.disk_slice import HasDisk
from tolariad.core.steps.slice import HasProgress
from tolariad.core.vocabulary import Event


class Reads(HasProgress, HasStability, HasDisk, HasOverruns, Protocol):
    """The slices that the rules of budgets read."""


def told(state: Reads, given: BudgetsTold, _: At[Reads]) -> Decision | None:
    """Record what the daemon itself measured, unless space is short."""
    event = budgets.BudgetsMeasured(epoch=state.progress.epoch, tallies=given.tallies)
    return Decision((event,)) if state.disk.low is None else None


def exceeded(_: Reads, event: Event, at: At[Reads]) -> Decision | None:
    """Name every budget that the event shows to be exceeded, by the limits that held before it."""
    s, found = at.was.overruns, list[budgets.BudgetExceeded]()
    for name, seconds in SAY[type(event)](s, event):
        value = in_unit(BUDGETS[name], seconds)
        if value > s.limit_of(name):
            found.append(_event(s, name, value, 1))
    return Decision(tuple(found)) if found else None


def exceeded_often(_: Reads, event: budgets.BudgetsMeasured, at: At[Reads]) -> Decision | None:
    """The same for many measurements that are told together."""
    s = at.was.overruns
    over = (one for one in event.tallies if one.breaches > 0 and one.budget in BUDGETS)
    return Decision(
        tuple(_event(s, one.budget, one.worst, one.breaches) for one in over if one.budget not in SHOWN_ONLY)
    )


def _event(s: Overruns, name: str, value: float, times: int) -> budgets.BudgetExceeded:
    return budgets.BudgetExceeded(
        budget=name, value=value, limit=s.limit_of(name), unit=BUDGETS[name].unit, times=times
    )


def make_careful(state: Reads, event: budgets.BudgetExceeded, at: At[Reads]) -> Decision | None:
    """Enter conservative mode if a breaker is open, or if one rollback took longer than its tier may."""
    why = _slow_rollback(state, event) or reason_to_enter(state, at.now.mono)
    return Decision((sv.ConservativeModeEntered(why=why),)) if why and not state.stability.conservative else None


def _slow_rollback(state: Reads, event: budgets.BudgetExceeded) -> str | None:
    """It changes nothing of what was restored."""
    if event.budget not in ("fast_rollback", "full_rollback") or not state.overruns.act:
        return None
    tier = event.budget.removesuffix("_rollback")
    took, limit = f"{event.value:.3g} {event.unit}", f"{event.limit:.3g} {event.unit}"
    return f"a rollback by the {tier} tier took {took}, its budget is {limit}"
