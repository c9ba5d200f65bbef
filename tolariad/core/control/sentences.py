"""The sentences for orders, notes, and what was refused."""

from __future__ import annotations

from typing import Final

from tolariad.core.control import words as cv
from tolariad.core.run import words as run
from tolariad.core.text.giver_sentences import Sentences, by, who
from tolariad.core.text.phrases import because, counted


def _end_ordered(e: cv.EndOrdered) -> str:
    end, former = _end(e.epochs, e.steps), _end(e.former_epochs, e.former_steps)
    words = f"The training ends after {end}{f' instead of {former}' if former != end else ''}"
    words += by(e) if e.actor is None else f", ordered{by(e)}"
    return f"{words} {e.rates.rstrip('.')}." if e.rates else words


def _end(epochs: int | None, steps: int | None) -> str:
    return f"epoch {epochs}" if steps is None else f"step {steps}"


def _ordered_stop(e: cv.StopRequested) -> str:
    how = {run.StopMode.GRACEFUL: "A stop", run.StopMode.NOW: "A stop without a checkpoint"}
    return f"{how.get(e.mode, 'An immediate stop')} was ordered{by(e)}"


def _noted(e: cv.NoteAdded) -> str:
    return f"Note{f' by {who(e)}' if e.actor is not None else ''}{because(e.text)}"


SENTENCES: Final[Sentences] = {
    cv.PauseRequested: "A pause was ordered{by}",
    cv.ResumeRequested: "A resume was ordered{by}",
    cv.StopRequested: _ordered_stop,
    cv.CheckpointRequested: "A checkpoint was ordered{by}",
    cv.NoteAdded: _noted,
    cv.EndOrdered: _end_ordered,
    cv.CommandRefused: "The order {e.command} was refused{why}",
    cv.TelemetryDropped: lambda e: f"There was no room for {counted(sum(e.dropped.values()), 'telemetry message')}.",
    cv.ReportRefused: "Trainer {e.incarnation} contradicts the journal and is ended{why}",
}
