"""Whether a report of the trainer is accepted, and the reason that ends its open operations."""

from __future__ import annotations

from typing import TypeAlias

from tolariad.core.control.words import ReportRefused
from tolariad.core.inputs import Opened
from tolariad.core.trainer.slice import HasTrainer
from tolariad.core.trainer.words import DeathReason, TrainerDied, TrainerEnded

# After each of these no trainer lives. After `Opened`, because the trainer of the previous daemon died with it.
TrainerIsGone: TypeAlias = Opened | TrainerDied | TrainerEnded


def why_ended(what: TrainerIsGone) -> str:
    """Return the reason as a clause."""
    if isinstance(what, TrainerEnded):
        return "the trainer was ended"
    is_daemons = isinstance(what, Opened) or what.reason is DeathReason.WITH_DAEMON
    return "the daemon ended" if is_daemons else "the trainer died"


def refused(state: HasTrainer, why: str) -> ReportRefused:
    """Return the event for a report that contradicts the journal. The trainer that sent it is ended."""
    return ReportRefused(incarnation=state.trainer.incarnation, why=why)
