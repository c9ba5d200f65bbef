"""The state of a library run while it trains, and orders to it: they go the way of `Tolaria.rollback`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from journal import Reader
from tolariad.core.decision import Accepted
from tolariad.core.messages.vocabulary import AnyCommand
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState
from tolariad.forensics.moment import state_at
from tolariad.library.tolaria import Tolaria
from tolariad.trainer.checkpoints.save import Saver

# The last state of a run: a hook asks after each step, and the whole journal would be folded each time.
_states: dict[Path, RunState] = {}


def state_of(tolaria: Tolaria) -> RunState:
    """Return the durable state of the run that trains."""
    folder = tolaria.run_dir
    with Reader(folder / "journal") as reader:
        before = _states.get(folder)
        if before is None or before.seq > reader.last_seq:
            state = state_at(reader).state
        else:
            state = replay_records(before, reader.records(after_seq=before.seq)).state
    _states.clear()
    _states[folder] = state
    return state


def pid_of(tolaria: Tolaria) -> int:
    """Return the process of the recorder of the run that trains."""
    assert tolaria._live is not None
    return tolaria._live._recorder._process.pid


def ordered(tolaria: Tolaria, command: AnyCommand) -> bool:
    """Order something, as `Tolaria.rollback` does. Return whether it was accepted."""
    assert tolaria._live is not None
    return isinstance(tolaria._live._recorder.order(command), Accepted)


def written_at_once(put: Callable[..., None] = setattr) -> None:
    """Let training wait until a checkpoint is written: it is recorded after the next step, whatever the load.

    A checkpoint is reported at a boundary, so a hook cannot wait for it. `put` is how the method is replaced, such as
    `monkeypatch.setattr`.
    """
    capture = Saver.capture

    def captured(self, *given):
        report = capture(self, *given)
        if self._job is not None:
            self._job.thread.join()
        return report

    put(Saver, "capture", captured)
