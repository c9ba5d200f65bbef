"""Reports by the ring and by the socket, merged in order."""

from __future__ import annotations

import pytest

from tolariad.channel import Reports, TrainerEnd, channel_pair
from tolariad.channel.page import Page
from tolariad.core import messages as m


def report(step: int) -> m.StepReport:
    return m.StepReport(step=step, epoch=1, batch=step, loss=1.0, grad_norm=1.0, lr=0.1, rates=1)


@pytest.fixture
def ends():
    ours, socket = channel_pair(1)
    theirs = TrainerEnd(socket, Page.attach(ours.page.descriptor))
    yield Reports(ours, 1), theirs
    theirs.close()


def test_the_next_step_in_the_ring_is_no_sign_of_one_that_is_missing(ends):
    """Otherwise the recorder would read the socket at each step, which costs a system call."""
    reports, trainer = ends
    trainer.report(report(1))

    assert reports.has_next
    assert not reports.later_record_present


def test_a_step_after_a_report_of_the_socket_shows_that_the_socket_must_be_looked_at(ends):
    """The page's count may become visible later than the ring's record."""
    reports, trainer = ends
    trainer.report(m.TrainingEndedReport(step=0))
    trainer.page.set_posted(0)
    trainer.report(report(1))

    assert reports.drain(10, check_socket=False) == []
    assert reports.later_record_present
    assert reports.drain(10, check_socket=True) == [m.TrainingEndedReport(step=0), report(1)]
