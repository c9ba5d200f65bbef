"""Log what the console says of events, for programs that read the log: each once, after it is durable."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, cast, get_args

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.messages.sentences.text import sentence

_log: Final = logging.getLogger(__name__)
_SAID: Final = get_args(st.SaidEvent)
_ALSO: Final = (
    m.RunStarted,
    m.RunPaused,
    m.RunResumed,
    m.RunStopped,
    m.RunCompleted,
    m.RunFailed,
    m.NoteAdded,
    m.CheckpointCommitted,
    m.ValidationFinished,
)
_ERRORS: Final = (m.RunFailed, m.RunFrozen, m.RerunDiverged)


def log_events(events: Iterable[tuple[int, m.Event]]) -> None:
    """Log those of a durable turn that a person looks for. Never waits."""
    for seq, event in events:
        if isinstance(event, _ALSO) or st.is_said(event):
            extra = {"told_by": type(event).__name__, "seq": seq}
            _log.log(_level(event), "%s", sentence(event), extra=extra)


def _level(event: m.Event) -> int:
    if isinstance(event, _ERRORS):
        return logging.ERROR
    is_trouble = isinstance(event, _SAID) and st.is_trouble(cast("st.SaidEvent", event))
    return logging.WARNING if is_trouble else logging.INFO
