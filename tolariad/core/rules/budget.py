"""The rules of budgets: an overrun is an event, and if it persists, conservative mode."""

from __future__ import annotations

from typing import Protocol

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(st.HasProgress, st.HasHealth, st.HasRun, st.HasTrainer, st.HasRollbacks, st.HasSnapshots, Protocol):
    """The slices that the rules of budgets read."""


def reported(state: Reads, given: m.BudgetsReported | m.BudgetsReport, _: At[Reads]) -> Decision | None:
    """Record what the daemon measured, or what a trainer that ends had not reported yet, unless space is short."""
    event = m.BudgetsMeasured(epoch=state.progress.epoch, tallies=given.tallies)
    return Decision((event,)) if state.disk.low is None else None


def exceeded(_: Reads, event: m.Event, at: At[Reads]) -> Decision | None:
    """Record every budget that the event shows to be exceeded, by the limits that held before it."""
    s, found = at.was.overruns, list[m.BudgetExceeded]()
    for name, value in st.measured(s, event):
        if value > s.limit_of(name):
            found.append(_event(s, name, value, 1))
    return Decision(tuple(found)) if found else None


def exceeded_often(_: Reads, event: m.BudgetsMeasured, at: At[Reads]) -> Decision | None:
    """Record every budget that was exceeded in a batch of measurements."""
    s = at.was.overruns
    acting = (one for one in event.tallies if one.budget in BUDGETS and one.budget not in st.SHOWN_ONLY)
    over = ((one, s.breaches(one)) for one in acting)
    return Decision(tuple(_event(s, one.budget, one.worst, times) for one, times in over if times > 0))


def _event(s: st.BudgetState, name: str, value: float, times: int) -> m.BudgetExceeded:
    return m.BudgetExceeded(budget=name, value=value, limit=s.limit_of(name), unit=BUDGETS[name].unit, times=times)


def enter_conservative(state: Reads, event: m.BudgetExceeded, at: At[Reads]) -> Decision:
    """Enter conservative mode if a breaker is open, or if a rollback took longer than its tier's budget."""
    return Decision(
        q.conservative_mode_entered(state, _slow_rollback(state, event) or q.reason_for_mode(state, at.now.mono))
    )


def _slow_rollback(state: Reads, event: m.BudgetExceeded) -> str | None:
    """Return the reason if a rollback was slow, else None. The state that it restored is still correct."""
    if event.budget not in ("fast_rollback", "full_rollback") or not state.overruns.act:
        return None
    tier = event.budget.removesuffix("_rollback")
    took, limit = f"{event.value:.3g} {event.unit}", f"{event.limit:.3g} {event.unit}"
    return f"a rollback by the {tier} tier took {took}, its budget is {limit}"


def judge_memory(state: Reads, event: m.BudgetsMeasured, _: At[Reads]) -> Decision | None:
    """A share of memory is exceeded, or all are kept again; shares are measured together, at an epoch's end."""
    s, shares = state.overruns, [one for one in event.tallies if one.budget in st.MEMORY]
    if not shares:
        return None
    over = next((one for one in shares if one.breaches > 0), None)
    if over is None:
        return Decision((m.MemoryRelieved(),)) if s.memory is not None else None
    # A rollback may be reading a snapshot: the next epoch's end finds the same shares.
    if s.memory is not None or not s.act or state.rollbacks.open is not None:
        return None
    pressed = m.MemoryPressed(
        budget=over.budget, percent=over.worst, limit=s.limit_of(over.budget), snapshots=state.snapshots.surplus
    )
    return Decision((pressed,))


def tell_pressure(state: Reads, event: m.MemoryPressed | m.MemoryRelieved, _: At[Reads]) -> Decision | None:
    """Tell a trainer that is built. Any other gets it with its order to train."""
    if not state.trainer.takes_orders:
        return None
    return Decision((), (_order(state, pressed=isinstance(event, m.MemoryPressed)),))


def _order(state: Reads, *, pressed: bool) -> m.SetMemoryPressure:
    return m.SetMemoryPressure(pressed=pressed, slots=state.snapshots.narrow if pressed else ())


def tell_pressure_again(state: Reads, _: m.ExecutionContextRecorded, __: At[Reads]) -> Decision | None:
    """A new trainer keeps memory for later unless it is told not to."""
    return Decision((), (_order(state, pressed=True),)) if state.overruns.memory is not None else None
