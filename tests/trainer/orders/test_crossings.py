"""Orders and reports that cross with a rollback: nothing of the abandoned branch acts on the new one, and nothing
hangs.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.trainer.conftest import FakeDaemon
from tolariad.core import messages as m
from tolariad.trainer.rollback import RollbackCommitted

COMMIT = m.CommitRollback(rollback="r")
NOWHERE = m.CheckpointRef(id="c000009", step=0, epoch=1, batch=0, manifest="ab")


@dataclasses.dataclass
class Refused(FakeDaemon):
    """Orders a rollback to what is not there just when training ends; its word of that end is not heard, as in the
    kernel.
    """

    def _answer(self, report):
        match report:
            case m.TrainingEndedReport() if not self.refusals:
                self.end.send(m.PrepareRollback(rollback="r0001", checkpoint=NOWHERE, tier=m.Tier.FULL))
            case m.RollbackRefusedReport():
                self.end.send(m.AbortRollback(rollback="r0001"))
            case _:
                super()._answer(report)

    @property
    def refusals(self):
        return [one for one in self.reports if isinstance(one, m.RollbackRefusedReport)]


def test_an_end_that_crossed_with_a_rollback_that_was_given_up_is_told_again(tmp_path, configured):
    """Otherwise trainer and daemon would wait for each other for ever."""
    (tmp_path / "run").mkdir()
    daemon = Refused(tmp_path / "run", 1)
    daemon.train_here(configured("digits", epochs=1))

    assert [one.file for one in daemon.refusals] == ["manifest.json"]
    assert len([one for one in daemon.reports if isinstance(one, m.TrainingEndedReport)]) == 2
    assert daemon.committed[-1].id == "end"


@pytest.mark.parametrize("place", ["boundary", "end", "hold"])
def test_the_word_to_end_of_the_line_that_was_left_does_not_end_the_new_one(listening, place):
    """A limit of the abandoned branch does not end the new one. The kernel reports it again when the run reaches it."""
    daemon, link, boundary = listening.daemon, listening.link, listening.boundary
    if place == "hold":
        daemon.send(m.Hold())
    daemon.send(m.EndTraining())
    listening.soon(lambda: daemon.send(COMMIT)) if place == "hold" else daemon.send(COMMIT)
    with pytest.raises(RollbackCommitted):
        boundary.serve_until_exit() if place == "end" else boundary.stop()
    boundary.leave_branch()
    link.gate.report(m.RolledBackReport(rollback="r", step=4, commit_s=0.1, confirm_s=0.1))
    daemon.page.set_durable(listening.reports() and 9)
    boundary.stop()

    assert not boundary.told_to_end


def test_an_order_that_waits_for_its_time_outlives_a_rollback_amid_a_pause(listening):
    """A rate order waits for an epoch's end that is reported again, and is then applied."""
    daemon, link, boundary = listening.daemon, listening.link, listening.boundary
    link.progress.compare_epochs(1, 1)
    order = m.SetRate(group="default", value=0.5, cause=7)
    daemon.send(order)
    daemon.send(m.Hold())
    listening.soon(lambda: daemon.send(COMMIT))
    with pytest.raises(RollbackCommitted):
        boundary.stop()
    boundary.leave_branch()
    link.gate.report(m.RolledBackReport(rollback="r", step=4, commit_s=0.1, confirm_s=0.1))
    assert listening.rates == []
    link.progress.compare_epochs(2, 1)
    boundary.stop()

    assert listening.rates == [order]
