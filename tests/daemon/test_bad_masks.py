"""Masks that ruin a real run: a real daemon and trainer undo them within 30 s, and the run trains on."""

from __future__ import annotations

from tests import order_events
from tests.daemon.harness import of_type
from tests.daemon.test_pruning import CONFIG, FORKS, until
from tests.recorded import sound
from tolariad.core import messages as m
from tolariad.storage.verify import read_manifest

# Validation lets everything pass, with doubts: so two of five channels are masked at once. The limits of the safety
# window are the sources'.
RUINOUS = (
    CONFIG.replace("min_samples: 100", "min_samples: 100\n    estimator: magnitude")
    .replace("min_channels: 4", "min_channels: 1\n    min_layer_share: 0.1\n    max_layer_share_per_cycle: 0.9")
    .replace("budgets: [{epoch: 0, share: 0.1}]", "budgets: [{epoch: 0, share: 0.8}]\n    absolute_cap: 0.9")
    .replace("caps: [{epoch: 0, share: 0.2}]", "caps: [{epoch: 0, share: 0.8}]")
    .replace("accuracy_drop: 1, gradient_norm: 1000000,", "accuracy_drop: 0.02, gradient_norm: 5,")
    .replace("gradient_ratio: 1000000", "gradient_ratio: 1000000, layer_share: 1.0")
    .replace("compact_every: 1", "compact_every: 0")
)
LIMIT_S = 30.0


def test_a_forced_bad_mask_is_undone_within_thirty_seconds(start, run_dir, tmp_path):
    """From the moment that the masks act: rejected, back at the checkpoint before them, and training without masks."""
    config = tmp_path / "config.yaml"
    config.write_text(RUINOUS)
    daemon = start(shells=FORKS, config=str(config), trainer_command=None, sets=None)
    daemon.until(lambda status: status["step"] > 0, "a step")
    daemon.call("PruneDisable")
    daemon.until(lambda status: status["step"] > 150, "a network that has learnt")
    # So that it does not learn to do without the units before the next validation.
    group = of_type(run_dir, m.LrGroupsRegistered)[0].groups[0]
    daemon.call("LrSet", group=group.name, value=group.schedule.base_lr / 10)
    daemon.call("PruneEnable")
    (back, *_) = until(run_dir, daemon, m.RolledBack, "the rollback")
    shown = daemon.call("PruneStatus")["pruning"]
    daemon.until(lambda status: status["step"] > back.step, "a step after it")
    daemon.call("Stop")
    assert daemon.wait() == 0
    (rejected, *_) = of_type(run_dir, m.MaskSetRejected)
    (applied,) = [one for one in of_type(run_dir, order_events.acted(m.MaskUnits)) if one.order.cycle == rejected.cycle]
    (begun, *_) = of_type(run_dir, m.RollbackBegun)
    seconds = (back.mono - applied.mono) / 1e9
    print(f"{applied.order.channels} of {applied.order.total} channels: {rejected.why}; undone after {seconds:.2f} s")

    assert (
        0.3 * applied.order.total_parameters
        <= applied.outcome.pruned_parameters
        <= 0.8 * applied.order.total_parameters
    )
    assert rejected.action is m.WindowAction.ROLLBACK
    assert (back.checkpoint, begun.checkpoint) == (applied.outcome.pinned, applied.outcome.pinned)
    assert back.step < applied.applied_before_step
    assert seconds < LIMIT_S
    assert (shown["masked"], shown["rejected"]) == (0, 1)
    assert of_type(run_dir, m.QuarantineAdded) == []
    sound(run_dir)
    # The newest checkpoint has no masks.
    held = [one for one in of_type(run_dir, m.CheckpointCommitted) if one.step > back.step]
    manifest = read_manifest(run_dir / "checkpoints" / held[-1].id, held[-1].manifest)
    assert manifest.mask_ref is None
    assert manifest.cumulative_pruned_fraction == 0.0
