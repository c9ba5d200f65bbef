"""A real daemon prunes a real run: analysed, masked, watched, compacted, and killed in between, to the same bits."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from tests import order_events
from tests.daemon.harness import TIMEOUT_S, of_type
from tests.recorded import events_of, of, sound
from tolariad.cli.tolaria import main
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.forensics.topics import TOPICS
from tolariad.storage.verify import read_manifest

# So many processes of a daemon, its trainer and its analyses, are forks.
FORKS = 8
# Small intervals, and limits that nothing exceeds: what follows a limit is tested in tests/core/pruning.
CONFIG = """
tolaria:
  task: digits
  task_options: {model: cnn}
  torch_threads: 1
  batch_size: 256
  epochs: 100000
  rng_seed: 11
  device: cpu
  checkpoint_interval_epochs: 4
  pruning_phase_transition_epoch: 0
  pruning_checkpoint_interval: 2
  checkpoint: {min_gap_s: 0.5, keep_last: 3, importance_days: 0.00001}
  budgets: {act: false}
  journal: {segment_bytes: 1000000}
  prune:
    enabled: true
    analysis_priority: normal
    min_samples: 100
    min_channels: 4
    last_epoch: 100000
    budgets: [{epoch: 0, share: 0.1}]
    caps: [{epoch: 0, share: 0.2}]
    compact_every: 1
    safety:
      {grace_steps: 2, window_steps: 10, accuracy_drop: 1, gradient_norm: 1000000, speed: 0, memory: 1, failures: 99}
    validation: {accuracy_retention: 0.0, gradient_ratio: 1000000}
"""


def until(run_dir, daemon, kind, what, count=1):
    """Wait until the journal holds so many events of this type, and return them."""
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while time.monotonic() < deadline:
        found = of_type(run_dir, kind)
        if len(found) >= count:
            return found
        assert daemon.process.poll() is None, daemon.stderr
        time.sleep(0.1)
    failed = [one.why for one in of_type(run_dir, m.PruneCycleFailed)]
    raise AssertionError(f"{what} did not come about; failed cycles: {failed}")


def test_a_pruned_run_is_killed_and_goes_on_to_the_same_bits(start, run_dir, tmp_path):
    """Masked after an analysis, killed, watched, compacted, killed again; the run stops with a smaller checkpoint."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    asked = {"config": str(config), "trainer_command": None, "sets": None}

    first = start(shells=FORKS, **asked)
    first.until(lambda status: status["step"] > 0, "a step")
    (masks, *_) = until(run_dir, first, order_events.acted(m.MaskUnits), "masks")
    first.kill()
    second = start(shells=FORKS, **asked)
    (compacted, *_) = until(run_dir, second, order_events.acted(m.CompactModel), "a compaction")
    # The small model is analysed too; the former importance is too old after that.
    until(run_dir, second, m.ImportanceRemoved, "the removal of the first importance")
    shown = second.call("PruneStatus")["pruning"]
    second.kill()
    starts = len(of_type(run_dir, m.TrainerStarted))
    third = start(shells=FORKS, **asked)
    # If the newest checkpoint is of the last step, no step is run again.
    until(run_dir, third, m.TrainerStarted, "a third trainer", starts + 1)
    step = third.status()["step"]
    third.until(lambda status: status["step"] > step, "a step")
    third.call("Stop")
    assert third.wait() == 0

    assert of(sound(run_dir), m.RerunFinished)
    assert masks.order.channels > 0
    assert 0.0 < masks.outcome.accuracy_masked <= 1.0
    assert 0.0 < masks.outcome.accuracy_now <= 1.0
    assert masks.order.total_parameters == compacted.outcome.parameters_before == 10_026
    assert 0 < masks.outcome.pruned_parameters <= 0.1 * 10_026
    # `compact_every` is 1: only the masks of one cycle are removed, and all of their parameters.
    (removed,) = (
        one for one in of_type(run_dir, order_events.acted(m.MaskUnits)) if one.order.cycle == compacted.order.cycle
    )
    assert compacted.outcome.parameters == compacted.outcome.parameters_before - removed.outcome.pruned_parameters
    assert compacted.outcome.difference <= 1e-5
    assert shown["removed"] >= masks.order.channels
    assert shown["share"] == (shown["masked_parameters"] + shown["removed_parameters"]) / 10_026 <= 0.2
    assert of_type(run_dir, m.MaskSetPassed)
    assert not of_type(run_dir, m.MaskSetRejected)
    (stopped,) = of_type(run_dir, m.RunStopped)
    (last,) = [one for one in of_type(run_dir, m.CheckpointCommitted) if one.id == stopped.checkpoint]
    manifest = read_manifest(run_dir / "checkpoints" / last.id, last.manifest)
    assert manifest.compactions >= 1
    assert manifest.pruning_phase == 2
    assert (10_026 - compacted.outcome.parameters) / 10_026 <= manifest.cumulative_pruned_fraction <= 0.2
    assert manifest.importance_ref in {one.importance for one in of_type(run_dir, m.PruneAnalyzed)}
    # The newest importance stays, however old it is.
    *_, newest = of_type(run_dir, m.PruneAnalyzed)
    gone = {one.file for one in of_type(run_dir, m.ImportanceRemoved)}
    assert (run_dir / newest.importance).is_file()
    assert gone.isdisjoint(f"importance/{path.name}" for path in (run_dir / "importance").iterdir())
    assert json.loads(tolaria("prune", "status", str(run_dir), "--json"))["removed"] >= masks.order.channels
    assert "ACTIVE_PRUNING" in tolaria("prune", "status", str(run_dir))
    exported = json.loads(tolaria("export-weights", str(run_dir), "-o", str(tmp_path / "w.safetensors"), "--json"))
    assert exported["compactions"] == manifest.compactions
    assert "compact" in tolaria("why", str(run_dir), "OrderActed:CompactModel")
    # The newest of these, whichever came before the stop.
    ends = TOPICS["prune"][0].split("|")
    newest = [st.event_name(one) for one in events_of(run_dir) if st.event_name(one) in ends][-1]
    assert newest in tolaria("why", str(run_dir), "prune")


