"""Fetch the batches of the next step, and report what was found about the data on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.trainer.data.feed import Bearing
from tolariad.trainer.optim.unfrozen import Unfrozen

if TYPE_CHECKING:
    from tolariad.trainer.orders.reporter import Reporter
    from tolariad.trainer.setup import Setup

# What torch says if a worker of a loader has died.
_OF_WORKER: Final = "DataLoader worker"
_STOP_S: Final = 2.0
_LOOK_S: Final = 0.01


class EpochBegins:
    """Yielded before anything of an epoch is read: a user's loop runs its code for the epoch first."""


class Fetch:
    """Takes batches from the run's training data."""

    def __init__(self, setup: Setup, reporter: Reporter, stop: Callable[[], None]) -> None:
        """`stop` obeys the pending orders: an order to stop raises ToldToExit."""
        self._data, self._settings, self._reporter, self._stop = setup.train, setup.settings, reporter, stop
        # The activity that the first batch of an epoch has interrupted. The daemon's limits differ by activity.
        self._interrupted: Activity | None = None
        self._unfrozen = Unfrozen(setup)
        self._data.beat_by(partial(reporter.beat, Activity.DATA))

    def check(self) -> None:
        """Look at a run's first start whether the data repeat themselves."""
        self._reporter.beat(Activity.DATA)
        self._data.check(self._settings.data.ignore)

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of an epoch after the first `start`. Say what was unfrozen before it."""
        self._unfrozen.look()
        self._interrupted = self._reporter.activity
        self._reporter.beat(Activity.DATA)
        return self._data.epoch(epoch, start)

    def of_step(self, batches: Iterator[Any]) -> tuple[Any, ...]:
        """Return the micro-batches of the next step; none at the epoch's end."""
        group: list[Any] = []
        try:
            group.extend(islice(batches, self._settings.accumulate * self._data.share_of.times))
        except RuntimeError as error:
            # A signal that stops the run may have reached a worker too. Then this is the boundary to stop at.
            if not group and _OF_WORKER in str(error):
                self._await_stop()
            raise
        if self._interrupted is not None:
            self._reporter.beat(self._interrupted)
            self._interrupted = None
        if self._data.findings:
            self.tell_findings()
        return tuple(group)

    def tell_findings(self) -> None:
        """Report what was found about the data since the last time."""
        for finding in self._data.take_findings():
            if finding.bearing is Bearing.INEXACT:
                self._reporter.report(m.InexactDataReport(why=finding.words))
            else:
                self._reporter.report(m.Told(event=m.DataNoted(why=finding.words)))

    def _await_stop(self) -> None:
        give_up = time.monotonic() + _STOP_S
        while time.monotonic() < give_up:
            self._stop()
            time.sleep(_LOOK_S)
