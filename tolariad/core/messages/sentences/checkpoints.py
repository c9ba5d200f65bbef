"""The sentences for checkpoints, the storage quota, and re-runs."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import counted, listed, size
from tolariad.core.messages.sentences.givers import Sentences

_BEGUN: Final = {
    m.CheckpointReason.START: "the run begins",
    m.CheckpointReason.EPOCH: "an epoch ended",
    m.CheckpointReason.INTERVAL: "its interval has passed",
    m.CheckpointReason.ORDERED: "somebody ordered it",
    m.CheckpointReason.STOP: "the run stops",
    m.CheckpointReason.END: "the training ended",
    m.CheckpointReason.BEST: "the epoch is the best so far",
    m.CheckpointReason.PIN: "it is kept as a way back",
}


def _committed(e: m.CheckpointCommitted) -> str:
    best = " It ends the best epoch so far." if e.best else ""
    return f"Checkpoint {e.id} of step {e.step} is on disk: {size(e.size)} in {e.seconds:.2g} s.{best}"


def _training(e: m.TrainingStarted) -> str:
    origin = f", from {e.checkpoint}" if e.checkpoint else ""
    return f"Trainer {e.incarnation} is ready to train after step {e.step}{origin}."


def _rerun(e: m.RerunFinished) -> str:
    if e.last < e.first:
        return f"No step had to be run again, only batches that were skipped ({e.skipped})."
    steps, first = e.compared + e.skipped, e.first_difference
    again = counted(steps, "re-run step")
    if first is None:
        return f"Re-run finished: {steps} of {again} {'equals' if steps == 1 else 'equal'} the journal, bit for bit."
    differing = min(first.count, steps) if steps else first.count
    verb = "differs" if differing == 1 else "differ"
    expected = f", as expected ({e.expected})" if e.expected else ""
    return f"Re-run finished: {differing} of {again} {verb} from the journal{expected}: {_differs(first)}."


def _differs(found: m.Difference) -> str:
    """Return which value differs first, before and after, as decimal numbers."""
    if found.field == "data":
        return f"step {found.step}: other data (the digest of its batches was {found.expected} and is {found.found})"
    was, now = _values(found.expected, found.found)
    return f"{_VALUES.get(found.field, found.field)} of step {found.step} was {was} and is {now}"


def _diverged(e: m.RerunDiverged) -> str:
    code = f" since {listed(e.code)} changed" if e.code else ""
    return f"The re-run differs from the journal{code}, and the run stops: {_differs(e.difference)}."


def _values(was: str, found: str) -> tuple[str, str]:
    """Return both values with as many digits as it takes to tell them apart. Older journals have hexadecimal floats."""
    try:
        a, b = float.fromhex(was), float.fromhex(found)
    except (ValueError, OverflowError):
        return was, found  # words, such as those of a skipped batch
    if "0x" not in f"{was}{found}":
        return was, found
    short = f"{a:.6g}", f"{b:.6g}"
    return short if short[0] != short[1] else (repr(a), repr(b))


_VALUES: Final = {"loss": "the loss", "grad_norm": "the gradient norm", "lr": "the learning rate", "rates": "the rates"}

SENTENCES: Final[Sentences] = {
    m.CheckpointBegun: lambda e: f"Checkpoint {e.id} was begun: {_BEGUN[e.reason]}.",
    m.CheckpointCommitted: _committed,
    m.CheckpointPromoted: "Enough healthy steps followed checkpoint {e.id}: the run may go back to it by itself.",
    m.CheckpointAborted: "Checkpoint {e.id} was not made{why}",
    m.CheckpointRejected: "Checkpoint {e.id} is damaged, in {e.file}{why} The next older one is tried.",
    m.CheckpointUnfit: "Checkpoint {e.id} does not fit the model{why}",
    m.CheckpointDeletionBegun: "Checkpoint {e.id} is being removed{why}",
    m.CheckpointDeleted: lambda e: f"Checkpoint {e.id} was removed, which freed {size(e.freed)}.",
    m.CheckpointDeletionAborted: "Checkpoint {e.id} could not be removed{why}",
    m.StorageExhausted: lambda e: f"Checkpoints that must stay take {size(e.used)}; the quota is {size(e.quota)}.",
    m.StorageRelieved: lambda e: f"The checkpoints fit into the quota of {size(e.quota)} again.",
    m.TrainingStarted: _training,
    m.RerunBegun: "Steps {e.first} to {e.last} are being run again from {e.checkpoint}.",
    m.RerunFinished: _rerun,
    m.RerunAborted: "The re-run did not reach its end{why}",
    m.RerunDiverged: _diverged,
}
