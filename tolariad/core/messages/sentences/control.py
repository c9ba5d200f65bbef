"""The sentences for orders, notes, and what was refused."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because, counted
from tolariad.core.messages.sentences.givers import Sentences, by, who


def _end_ordered(e: m.EndOrdered) -> str:
    end, former = _end(e.epochs, e.steps), _end(e.former_epochs, e.former_steps)
    words = f"The training ends after {end}{f' instead of {former}' if former != end else ''}"
    words += by(e) if e.actor is None else f", ordered{by(e)}"
    return f"{words} {e.rates.rstrip('.')}." if e.rates else words


def _end(epochs: int | None, steps: int | None) -> str:
    return f"epoch {epochs}" if steps is None else f"step {steps}"


def _ordered_stop(e: m.StopRequested) -> str:
    how = {m.StopMode.GRACEFUL: "A stop", m.StopMode.NOW: "A stop without a checkpoint"}
    return f"{how.get(e.mode, 'An immediate stop')} was ordered{by(e)}"


def _noted(e: m.NoteAdded) -> str:
    return f"Note{f' by {who(e)}' if e.actor is not None else ''}{because(e.text)}"


SENTENCES: Final[Sentences] = {
    m.PauseRequested: "A pause was ordered{by}",
    m.ResumeRequested: "A resume was ordered{by}",
    m.StopRequested: _ordered_stop,
    m.CheckpointRequested: "A checkpoint was ordered{by}",
    m.NoteAdded: _noted,
    m.EndOrdered: _end_ordered,
    m.CommandRefused: "The order {e.command} was refused{why}",
    m.TelemetryDropped: lambda e: f"There was no room for {counted(sum(e.dropped.values()), 'telemetry message')}.",
    m.ReportRefused: "Trainer {e.incarnation} contradicts the journal and is ended{why}",
}
