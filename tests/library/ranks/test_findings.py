"""What the autopilot does about a finding acts on all ranks of a group, or on none."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.library.inside import ordered, state_of
from tests.library.ranks.groups import BATCH, start, until_done
from tests.library.ranks.test_orders import Watching
from tests.library.small import data
from tests.library.test_autopilot import negated, rows
from tests.recorded import events_of, of, sound
from tolariad.core import messages as m
from tolariad.trainer.rollback import handler

# Steps of an epoch, and the batches of the second one whose losses are no numbers: ten in a row.
WHOLE, SICK = 20, range(5, 15)


class Sick(Watching):
    """The losses of one rank are no numbers for ten batches of the second epoch.

    `quarantined`: batches that are ordered into quarantine after the first step.
    """

    def __init__(self, folder, rank, *, ranks=2, quarantined=(), **options):
        super().__init__(folder / "run", samples=ranks * WHOLE * BATCH, epochs=3, **options)
        self.sick, self.quarantined = rank, quarantined
        self.factor = lambda mine, epoch, batch: float("nan") if self.is_sick(mine, epoch, batch) else 1.0
        self.order = self.put_away

    def is_sick(self, rank, epoch, batch):
        """Return whether this loss is no number."""
        return rank == self.sick and epoch == 2 and batch in SICK

    def put_away(self, program, made):
        """Order the quarantine."""
        if made == 1:
            assert all(ordered(program.tolaria, m.QuarantineAdd(batches=one)) for one in self.quarantined)


def bits_of(found):
    return [(one.get("error"), one["steps"], one["bits"]) for one in found]


@pytest.fixture(scope="module")
def sick(tmp_path_factory):
    """What the ranks of a run end with, one of which is sick, and the events."""
    folder = tmp_path_factory.mktemp("sick")
    return start(2, Sick(folder, 1), folder), sound(folder / "run")


def test_values_that_are_not_finite_on_one_rank_lead_all_ranks_back(sick):
    """Nine steps in a row are skipped by all. Then all go back to one checkpoint and pass over the same batches."""
    found, events = sick
    (back,), skips = of(events, m.RolledBack), of(events, m.StepSkipped)
    put = [one.batches for one in of(events, m.QuarantineAdded)]

    assert [one.get("error") for one in found] == [None, None]
    assert found[0]["seen"] == found[1]["seen"]
    assert [one.reason for one in skips[:8]] == [m.SkipReason.NON_FINITE] * 8
    assert not back.by_start
    assert back.step <= WHOLE
    assert {(one.epoch, one.first) for one in put} <= {(2, batch) for batch in range(SICK.start, SICK.stop + 1)}
    assert any(one.reason is m.SkipReason.QUARANTINED for one in skips)
    assert {one.checkpoint for one in of(events, m.StatePinned)} == {
        one.checkpoint for one in of(events, m.PinReleased)
    }


def test_the_run_ends_with_the_bits_of_one_that_never_met_those_batches(sick, tmp_path):
    """On each rank: buffers, moments and draws of dropout are those of a run with that quarantine from its start."""
    found, events = sick
    put = [one.batches for one in of(events, m.QuarantineAdded)]
    calm = start(2, Sick(tmp_path, 1, quarantined=put), tmp_path)

    assert not of(sound(tmp_path / "run"), m.RolledBack)
    assert bits_of(calm) == bits_of(found)


@pytest.mark.torture
def test_the_last_of_three_ranks_leads_all_back_and_the_bits_are_those_of_a_calm_run(tmp_path):
    """With three ranks a sum depends on its order: the buckets' layout must be that of the run before."""
    (tmp_path / "calm").mkdir()
    found = start(3, Sick(tmp_path, 2, ranks=3), tmp_path)
    events = sound(tmp_path / "run")
    put = [one.batches for one in of(events, m.QuarantineAdded)]
    calm = start(3, Sick(tmp_path / "calm", 2, ranks=3, quarantined=put), tmp_path / "calm")

    assert [one.get("error") for one in found] == [None] * 3
    assert found[0]["seen"] == found[1]["seen"] == found[2]["seen"]
    assert len(of(events, m.RolledBack)) == 1
    assert not of(sound(tmp_path / "calm" / "run"), m.RolledBack)
    assert bits_of(calm) == bits_of(found)


