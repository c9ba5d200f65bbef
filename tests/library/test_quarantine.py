"""Quarantine in a live trainer: it holds across a restart, and ends exactly when it should."""

from __future__ import annotations

import pytest

from tests.library.inside import ordered
from tests.library.small import CONFIG, EPOCHS, STEPS_PER_EPOCH, Hooks, loaders, network
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m


def train(run_dir, orders=(), die_at=None):
    """Give the orders at step 1 of the first call, and return the events."""
    tolaria = Tolaria(CONFIG, run_dir=run_dir)
    first = not run_dir.exists()

    def hook(step):
        for order in orders if first and step == 1 else ():
            assert ordered(tolaria, order)
        if first and step == die_at:
            raise InterruptedError

    tolaria.train(network(), *loaders(validated=False), EPOCHS, task=Hooks(hook))
    return events_of(run_dir)


def passed_over(events):
    skips = of(events, m.StepSkipped)
    assert {one.reason for one in skips} <= {m.SkipReason.QUARANTINED}
    return [(one.epoch, one.batch) for one in skips]


def test_an_entry_ends_with_its_epoch_and_the_very_next_batch_is_trained(tmp_path):
    """Of the first two batches of the second epoch, one was in quarantine only until the first epoch's end."""
    ended, stays = m.Batches(2, 1, 1), m.Batches(2, 2, 2)
    events = train(tmp_path / "run", (m.QuarantineAdd(batches=ended, until=1), m.QuarantineAdd(batches=stays)))

    assert passed_over(events) == [(2, 2)]
    (skip,) = of(events, m.StepSkipped)
    assert events[skip.cause - 1].name == "q0002"
    assert [one.name for one in of(events, m.QuarantineRemoved)] == ["q0001"]
    assert (2, 1) in [(one.epoch, one.batch) for one in of(events, m.StepCompleted)]


@pytest.mark.parametrize("at", [2, 12])
def test_a_trainer_that_is_started_later_knows_what_is_in_quarantine(tmp_path, at):
    """The order went to an earlier trainer; an entry that has expired since does not apply to the new one."""
    orders = (m.QuarantineAdd(batches=m.Batches(3, 4, 5)), m.QuarantineAdd(batches=m.Batches(3, 7, 7), until=1))
    with pytest.raises(InterruptedError):
        train(tmp_path / "run", orders, die_at=at)
    events = train(tmp_path / "run")

    assert passed_over(events) == [(3, 4), (3, 5)]
    assert len(of(events, m.StepCompleted)) == EPOCHS * STEPS_PER_EPOCH - 2
