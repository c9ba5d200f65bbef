"""A trainer that listens but does not train: link and boundary over one end of a channel, and the daemon's end."""

from __future__ import annotations

import threading

from tolariad.channel import Reports, TrainerEnd, channel_pair
from tolariad.core import messages as m
from tolariad.trainer.orders import Boundary, Link
from tolariad.trainer.rollback import RollbackCommitted


class Listening:
    """The gate is open. `taken`: ids of the checkpoints ordered; `rates`: the orders of rates that were obeyed."""

    def __init__(self):
        self.daemon, theirs = channel_pair(1)
        self.daemon.page.thaw()
        self.link = Link.over(TrainerEnd(theirs, self.daemon.page))
        self.boundary = Boundary(self.link)
        self.taken, self.rates = [], []
        self.link.inbox.register(m.TakeCheckpoint, lambda order: self.taken.append(order.id))
        self.link.inbox.register(m.AbortCheckpoints, lambda _: None)
        self.link.inbox.register(m.SetRate, self.rates.append)
        self.link.inbox.register(m.CommitRollback, self._commit)
        self._soon = []

    def _commit(self, _):
        raise RollbackCommitted

    def reports(self):
        """Return the reports that the daemon has received."""
        return Reports(self.daemon, 1).drain(100)

    def soon(self, action):
        """Call it soon, from another thread."""
        thread = threading.Timer(0.05, action)
        self._soon.append(thread)
        thread.start()

    def close(self):
        """Wait for the thread of `soon`: the trainer may have received what it is still sending."""
        while self._soon:
            self._soon.pop().join()
        self.daemon.close()