FAILING = CONFIG.replace("    enabled: true\n", "    enabled: true\n    analysis_timeout_s: 1\n").replace(
    "failures: 99", "failures: 3"
)


def test_three_failed_analyses_stop_pruning_until_an_operator_enables_it(start, run_dir, tmp_path):
    """No analysis is done in a second. The run trains on; the commands say why nothing is pruned, and end that."""
    config = tmp_path / "config.yaml"
    config.write_text(FAILING)
    # Only the trainer is a fork: an analysis that has to import torch needs more than a second.
    daemon = start(shells=1, config=str(config), trainer_command=None, sets=None)
    daemon.until(lambda status: status["step"] > 0, "a step")
    until(run_dir, daemon, m.PruneBreakerOpened, "an open breaker")
    shown = json.loads(tolaria("prune", "status", str(run_dir), "--json"))
    step = daemon.status()["step"]
    daemon.until(lambda status: status["step"] > step, "a step after it")

    assert (shown["phase"], shown["failures"]) == ("DISABLED", 3)
    assert "tolaria prune enable" in shown["why"]
    assert "failed cycles in a row" in tolaria("why", str(run_dir), "prune")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        tolaria("prune", "analyze", str(run_dir))
    assert "closes the breaker" in refused.value.stderr
    # An analysis that is under way is given up at once. It may fail a moment before.
    for _ in range(20):
        begun = len(of_type(run_dir, m.PruneCycleBegun))
        tolaria("prune", "enable", str(run_dir))
        until(run_dir, daemon, m.PruneCycleBegun, "a cycle", begun + 1)
        daemon.call("PruneDisable")
        if of_type(run_dir, m.PruneCycleCancelled):
            break
    assert of_type(run_dir, m.PruneCycleCancelled)[-1].why == "an operator disabled pruning"
    assert "an operator disabled it" in tolaria("prune", "status", str(run_dir))
    daemon.call("Stop")
    assert daemon.wait() == 0


def tolaria(*arguments):
    """Return what the command prints. Raises CalledProcessError."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as errors, pytest.raises(SystemExit) as ended:
        main(arguments)
    if ended.value.code:
        raise subprocess.CalledProcessError(ended.value.code, arguments, out.getvalue(), errors.getvalue())
    return out.getvalue()
