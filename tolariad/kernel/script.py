"""The script of a re-run, cut from the journal. It must not know: when one is sent."""

from __future__ import annotations

from pathlib import Path

from journal import Reader
from tolariad.core.rerun import cut_script
from tolariad.core.state import RunState
from tolariad.core.vocabulary import decode_event
from tolariad.core.vocabulary.checkpoints import Script, TrainFrom


def script_for(order: TrainFrom, state: RunState, folder: Path) -> Script:
    """What the journal in `folder` says of the steps after the order's checkpoint."""
    entry = next(
        (one for one in state.checkpoints.catalogue if order.checkpoint and one.id == order.checkpoint.id), None
    )
    with Reader(folder) as reader:
        # Before the first checkpoint there is no step, but an order of a rate may have acted already.
        reader.seek(seq=entry.begun_seq if entry else 1)
        events = (decode_event(record.event) for record in reader)
        return cut_script(events, order.checkpoint, entry.branch if entry else 0, state.rollbacks.lines)
