"""The fast tier in a real run: restore from memory bit for bit, or from disk if the memory has changed."""

from __future__ import annotations

import pytest

from tests.library.inside import ordered, state_of, written_at_once
from tests.library.seeds import hashed_at_once
from tests.library.small import Hooks, bits, data, loaders, made, network
from tests.library.small import train as train_plainly
from tests.recorded import events_of, of
from tolariad.core import messages as m
from tolariad.trainer.rollback.snapshot_slots import Slots

# Of the first epoch: c000001 is the start's.
AT_EPOCHS_END = "c000002"
SNAPSHOTS = {"snapshots": {"every": 2, "watch_steps": 2}, "journal": {"sync": "step"}}


@pytest.fixture(autouse=True)
def in_step(monkeypatch):
    """Snapshots and checkpoints are there at the same steps on a slow machine as on a quick one."""
    hashed_at_once(monkeypatch.setattr)
    written_at_once(monkeypatch.setattr)


class Back:
    """A hook that orders one rollback of the fast tier, when a snapshot after step 9 and `checkpoint` is promoted.

    `to`: its target, else the newest one.
    """

    def __init__(self, tolaria, before=lambda: None, tier=m.Tier.FAST, checkpoint="", to=""):
        self.tolaria, self.before, self.tier, self.checkpoint, self.to = tolaria, before, tier, checkpoint, to
        self.ordered = 0

    def __call__(self, step):
        state = state_of(self.tolaria)
        if step < 10 or self.ordered or not state.snapshots.promoted:
            return
        if self.checkpoint and not self._is_behind(state):
            return
        self.ordered = step
        self.before()
        assert ordered(self.tolaria, m.Rollback(tier=self.tier, to=self.to))

    def _is_behind(self, state):
        newest = state.snapshots.promoted[-1].step
        return any(one.id == self.checkpoint and one.step <= newest for one in state.checkpoints.catalogue)


def gone_back(run_dir, before=lambda: None, checkpoint=""):
    tolaria = made(run_dir, **SNAPSHOTS)
    hook, model = Back(tolaria, before, checkpoint=checkpoint), network()
    assert train_plainly(run_dir, hook, model=model, tolaria=tolaria).phase == "completed"
    assert hook.ordered, "no snapshot was ever promoted"
    return bits(model), events_of(run_dir)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    model = network()
    train_plainly(tmp_path_factory.mktemp("calm") / "run", model=model)
    return bits(model)


def test_rolled_back_to_memory_and_trained_on_a_run_ends_with_the_bits_of_one_that_never_was(tmp_path, calm):
    """No batch is skipped, so a rollback and the steps after it give the same parameters, optimizer, random state and
    data.

    And it was the fast tier, all of it, within ten times its budget.
    """
    found, events = gone_back(tmp_path / "run")
    (begun,), (done,), (prepared,) = (of(events, kind) for kind in (m.RollbackBegun, m.RolledBack, m.RollbackPrepared))

    assert found == calm
    assert (begun.tier, done.checkpoint, done.by_start) == (m.Tier.FAST, begun.checkpoint, False)
    assert begun.checkpoint in {e.id for e in of(events, m.SnapshotPromoted)}
    assert of(events, m.RollbackEscalated) == []
    assert prepared.seconds + done.commit_s + done.confirm_s < 5.0
    again = [e.step for e in of(events, m.StepCompleted) if e.branch == 1]
    assert again[0] == done.step + 1 <= begun.from_step


def test_a_run_of_one_epoch_goes_back_to_a_snapshot_within_it_and_ends_as_one_that_did_not(tmp_path):
    """By seconds: of a clock that nothing depends on but when a snapshot is taken."""
    ended = {}
    for name in ("calm", "back"):
        tolaria = made(tmp_path / name, **{**SNAPSHOTS, "snapshots": {"every": {"seconds": 1e-6}, "watch_steps": 2}})
        hook, model = Back(tolaria) if name == "back" else None, network()
        loader = loaders(data(288))
        assert tolaria.train(model, *loader, 1, task=Hooks(hook)).phase == "completed"
        ended[name] = bits(model)
    events = events_of(tmp_path / "back")
    (begun,), (done,) = of(events, m.RollbackBegun), of(events, m.RolledBack)
    (target,) = [one for one in of(events, m.SnapshotTaken) if one.id == done.checkpoint]

    assert begun.tier is m.Tier.FAST
    assert (target.epoch, target.batch) == (1, target.step)
    assert 0 < target.batch < 24
    assert ended["back"] == ended["calm"]


