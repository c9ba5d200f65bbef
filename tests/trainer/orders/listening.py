"""A trainer that listens and trains nothing: the link and the boundary over one end of a channel, the daemon's end beside it."""

from __future__ import annotations

import threading

from tolariad.channel import Reports, TrainerEnd, channel_pair
from tolariad.core.checkpoints import words as ck
from tolariad.core.rates import words as lv
from tolariad.core.rollback import words as rb
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
        self.link.inbox.register(ck.TakeCheckpoint, lambda order: self.taken.append(order.id))
        self.link.inbox.register(ck.AbortCheckpoints, lambda _: None)
        self.link.inbox.register(lv.SetRate, self.rates.append)
        self.link.inbox.register(rb.CommitRollback, self._commit)
        self._soon = []

    def _commit(self, _):
        raise RollbackCommitted

    def reports(self):
        """What the daemon has received."""
        return Reports(self.daemon, 1).drain(100)

    def soon(self, action):
        """Do it in a moment, from another thread."""
        thread = threading.Timer(0.05, action)
        self._soon.append(thread)
        thread.start()

    def close(self):
        """Wait for what was to be done soon: the trainer may have received what its thread still sends."""
        while self._soon:
            self._soon.pop().join()
        self.daemon.close()