def test_the_same_with_exact_sums(tmp_path):
    """Their checkpoints have no pieces of other ranks: each rank goes back by rank 0's."""

    class Exact(Sick):
        def loader(self):
            return DataLoader(data(2 * WHOLE * BATCH), BATCH, shuffle=True), None

        def is_sick(self, rank, epoch, batch):
            return epoch == 2 and batch // 2 in SICK

    found = start(2, Exact(tmp_path, 1, parallel={"exact": True, "leaves": 2}), tmp_path)

    assert [one.get("error") for one in found] == [None, None]
    assert len(of(sound(tmp_path / "run"), m.RolledBack)) == 1
    assert found[0]["bits"] == found[1]["bits"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("name", ["load", "restore"])
def test_a_rank_that_is_killed_between_finding_and_return_changes_nothing(sick, tmp_path, name, victim):
    """Before its vote, or before it copies: the next start begins at the target, and ends with the same bits."""
    token, original = tmp_path / "token", getattr(handler, name)
    token.touch()

    def die(*given, **more):
        if token.exists():
            token.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **more)

    class Dying(Sick):
        def __call__(self, rank):
            if rank == victim:
                setattr(handler, name, die)
            return super().__call__(rank)

    found, starts = until_done(2, Dying(tmp_path, 1), tmp_path)
    events = events_of(tmp_path / "run")

    assert starts == 2
    assert len(of(events, m.RolledBack)) == 1
    assert not of(events, m.RollbackAborted, m.RerunDiverged)
    assert bits_of(found) == bits_of(sick[0])


def test_values_that_are_never_finite_again_halt_all_ranks(tmp_path):
    """The third time at one place. Each rank ends, and says so."""

    class Lost(Sick):
        def is_sick(self, rank, epoch, batch):
            return rank == self.sick and epoch >= 2

    found = start(2, Lost(tmp_path, 0, rollback={"skip_batches": False}), tmp_path)
    events = events_of(tmp_path / "run")

    assert len(of(events, m.RolledBack)) == 2
    assert len(of(events, m.RunFrozen)) == 1
    assert not of(events, m.ExceptionRaised)
    assert all("RunFailed" in one["error"] and "not finite" in one["error"] for one in found)


STRUCK, EPOCHS = 300, 36


class Struck(Watching):
    """The last layer of every rank is negated after a step, until the run has gone back."""

    def __init__(self, folder, ranks, **options):
        super().__init__(folder / "run", epochs=EPOCHS, **options)
        self.rows = rows(64 * ranks)
        self.model, self.order = four_classes, lambda *_: None

    def loader(self):
        """Return this rank's loader and its sampler: 16 batches."""
        sampler = DistributedSampler(self.rows, seed=2)
        return DataLoader(self.rows, 4, sampler=sampler), sampler

    def look(self, program, rank, step):
        """Damage the model, and see it."""
        if step == STRUCK and not state_of(self.tolaria).progress.branch:
            negated(self.run._trainer.setup.model)
        super().look(program, rank, step)


def four_classes():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("trial", [True, False], ids=["tries both ways", "goes on"])
def test_a_rise_that_stays_is_tried_both_ways_on_all_ranks(tmp_path, trial, ranks):
    """A loop computes its loss itself, so nothing can be compared: all ranks go back, and the better branch lives."""
    program = Struck(tmp_path, ranks, detect={"trial": trial})
    found = start(ranks, program, tmp_path)
    events = sound(tmp_path / "run")
    compared, backs = of(events, m.StatesCompared), of(events, m.RolledBack)
    seen = found[0]["seen"]

    assert [one.get("error") for one in found] == [None] * ranks
    assert all(seen == one["seen"] for one in found)
    assert any(one.insured for one in of(events, m.InstabilityDetected))
    assert not of(events, m.ExceptionRaised)
    if not trial:
        assert (len(compared), len(backs), len(of(events, m.HeldOnTo))) == (1, 0, 1)
        return
    assert len(compared) == 2
    assert backs[0].step < STRUCK
    assert len(backs) == 1 + compared[1].went_on
    assert of(events, m.StepCompleted)[-1].step == seen[-1][0]
