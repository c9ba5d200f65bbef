"""Optimizers that are rebuilt while a run goes on: prepared aside, then committed or aborted.

It must not know: tensors, optimizers' classes.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tolariad.core.base import Event, Message


class RebuildCounts(msgspec.Struct, frozen=True):
    """Parameters by what became of their state: taken over bit for bit, carried along a change of shape, begun afresh in
    an old place, new, gone. `forgotten` counts entries of a state that are of no known kind and were left behind.
    """

    carried: int = 0
    transformed: int = 0
    reset: int = 0
    added: int = 0
    dropped: int = 0
    forgotten: int = 0


class OptimizerRebuildPrepared(Event, frozen=True, kw_only=True):
    """A rebuild was prepared aside and checked; it ends in exactly one of Committed and Aborted."""

    EMITTED_BY: ClassVar[str] = "trainer"

    optimizer: str
    counts: RebuildCounts


class OptimizerRebuildCommitted(Event, frozen=True, kw_only=True):
    """The rebuild has taken the old optimizer's place. `elapsed_ms` from its beginning."""

    EMITTED_BY: ClassVar[str] = "trainer"

    optimizer: str
    counts: RebuildCounts
    elapsed_ms: float


class OptimizerRebuildAborted(Event, frozen=True, kw_only=True):
    """The rebuild came to nothing: optimizer, model and rates are what they were."""

    EMITTED_BY: ClassVar[str] = "trainer"

    optimizer: str
    why: str
    counts: RebuildCounts = RebuildCounts()


class RebuildReport(Message, frozen=True, kw_only=True):
    """A rebuild of the run's own optimizer, as its event."""

    told: OptimizerRebuildPrepared | OptimizerRebuildCommitted | OptimizerRebuildAborted


EVENTS = (OptimizerRebuildPrepared, OptimizerRebuildCommitted, OptimizerRebuildAborted)
