"""The strategy's part of a run's status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tolariad.core.strategy import ask

if TYPE_CHECKING:
    from tolariad.core.state import RunState


class StrategyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy: how often it was asked, and without an answer; the newest epoch with an answer, or null.

    `waits_for`: the epoch whose question is open. `fallback`: why the newest question has no answer. `open`: it failed
    so often that it is not asked for a while.
    """

    asked: int
    unanswered: int
    answered_epoch: int | None
    waits_for: int | None
    fallback: str | None
    open: bool


def strategy_status(state: RunState, mono_ns: int) -> StrategyStatus | None:
    """Return the strategy's status; None if the run has none."""
    known, asked = state.strategy, state.boundary.asked
    if not ask.acts(state) and not known.asked_total:
        return None
    return StrategyStatus(
        asked=known.asked_total,
        unanswered=known.unanswered,
        answered_epoch=known.answered_epoch or None,
        waits_for=asked.epoch if asked is not None else None,
        fallback=known.fallback or None,
        open=ask.is_refused(state, mono_ns),
    )
