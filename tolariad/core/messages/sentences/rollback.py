"""The sentences for rollbacks."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because, counted, listed
from tolariad.core.messages.sentences.givers import Sentences, by


def _prepared(e: m.RollbackPrepared) -> str:
    silent = f" No answer from {listed(e.abstained)}." if e.abstained else ""
    return f"Rollback {e.rollback} is prepared: ready are {listed(e.participants)}.{silent}"


def _rolled_back(e: m.RolledBack) -> str:
    to = f"step {e.step} ({e.checkpoint})"
    late = f" These participants had not gone back in time: {listed(e.late)}." if e.late else ""
    if not e.from_step:
        # An older version did not record it, or the run was at its beginning.
        return f"Rolled back to {to}{because(e.why)}{late}"
    abandoned = counted(max(0, e.from_step - e.step), "step")
    return f"Rolled back from step {e.from_step} to {to} and abandoned {abandoned}{because(e.why)}{late}"


def _rollback_ordered(e: m.RollbackRequested) -> str:
    # An older version did not record the place.
    where = f", {_place(e.epoch, e.batch)}" if e.epoch else ""
    given_up = f", and gives up {counted(e.given_up, 'step')}" if e.given_up is not None else ""
    ordered = "." if e.actor is None else f", ordered{by(e)}"
    return f"The run is to go back to {e.checkpoint}: step {e.step}{where}{given_up}{ordered}"


def rollback_answer(e: m.RolledBack) -> str:
    """Return the answer to an order to roll back: what was done, and where the run is now."""
    return f"{_rolled_back(e)} The run is {_place(e.epoch, e.batch)}."


def _place(epoch: int, batch: int) -> str:
    """Return an epoch in words. Before its first batch, training is at the end of the epoch before."""
    if batch:
        return f"in epoch {epoch}"
    return f"at the end of epoch {epoch - 1}" if epoch > 1 else "before the first epoch"


def _backed_off(e: m.RatesBackedOff) -> str:
    return f"The learning rates of {counted(e.groups, 'group')} were multiplied by {e.factor:.6g} after the rollback."


SENTENCES: Final[Sentences] = {
    m.StateCopied: "The state after step {e.step} was copied for {e.id}.",
    m.RollbackRequested: _rollback_ordered,
    m.RollbackBegun: "Rollback {e.rollback} began, from step {e.from_step} to step {e.to_step} ({e.checkpoint}){why}",
    m.RollbackHeard: "Training stopped for rollback {e.rollback}.",
    m.RollbackPrepared: _prepared,
    m.RollbackEscalated: "The rollback goes to an older checkpoint, step {e.to_step} ({e.checkpoint}){why}",
    m.RolledBack: _rolled_back,
    m.RollbackAborted: "Rollback {e.rollback} was given up{why}",
    m.RatesBackedOff: _backed_off,
}
