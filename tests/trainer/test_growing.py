"""A model that grows in a run: the optimizer's rebuild and the new groups of rates are reported."""

from __future__ import annotations

from pathlib import Path

import torch

from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.schedule import LRPolicy
from tolariad.trainer.lr import GroupConfig, UnifiedLRController, controller_of

TASK = f"{Path(__file__).with_name('tasks')}/augmenting.py:Growing"


def test_a_rebuild_is_told_once_and_the_groups_before_the_first_step_with_them(daemon_in, configured):
    """Prepared and committed are reported with counts; a re-run reports only the groups, at its end."""
    daemon = daemon_in("run", 1, checkpoint_every_epoch=False, exit_after_step=5)
    configuration = configured(TASK, epochs=1, batch_size=8)
    daemon.train_here(configuration)
    told = [report.told for report in daemon.of(m.RebuildReport)]
    (grown,) = daemon.of(m.LrGroupsChanged)

    assert [type(one) for one in told] == [m.OptimizerRebuildPrepared, m.OptimizerRebuildCommitted]
    assert told[1].counts == m.RebuildCounts(carried=6, added=2)
    assert grown.applied_before_step == 4
    assert [group.policy for group in grown.groups] == [LRPolicy.HOST_COSINE, LRPolicy.MORPHO_ADAPTIVE]
    third = next(report for report in daemon.of(m.StepReport) if report.step == 3)
    assert daemon.reports.index(third) < daemon.reports.index(grown)

    made = daemon.last_step
    trained = daemon.train_here(configuration)
    (rerun,) = daemon.of(m.RerunReport)
    again = daemon.of(m.LrGroupsChanged)[-1]
    assert (rerun.compared, rerun.first_difference) == (made, None)
    assert len(daemon.of(m.RebuildReport)) == 2
    assert again.applied_before_step == made + 1
    assert [one.schedule for one in again.groups] == [one.schedule for one in trained.rates.groups]
    assert [one.schedule for one in again.groups] == [one.schedule for one in grown.groups]
    assert daemon.reports.index(rerun) < daemon.reports.index(again)


def test_the_controller_of_an_optimizer_is_found():
    """The optimizer has a controller until it is released."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    assert controller_of(optimizer) is None
    rates = UnifiedLRController({}, steps_per_epoch=1, total_steps=9)
    rates.register_optimizer("host", optimizer, GroupConfig("g", LRPolicy.CONSTANT, 0.1))
    assert controller_of(optimizer) is rates
    rates.unregister_optimizer("host")
    assert controller_of(optimizer) is None
