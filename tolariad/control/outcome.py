"""How an order ended, found among events by the table of orders.

Promises: an order whose event is durable has one outcome. It is found in the live events or, for a repeated id, in the
journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tolariad.control.replies import Outcome, RollbackPlace
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.messages.vocabulary import Unknown
from tolariad.core.rules.table.orders import ORDERS

# This order asks for the halt. At a lower level the run halts only if no target is left.
_CRITICAL: Final = ORDERS[m.RaiseEmergency]._replace(
    done=(m.EmergencyRaised, m.RunFrozen), failed=(), overtaken_by=(m.RunCompleted, m.RunFailed, m.RunStopped)
)
_LEADS_ON: Final = (m.Follows.ROLLBACK, m.Follows.HALT)


def outcome_of(command: m.Command, order_seq: int, events: Iterable[tuple[int, m.Event | Unknown]]) -> Outcome | None:
    """Return the outcome of the order recorded as `order_seq`, from later events in order; None if it has not ended."""
    is_critical = isinstance(command, m.RaiseEmergency) and command.level is m.Level.CRITICAL
    ends = _CRITICAL if is_critical else ORDERS[type(command)]
    for seq, event in events:
        if seq < order_seq or isinstance(event, Unknown) or _leads_on(event):
            continue
        own = order_seq in (event.root, seq)
        name = st.event_name(event)
        if (own and isinstance(event, ends.done)) or isinstance(event, ends.done_by_any):
            step, why = getattr(event, "applied_before_step", None), ends.told(event) or None
            place = _place(event) if isinstance(event, m.RolledBack) else None
            return Outcome(state="done", seq=seq, event=name, step=step, why=why, rollback=place)
        if own and isinstance(event, ends.failed):
            return Outcome(state="failed", seq=seq, event=name, why=getattr(event, "why", None))
        if seq > order_seq and isinstance(event, ends.overtaken_by):
            return Outcome(state="overtaken", seq=seq, event=name, why=getattr(event, "why", None))
    return None


def _place(event: m.RolledBack) -> RollbackPlace:
    given_up = max(0, event.from_step - event.step)
    return RollbackPlace(
        checkpoint=event.checkpoint, step=event.step, epoch=event.epoch, batch=event.batch, given_up=given_up
    )


def _leads_on(event: m.Event) -> bool:
    return isinstance(event, m.EmergencyRaised) and event.follows in _LEADS_ON


def ended_with_daemon(command: m.Command) -> Outcome:
    """Return the outcome if the daemon ends before the order does. For a stop, that is the success."""
    if isinstance(command, m.Stop):
        return Outcome(state="done")
    return Outcome(state="ended", why="the run's process ended first; the order is in the journal")
