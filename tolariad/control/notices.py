"""The newest actions of a run and its troubles by kind, as parts of its status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tolariad.control.replies import SaidStatus, TroubleStatus
from tolariad.core import state as st
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.calc.text.plain import rfc3339
from tolariad.core.messages.sentences.text import sentence

if TYPE_CHECKING:
    from tolariad.core.state.run_state import RunState


# Topics of `tolaria why` for the kinds of trouble; any other kind is explained by its last event.
_TOPICS: Final = {
    "StepSkipped": "skip",
    "InstabilityDetected": "spike",
    "RolledBack": "rollback",
    "RollbackAborted": "rollback",
    "LrViolationDetected": "violation",
    "ConservativeModeEntered": "conservative",
    "RunFrozen": "freeze",
    "TrainerDied": "death",
    "CheckpointRejected": "rejected",
    "RerunFinished": "rerun",
}


def said_status(state: RunState, run: str) -> tuple[SaidStatus, ...]:
    """Return the newest actions, oldest first. `run`: the run's folder, for the commands in sentences."""
    return tuple(
        SaidStatus(
            number=one.number,
            start=one.start,
            seq=one.seq,
            time=rfc3339(one.event.wall),
            event=st.event_name(one.event),
            text=with_run(sentence(one.event), run),
            step=getattr(one.event, "step", None),
        )
        for one in state.said.latest
    )


def trouble_status(state: RunState, run: str) -> tuple[TroubleStatus, ...]:
    """Return the kinds of trouble in the order in which they occurred last. `run`: the run's folder."""
    found = sorted(state.said.troubles.items(), key=lambda one: one[1].last.seq)
    return tuple(
        TroubleStatus(
            event=name,
            count=kind.count,
            seq=kind.last.seq,
            time=rfc3339(kind.last.event.wall),
            text=with_run(sentence(kind.last.event), run),
            why=_TOPICS.get(name, f"seq:{kind.last.seq}"),
        )
        for name, kind in found
    )
