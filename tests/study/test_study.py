"""Trouble costs a run hardly any accuracy, and exactly the batches it skipped.

`make study` prints the table that stands in docs/detection-study.md.
"""

from __future__ import annotations

import os
import shutil
import statistics
from itertools import product

import pytest

from journal import Reader
from tests.recorded import findings, of
from tests.study.study import CLEAN, FAULTS, FOLDS, STRUCK_AT, Died, difference, split, train
from tolariad.core import messages as m
from tolariad.forensics.why import why

SEEDS = (1, 2, 3, 4, 5)
EPOCHS = 12
POINTS = 1.0


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", [one for one in FAULTS if one.batches], ids=lambda fault: fault.name)
def test_a_run_that_skipped_batches_is_the_run_resumed_from_the_same_checkpoint_with_the_same_batches_skipped(
    quick_path, fault
):
    """Bit for bit; and the journal tells what was found, and what it led to: three wrong batches need no way back.

    A rate that is far too high does: tests/library/test_detection.py.
    """
    seed, fold, epochs = 1, 0, 6
    recovered = train(quick_path / "run", seed, fold, fault, epochs=epochs, from_memory=False)
    skipped = of(recovered.events, m.StepSkipped)
    target = _target(recovered.events)

    with pytest.raises(Died):
        train(quick_path / "other", seed, fold, epochs=epochs, die_behind=target.step)
    batches = [m.Batches(one.epoch, one.batch, one.batch) for one in skipped]
    resumed = train(quick_path / "other", seed, fold, epochs=epochs, skip=batches)
    start = of(resumed.events, m.TrainingStarted)[-1]
    (begun_from,) = [one for one in of(resumed.events, m.CheckpointCommitted) if one.id == start.checkpoint]

    assert [piece.blake3 for piece in begun_from.pieces] == [piece.blake3 for piece in target.pieces]
    assert recovered.bits == resumed.bits
    assert recovered.accuracy == resumed.accuracy
    assert len(skipped) == fault.batches
    assert not of(recovered.events, m.RolledBack)
    told = why(Reader(quick_path / "run" / "journal"), "spike")
    types = [link.fields["type"] for link in (*told.causes, told.event, *told.consequences)]
    assert types[0] == "InstabilityDetected"
    assert "StepSkipped" in types
    assert STRUCK_AT <= findings(recovered.events)[0].step <= STRUCK_AT + 3


def _target(events) -> m.CheckpointCommitted:
    """Return the newest checkpoint before the skip."""
    found = findings(events)[0]
    return [one for one in of(events, m.CheckpointCommitted) if one.step < found.step][-1]


def test_every_digit_is_held_out_once_and_none_is_trained_on_that_is():
    """Five folds of 359 or 360; other seeds, other folds."""
    sizes = [(len(trained[1]), len(held_out[1])) for trained, held_out in (split(1, fold) for fold in range(FOLDS))]

    assert sizes == [(1437, 360)] * 2 + [(1438, 359)] * 3
    assert not split(1, 0)[1][0].equal(split(2, 0)[1][0])


def test_a_difference_has_its_interval():
    """Of five pairs: Student's, with four degrees of freedom."""
    found = difference([0.97, 0.98, 0.96, 0.97, 0.97], [0.98, 0.98, 0.97, 0.98, 0.97])

    assert found.mean == pytest.approx(-0.6)
    assert found.high - found.mean == pytest.approx(2.776 * 0.547723 / 5**0.5, rel=1e-4)


@pytest.mark.study
def test_trouble_costs_at_most_a_point_of_accuracy(quick_path):
    """Five seeds, five-fold over all 1 797 digits, each fault against the clean runs of the same seeds."""
    seeds = SEEDS[: int(os.environ.get("TOLARIA_STUDY_SEEDS", len(SEEDS)))]
    by_seed: dict[str, list[float]] = {}
    told: dict[str, list[tuple[int, int]]] = {}
    for fault, seed in product((CLEAN, *FAULTS), seeds):
        accuracies = []
        for fold in range(FOLDS):
            run_dir = quick_path / f"{len(told)}-{seed}-{fold}"
            trained = train(run_dir, seed, fold, fault, epochs=EPOCHS)
            accuracies.append((trained.accuracy, len(split(seed, fold)[1][1])))
            counts = len(of(trained.events, m.StepSkipped)), len(of(trained.events, m.RolledBack))
            told.setdefault(fault.name, []).append(counts)
            shutil.rmtree(run_dir)
        right = sum(accuracy * samples for accuracy, samples in accuracies)
        by_seed.setdefault(fault.name, []).append(right / sum(samples for _, samples in accuracies))
    show(by_seed, told)

    clean = by_seed[CLEAN.name]
    for fault in FAULTS:
        assert difference(by_seed[fault.name], clean).mean >= -POINTS, fault
        assert all(skips or backs for skips, backs in told[fault.name]), fault


def show(by_seed: dict[str, list[float]], told: dict[str, list[tuple[int, int]]]) -> None:
    clean = by_seed[CLEAN.name]
    print("\n| run | accuracy | points against clean, 95 % | batches skipped | rollbacks | runs |")
    print("|---|---|---|---|---|---|")
    for name, found in by_seed.items():
        against = "" if name == CLEAN.name else str(difference(found, clean))
        skips, backs = (sum(column) for column in zip(*told[name], strict=True))
        mean = 100 * statistics.fmean(found)
        print(f"| {name} | {mean:.2f} % | {against} | {skips} | {backs} | {len(told[name])} |")