@pytest.mark.parametrize("tier", list(m.Tier))
def test_the_parts_of_a_rollback_are_recorded_and_make_up_its_phases(tmp_path, tier):
    """Each part took time, none is counted twice, and subsystems without a part took none."""
    tolaria = made(tmp_path / "run", **SNAPSHOTS)
    hook = Back(tolaria, tier=tier)
    train_plainly(tmp_path / "run", hook, model=network(), tolaria=tolaria)
    events = events_of(tmp_path / "run")
    (begun,), (done,), (prepared,) = (of(events, kind) for kind in (m.RollbackBegun, m.RolledBack, m.RollbackPrepared))
    spans = done.spans

    assert begun.tier is tier
    assert min(spans.load, spans.coordination, spans.model, spans.optimizer, spans.rest) > 0.0
    assert spans.load <= prepared.seconds
    # But for the last digit of a sum of floats.
    assert spans.model + spans.optimizer + spans.rest <= done.commit_s + 1e-9
    assert (spans.strategy, spans.seeds) == (0.0, 0.0)


def test_memory_that_changed_is_seen_before_training_goes_on_and_the_disk_is_gone_back_to(tmp_path, calm, monkeypatch):
    """One bit of a tensor is flipped after its digest: CONFIRM finds it, and the full tier restores."""
    seen = []
    copy = Slots.copy
    monkeypatch.setattr(Slots, "copy", lambda self, slot, live: (seen.append(self), copy(self, slot, live))[1])

    def flip():
        slots = seen[-1]
        for slot in range(slots.ring.slots):
            slots.memory(slot)[4096 : 4096 + 512] ^= 1

    found, events = gone_back(tmp_path / "run", flip)
    (begun,), (done,), (escalated,) = (
        of(events, kind) for kind in (m.RollbackBegun, m.RolledBack, m.RollbackEscalated)
    )

    assert found == calm
    assert [e.id for e in of(events, m.SnapshotRejected)] == [begun.checkpoint]
    assert "after it was restored" in of(events, m.SnapshotRejected)[0].why
    assert done.checkpoint == escalated.checkpoint
    assert done.step <= begun.to_step
    assert of(events, m.TrainingStarted)[-1].checkpoint == escalated.checkpoint


def test_where_memory_has_changed_and_the_newest_checkpoint_too_the_next_older_one_is_gone_back_to(
    tmp_path, calm, monkeypatch
):
    """The live state is overwritten by then: a trainer that waited for an abort would wait for ever."""
    seen = []
    copy = Slots.copy
    monkeypatch.setattr(Slots, "copy", lambda self, slot, live: (seen.append(self), copy(self, slot, live))[1])
    run_dir, damaged = tmp_path / "run", []

    def flip():
        slots = seen[-1]
        for slot in range(slots.ring.slots):
            slots.memory(slot)[4096 : 4096 + 512] ^= 1
        damaged.append(run_dir / "checkpoints" / AT_EPOCHS_END)
        (damaged[0] / "manifest.json").write_text("{}")

    found, events = gone_back(run_dir, flip, AT_EPOCHS_END)
    (done,), escalated = of(events, m.RolledBack), of(events, m.RollbackEscalated)

    assert found == calm
    assert [e.checkpoint for e in escalated] == [damaged[0].name, done.checkpoint]
    assert [e.id for e in of(events, m.CheckpointRejected)] == [damaged[0].name]


def test_a_copy_that_is_not_finite_is_no_snapshot(tmp_path, monkeypatch):
    """A rollback to it would be useless."""
    copy = Slots.copy

    def poisoned(self, slot, live):
        copied = copy(self, slot, live)
        copied.tensors["model-00000.safetensors"]["0.weight"].view(-1)[0] = float("inf")
        return copied

    monkeypatch.setattr(Slots, "copy", poisoned)
    tolaria = made(tmp_path / "run", **SNAPSHOTS)
    assert train_plainly(tmp_path / "run", tolaria=tolaria).phase == "completed"
    events = events_of(tmp_path / "run")

    assert of(events, m.SnapshotTaken) == []
    assert all("is not finite" in e.why for e in of(events, m.SnapshotAborted))
    assert of(events, m.SnapshotAborted)
