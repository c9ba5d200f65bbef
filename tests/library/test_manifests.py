"""The manifest of a checkpoint says what the run knew of itself when the checkpoint was ordered."""

from __future__ import annotations

from tests.library.inside import written_at_once
from tests.library.test_detection import poisoned, train
from tests.recorded import events_of
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.state.run_state import RunState, fold
from tolariad.storage.manifest import FILE_NAME, decode_manifest


def test_a_manifest_says_what_the_journal_proves_of_the_run(tmp_path, monkeypatch):
    """Health, and the newest promoted checkpoint: as the events before the order fold. Two steps make one promoted."""
    written_at_once(monkeypatch.setattr)
    train(tmp_path, poisoned(float("nan")), snapshots={"watch_steps": 2})
    state, known = RunState(), {}
    for event in events_of(tmp_path):
        if isinstance(event, m.CheckpointBegun):
            promoted = [one.id for one in state.checkpoints.catalogue if one.promoted]
            known[event.id] = (q.health_status(state), promoted[-1] if promoted else "")
        state = fold(state, (event,))
    said = {}
    for entry in state.checkpoints.catalogue:
        manifest = decode_manifest((tmp_path / "checkpoints" / entry.id / FILE_NAME).read_bytes())
        said[entry.id] = (manifest.health, manifest.promoted_checkpoint_id)

    assert said == known
    assert {health for health, _ in said.values()} >= {m.HealthStatus.UNKNOWN, m.HealthStatus.HEALTHY}
    assert len({promoted for _, promoted in said.values()}) > 1
