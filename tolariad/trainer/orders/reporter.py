"""Reports and heartbeats: everything that the trainer sends to the daemon.

Promises: a send never blocks. A heartbeat shows the last applied step and the present activity.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tolariad.channel import Activity

if TYPE_CHECKING:
    from tolariad.channel import TrainerEnd
    from tolariad.core.messages.vocabulary import Report


class Progress:
    """The progress of training, for the parts that wait and report. Only the training loop calls the methods.

    `step`: the last applied step. `rerunning`: steps that the journal already holds are run again.
    `is_behind`: the journal holds the end of an epoch that has not ended here yet.
    """

    __slots__ = ("is_behind", "rerunning", "step")

    def __init__(self) -> None:
        self.step = 0
        self.rerunning = False
        self.is_behind = False

    def reached(self, step: int) -> None:
        """Note that `step` is the last applied step."""
        self.step = step

    def compare_epochs(self, epoch: int, finished: int) -> None:
        """Note that `epoch` is in progress here, and that the journal holds the end of epoch `finished`."""
        self.is_behind = epoch <= finished

    def begin_rerun(self) -> None:
        """Note that steps of the journal are run again from here on."""
        self.rerunning = True

    def end_rerun(self) -> None:
        """Note that the next step is new."""
        self.rerunning = False


class Reporter:
    """The sending half of the trainer's end of the channel. `activity`: the one in the last heartbeat."""

    def __init__(self, end: TrainerEnd, progress: Progress) -> None:
        self._end = end
        self._page = end.page
        self._progress = progress
        # What a trainer does before its first heartbeat here: the model and the data are built.
        self.activity = Activity.BUILD

    def report(self, report: Report) -> int:
        """Send a report; return its running number."""
        return self._end.report(report)

    def beat(self, activity: Activity) -> None:
        """Send a heartbeat with the present activity."""
        # Three stores into shared memory, no system call: a heartbeat is sent at every step.
        self.activity = activity
        self._page.beat(self._progress.step, time.monotonic_ns(), activity)

    def compiling(self) -> None:
        """Send a heartbeat that says that the compiler works. The interrupted activity is remembered."""
        # A compilation may take minutes in the middle of a step; with the limit of a step it would count as a hang.
        self._page.beat(self._progress.step, time.monotonic_ns(), Activity.COMPILE)

    def compiled(self) -> None:
        """Send a heartbeat that says that the interrupted activity goes on."""
        self.beat(self.activity)
