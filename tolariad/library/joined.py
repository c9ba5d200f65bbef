"""The link of a rank to rank 0, in place of that to a recorder. One thread reads it, and shows that this rank lives.

Promises: if rank 0 ends without a word, everybody who waits for it here is told. A stop that this rank asks for is rank
0's order; other orders are refused by name.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import tolariad
from tolariad.attach import words
from tolariad.attach.link import LinkLost
from tolariad.attach.meeting import join
from tolariad.channel.group_page import GroupPage
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.core.decision import Accepted, Answer
from tolariad.library.behind import Progress, silence_allowed_s
from tolariad.library.crew import BEAT_S, SILENT_S, RankLost, end_if_unnoticed, is_stopped, is_traced
from tolariad.library.ranks import group_here
from tolariad.library.recorder import Order
from tolariad.refusal import StartRefused
from tolariad.trainer.setup import Place

_LOOK_S: Final = 0.05
_SAY_AGAIN_S: Final = 60.0
_NOT_HERE: Final = "rank {} of a group cannot order this: call it in rank 0"


class Joined:
    """The link of one rank, with the interface of a recorder."""

    def __init__(self, run_dir: Path, place: Place, say: Callable[[str], None], group: str = "") -> None:
        """Join rank 0, and wait until its recorder has opened the run. `group`: as Crew's. Raises StartRefused."""
        self._place = place
        self._said, self._say = time.monotonic(), say
        group = group or group_here()
        word = words.Join(version=tolariad.__version__, group=group, rank=place.rank, ranks=place.ranks)
        self._link, first, descriptors = join(run_dir, word, self._waiting)
        if isinstance(first, words.Refused):
            raise StartRefused(first.code, first.why, first.hint)
        if not isinstance(first, words.Opened) or len(descriptors) != 2:
            raise StartRefused(EXIT_IO, f"{type(first).__name__} came from rank 0; this is a defect, please report it")
        self.opened, self._silent_s = first, silence_allowed_s(first)
        page, self.mapping = descriptors
        self.page = GroupPage.attach(page, place.rank)
        self._leader = self._link.peer_pid()
        self.orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._list: queue.SimpleQueue[words.Obey | None] = queue.SimpleQueue()
        self.over: words.Over | None = None
        self.is_lost = False
        self._why = f"rank 0 (process {self._leader}) has ended"
        self._is_closed = False
        self._progress = Progress()
        self._noticed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="tolaria-link", daemon=True)

    def _waiting(self) -> None:
        time.sleep(_LOOK_S)
        if time.monotonic() - self._said > _SAY_AGAIN_S:
            self._said = time.monotonic()
            self._say(f"Rank {self._place.rank} waits for rank 0, which must call epochs() of the same run too.")

    @property
    def descriptor(self) -> int:
        """The descriptor of the link."""
        return self._link.fileno()

    @property
    def is_over(self) -> bool:
        """Whether rank 0 has said how the run has ended."""
        return self.over is not None

    @property
    def has_ended(self) -> bool:
        """Whether no message follows."""
        return self.is_lost or self.over is not None

    # -- before training -----------------------------------------------------------------------------------------------

    def agree(self, values: dict[str, str]) -> None:
        """Tell rank 0 what was built here, and wait until all ranks have built the same. Raises StartRefused."""
        try:
            self._link.send(words.Built(values=values))
            word, _ = self._link.receive()
        except (LinkLost, OSError) as error:
            raise StartRefused(EXIT_IO, f"{self._why} before training began") from error
        if isinstance(word, words.Refused):
            raise StartRefused(word.code, word.why, word.hint)

    def refuse(self, why: str) -> None:
        """Tell rank 0 that this rank builds nothing."""
        self.tell(words.Refused(code=EXIT_IO, why=why, hint=""))

    def begin(self, _: words.Begin) -> None:
        """Read the link from now on."""
        self._thread.start()

    # -- while training ------------------------------------------------------------------------------------------------

    def tell(self, word: words.Word) -> None:
        """Send a message, unless rank 0 is gone."""
        with suppress(OSError):
            self._link.send(word)

    def order(self, command: words.Command) -> Answer:
        """Pass a stop on to rank 0; refuse other orders."""
        if isinstance(command, m.Stop):
            self.tell(words.Order(number=0, command=command))
            return Accepted(0)
        return m.Refusal("WrongPhase", _NOT_HERE.format(self._place.rank))

    def next_order(self) -> tuple[bytes, bytes | None]:
        """Return the next order of the group's list. Raises RankLost."""
        if (found := self._list.get()) is None:
            self._list.put(None)
            self._raise()
        return found.order, found.attachment

    def give(self, checkpoint: str, files: Sequence[tuple[str, bytes]], why: str) -> None:
        """Send this rank's pieces of a checkpoint, or why there are none."""
        self.tell(words.Piece(id=checkpoint, files=tuple(files), why=why))

    def tell_error(self, report: object) -> None:
        """Tell rank 0 that this rank ends with an error of its own."""
        if isinstance(report, m.ExceptionReport | m.SetupRefusedReport) and not self.has_ended:
            self.tell(words.Failed(report=report))

    def vote(self, report: m.RollbackPreparedReport | m.RollbackRefusedReport) -> None:
        """Tell rank 0 whether this rank can go back."""
        self.tell(words.Vote(report=report))

    def check(self) -> None:
        """Raise RankLost if rank 0 has ended."""
        if self.is_lost:
            self._raise()

    def _raise(self) -> NoReturn:
        self._noticed.set()
        raise RankLost(self._why)

    # -- in the reading thread -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        last = time.monotonic()
        while not self.has_ended and not self._is_closed:
            is_there = poll.poll(BEAT_S * 1000)
            now = time.monotonic()
            self.page.beat(self._place.rank, time.monotonic_ns())
            # This process itself may have been stopped: rank 0 is judged by the time that it was watched.
            if now - last < 4 * BEAT_S and is_stopped(self.page, 0, self._leader):
                self._end_leader(f"was stopped for {SILENT_S:.0f} s")
            behind = self._progress.look(self.page.progress, min(now - last, 4 * BEAT_S))
            if behind is not None and behind.rank == 0 and self._has_waited(behind.seconds):
                self._end_leader(f"was silent for {behind.seconds:.0f} s, while the others waited for it,")
            last = now
            if is_there:
                self._receive()
        self.orders.put(self.over)
        self._list.put(None)

    def _has_waited(self, seconds: float) -> bool:
        """Return whether rank 0, for which all have waited for so long, is to be killed."""
        return seconds >= self._silent_s and not is_traced(self._leader)

    def _end_leader(self, how: str) -> None:
        self._why = f"rank 0 (process {self._leader}) {how} and is killed"
        self._say(f"{self._why[0].upper()}{self._why[1:]}.")
        with suppress(OSError):
            os.kill(self._leader, signal.SIGKILL)

    def _receive(self) -> None:
        try:
            word, descriptors = self._link.receive()
        except (LinkLost, OSError):
            self.is_lost = True
            end_if_unnoticed(self._noticed, self._why)
            return
        match word:
            case words.Train():
                self.orders.put((word, descriptors))
            case words.Obey():
                self._list.put(word)
            case words.Over():
                self.over = word

    # -- the end -------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """End before the run has begun."""
        self.end()

    def let_go(self) -> None:
        """Rank 0 sees by the link's end that this rank has left the run."""

    def end(self) -> None:
        """Close the link."""
        self._is_closed = True
        self._noticed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._link.close()
        self.page.close()
        os.close(self.mapping)
