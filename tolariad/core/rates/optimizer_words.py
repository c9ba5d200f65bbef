"""Optimizers that are rebuilt during a run: prepared separately, then committed or aborted."""

from __future__ import annotations

import msgspec

from tolariad.core.base import Event, Report


class RebuildCounts(msgspec.Struct, frozen=True):
    """Numbers of parameters by what happened to their state.

    `carried`: taken over bit for bit. `transformed`: adapted to a new shape. `reset`: begun again. `added`, `dropped`:
    new or removed parameters. `forgotten`: entries of the state that were left out because their kind is not known.
    """

    carried: int = 0
    transformed: int = 0
    reset: int = 0
    added: int = 0
    dropped: int = 0
    forgotten: int = 0


class OptimizerRebuildPrepared(Event, frozen=True, kw_only=True):
    """The rebuild of an optimizer was prepared and checked. It ends in exactly one of Committed and Aborted."""

    optimizer: str
    counts: RebuildCounts


class OptimizerRebuildCommitted(Event, frozen=True, kw_only=True):
    """The rebuilt optimizer replaced the old one. `elapsed_ms`: since the rebuild began."""

    optimizer: str
    counts: RebuildCounts
    elapsed_ms: float


class OptimizerRebuildAborted(Event, frozen=True, kw_only=True):
    """The rebuild was given up. Optimizer, model and rates are unchanged."""

    optimizer: str
    why: str
    counts: RebuildCounts = RebuildCounts()


class RebuildReport(Report, frozen=True, kw_only=True):
    """A rebuild of the run's own optimizer, as its event."""

    told: OptimizerRebuildPrepared | OptimizerRebuildCommitted | OptimizerRebuildAborted
