"""Pairs of runs that differ by `prune.enabled` alone: the digits CNN to epoch 120, by the default schedule.

Each run is a daemon's. Seed, split and first weights of a pair are the same, and so is every bit before the first masks
(`same_until`). The accuracy is that on digits that neither run has seen.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from journal import Reader
from tests import order_events
from tests.campaign.forks import Template
from tests.house.tree import ROOT
from tests.recorded import events_of, of
from tests.study.folded import network, parts
from tests.study.study import difference
from tolariad.core import messages as m
from tolariad.core.calc.pruning.verdict import PruningDecision, WindowAction
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState
from tolariad.trainer.checkpoints.restore import load

EPOCHS = 120
BATCH = 16
TASK = f"{ROOT / 'tests' / 'study' / 'folded.py'}:Folded"
# More than the analyses of a run: each is a fork, which has torch imported.
_SHELLS = 30
_LIMIT_S = 1800.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `right`, `tested`: digits of the fold that was never seen. `masked`: units by group at the end.

    `analyses`: by the epoch of the checkpoint. `sets`: of masks, applied, passed, lifted, and undone by a rollback.
    """

    right: int
    tested: int
    masked: dict[str, int]
    channels: int
    analyses: tuple[int, ...]
    failed: int
    refused: int
    applied: int
    passed: int
    lifted: int
    undone: int
    correlations: tuple[float, ...]
    reasons: tuple[str, ...]

    @property
    def share(self) -> float:
        """Return the share of the channels that is masked."""
        return sum(self.masked.values()) / self.channels if self.channels else 0.0


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A run without pruning and one with it. `same_until`: the last epoch whose checkpoints are equal in every bit."""

    seed: int
    fold: int
    plain: Run
    pruned: Run
    same_until: int
    masked_from: int


def pair(folder: Path, template: Template, seed: int, fold: int) -> Pair:
    """Train both and compare them. Raises AssertionError if they differ before the first masks."""
    plain, pruned = folder / f"plain-{seed}-{fold}", folder / f"pruned-{seed}-{fold}"
    runs = [_train(run, template, seed, fold, prunes=run is pruned) for run in (plain, pruned)]
    masks = of(events_of(pruned / "run"), order_events.acted(m.MaskUnits))
    first = min((one.applied_before_step for one in masks), default=None)
    mine, others = _checkpoints(plain / "run"), _checkpoints(pruned / "run")
    before = [step for step in mine if first is None or step < first]
    differing = [step for step in before if mine[step][1] != others[step][1]]
    assert before
    assert differing == [], f"checkpoints of these steps differ before any mask: {differing}"
    return Pair(
        seed=seed,
        fold=fold,
        plain=runs[0],
        pruned=runs[1],
        same_until=mine[max(before)][0],
        masked_from=first or 0,
    )


def _checkpoints(run_dir: Path) -> dict[int, tuple[int, dict[str, str]]]:
    """Return by step the epochs that have ended, and the hashes of all tensors: weights, optimizer, generators."""
    committed = of(events_of(run_dir), m.CheckpointCommitted)
    return {
        one.step: (one.epoch - 1, {file.name: file.blake3 for file in one.pieces if file.name.endswith(".safetensors")})
        for one in reversed(committed)
    }


def _train(run_dir: Path, template: Template, seed: int, fold: int, *, prunes: bool) -> Run:
    """Train one run to its end by a daemon of its own."""
    run_dir.mkdir(parents=True)
    options = {"model": "cnn", "seed": seed, "fold": fold}
    if prunes:
        options["asks"] = str(run_dir / "run" / "control.sock")
    config = {
        "task": TASK,
        "task_options": options,
        "rng_seed": seed,
        "torch_threads": 1,
        "device": "cpu",
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "learning_rate": {"base_lr": 1e-3},
        # A cycle of the schedule begins with a checkpoint.
        "checkpoint_interval_epochs": 5,
        "checkpoint": {"min_gap_s": 0, "throttle_mb_s": None, "keep_last": 2},
        "journal": {"sync": "batch", "segment_bytes": 4_000_000},
        # A budget that another program's load exceeds would end the pruning, and so would a speed.
        "budgets": {"act": False},
        "prune": {"enabled": prunes, "analysis_priority": "normal", "safety": {"speed": 0}},
    }
    file = run_dir / "config.yaml"
    file.write_bytes(msgspec.json.encode({"tolaria": config}))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(run_dir), "OMP_NUM_THREADS": "1"}
    with (run_dir / "log").open("wb") as log:
        process = template.start(
            ["run", str(file), "--dir", str(run_dir / "run")],
            environment=environment,
            folder=ROOT,
            log=log.fileno(),
            shells=_SHELLS if prunes else 1,
        )
    try:
        code = process.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        process.kill()
    assert code == 0, f"exit {code}\n{(run_dir / 'log').read_text(errors='replace')[-4000:]}"
    return _ended(run_dir / "run", seed, fold)


def _ended(run_dir: Path, seed: int, fold: int) -> Run:
    events = events_of(run_dir)
    with Reader(run_dir / "journal") as reader:
        state = replay_records(RunState(), reader.records(), strict=True).state
    last = max(of(events, m.CheckpointCommitted), key=lambda one: one.step)
    model = network()
    model.load_state_dict(load(run_dir / "checkpoints" / last.id, last.manifest).model)
    images, labels = parts(seed, fold)["test"]
    with torch.no_grad():
        right = int((model.eval()(images).argmax(1) == labels).sum())
    masked = state.pruning.masked
    # The masks of the journal are those of the weights.
    weights = dict(model.named_parameters())
    assert all(not weights[f"{name}.weight"][list(units)].any() for name, units in masked.items())
    analysed, rejected = of(events, m.PruneAnalyzed), of(events, m.MaskSetRejected)
    epochs = {one.cycle: one.epoch for one in of(events, m.PruneCycleBegun)}
    failed = of(events, m.PruneCycleFailed, order_events.aborted(m.MaskUnits))
    refused = [one for one in analysed if one.decision is PruningDecision.NO_GO]
    return Run(
        right=right,
        tested=len(labels),
        masked={name: len(units) for name, units in masked.items()},
        channels=state.pruning.total,
        analyses=tuple(epochs[one.cycle] for one in analysed),
        failed=len(failed),
        refused=len(refused),
        applied=len(of(events, order_events.acted(m.MaskUnits))),
        passed=len(of(events, m.MaskSetPassed)),
        lifted=sum(one.action is WindowAction.RELEASE for one in rejected),
        undone=sum(one.action is WindowAction.ROLLBACK for one in rejected),
        correlations=tuple(one.correlation for one in analysed if one.correlation is not None),
        reasons=(
            *(one.why for one in (*failed, *rejected)),
            *(reason for one in refused for reason in one.reasons),
        ),
    )


# -- tables ------------------------------------------------------------------------------------------------------------

COLUMNS = (
    "channels",
    "pairs",
    "without pruning",
    "with pruning",
    "points, mean of {} seeds, 95 %",
    "channels masked at the end",
    "sets of masks: applied, passed, lifted, undone",
)
HEAD = f"\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def by_seed(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    """Return the accuracy of each seed over its folds, with pruning and without."""
    found = []
    for name in ("pruned", "plain"):
        of_seed: dict[int, list[Run]] = {}
        for one in pairs:
            of_seed.setdefault(one.seed, []).append(getattr(one, name))
        found.append([sum(r.right for r in runs) / sum(r.tested for r in runs) for runs in of_seed.values()])
    return found[0], found[1]


def row(pairs: Sequence[Pair]) -> str:
    """Return a row of the table."""
    pruned, plain = by_seed(pairs)
    masked = [sum(one.pruned.masked.values()) for one in pairs]
    sets = [sum(getattr(one.pruned, name) for one in pairs) for name in ("applied", "passed", "lifted", "undone")]
    total = pairs[0].pruned.channels
    return (
        f"| {total} | {len(pairs)} | {100 * statistics.fmean(plain):.2f} % "
        f"| {100 * statistics.fmean(pruned):.2f} % | {difference(pruned, plain)} "
        f"| {statistics.fmean(masked):.1f} ({statistics.fmean(masked) / total:.0%}), {min(masked)} to {max(masked)} "
        f"| {', '.join(map(str, sets))} |"
    )
