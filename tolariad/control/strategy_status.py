"""The strategy's part of a run's status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.control.replies import StrategyStatus
from tolariad.core import queries as q

if TYPE_CHECKING:
    from tolariad.core.state.run_state import RunState


def strategy_status(state: RunState, mono_ns: int) -> StrategyStatus | None:
    """Return the strategy's status; None if the run has none."""
    known, asked = state.strategy, state.boundary.asked
    if not q.strategy_acts(state) and not known.asked_total:
        return None
    return StrategyStatus(
        asked=known.asked_total,
        unanswered=known.unanswered,
        answered_epoch=known.answered_epoch or None,
        waits_for=asked.epoch if asked is not None else None,
        fallback=known.fallback or None,
        open=q.strategy_is_refused(state, mono_ns),
    )
