"""Rank 0's links to the other ranks of its group: they meet, build the same, get its orders and give their pieces.

One thread reads all links, and shows the others that this process is alive. Promises: a rank that is gone, or silent,
is named with its process. The first error counts: the errors that other ranks raise because of it are not reported.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

import tolariad
from tolariad.attach import words
from tolariad.attach.link import Link, LinkLost
from tolariad.attach.meeting import Meeting
from tolariad.channel.group_page import GroupPage
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_TRY_AGAIN
from tolariad.core.calc.text.phrases import listed
from tolariad.library.behind import NAMED_S, Behind, Progress, silence_allowed_s
from tolariad.library.ranks import group_here
from tolariad.refusal import StartRefused
from tolariad.supervisor.exit_of import exit_of
from tolariad.supervisor.procfs import process_stat

# A rank that has been stopped for so long is killed.
SILENT_S: Final = 8.0
BEAT_S: Final = 0.25
# A rank is lost, and the program's thread does not come back from a collective: the process ends after so long.
UNNOTICED_S: Final = 10.0
_SAY_AGAIN_S: Final = 60.0
# Errors of other ranks that follow from the first one come within this time; the end of a killed one is seen at once.
_FOLLOWS_S: Final = 1.0
# How long a start that was refused waits for the other ranks, to tell them.
_TURN_AWAY_S: Final = 5.0
_log: Final = logging.getLogger(__name__)
_Report = TypeVar("_Report")
_Vote: TypeAlias = m.RollbackPreparedReport | m.RollbackRefusedReport
# Those of targets that were given up are of no use.
_VOTES_MAX: Final = 4


class RankLost(RuntimeError):
    """Another rank of the group has ended, so this one cannot go on. The text names it."""


class Member(NamedTuple):
    """Another rank: its process, and the link to it."""

    rank: int
    pid: int
    pidfd: int
    link: Link


class Crew:
    """The other ranks, as rank 0 sees them."""

    def __init__(self, run_dir: Path, ranks: int, say: Callable[[str], None], group: str = "") -> None:
        """Listen for them. `say` logs a sentence. `group`: the name of this start; "": that of torchrun.

        Raises OSError.
        """
        self._ranks, self._say, self._group = ranks, say, group or group_here()
        self.page = GroupPage.create(ranks)
        # For exact sums: empty until they are set up.
        self.mapping = os.memfd_create("tolaria-gradients", os.MFD_CLOEXEC)
        self._meeting = Meeting(run_dir)
        self._members: dict[int, Member] = {}
        self._lost: dict[int, str] = {}
        self._failed: dict[int, m.ExceptionReport | m.SetupRefusedReport] = {}
        self._pieces: dict[str, dict[int, words.Piece]] = {}
        # By rollback and target.
        self._votes: dict[tuple[str, str], dict[int, _Vote]] = {}
        self._changed = threading.Condition()
        self._progress, self._was_named = Progress(), False
        self._is_over, self._silent_s = False, math.inf
        self._noticed = threading.Event()
        self._thread: threading.Thread | None = None

    # -- before training -----------------------------------------------------------------------------------------------

    def gather(self, opened: words.Opened) -> None:
        """Wait until every rank has joined, and give each the run as it stands, and the group page."""
        self._silent_s, said = silence_allowed_s(opened), time.monotonic()
        while len(self._members) < self._ranks - 1:
            self._waits_for(Behind(next(one for one in range(1, self._ranks) if one not in self._members), 0.0))
            if (found := self._meeting.next()) is not None:
                self._admit(*found, opened)
            elif time.monotonic() - said > _SAY_AGAIN_S:
                said = time.monotonic()
                missing = [f"rank {one}" for one in range(1, self._ranks) if one not in self._members]
                self._say(f"Rank 0 waits for {listed(missing)}, which must call epochs() of the same run too.")
        self._meeting.close()

    def _admit(self, link: Link, word: words.Join, opened: words.Opened) -> None:
        pid = link.peer_pid()
        if word.version != tolariad.__version__ or word.ranks != self._ranks or word.group != self._group:
            link.close()
            return
        if (before := self._members.pop(word.rank, None)) is not None:
            before.link.close()
            os.close(before.pidfd)
        with suppress(OSError):
            member = Member(word.rank, pid, os.pidfd_open(pid), link)
            link.send(opened, (self.page.descriptor, self.mapping))
            self._members[word.rank] = member

    def agree(self, own: Mapping[str, str]) -> None:
        """Wait until every rank has built, and compare. Raises StartRefused, and then tells all."""
        why = ""
        for rank, member in sorted(self._members.items()):
            self._waits_for(Behind(rank, 0.0))
            try:
                word, _ = member.link.receive()
            except LinkLost:
                self._lost_before(member)
                why = why or f"{self._ended(member)} before training began"
                continue
            if isinstance(word, words.Failed):
                self._failed.setdefault(rank, word.report)
            elif isinstance(word, words.Refused):
                why = why or f"rank {rank}: {word.why}"
            elif isinstance(word, words.Built):
                differing = [
                    f"{name} is {value or 'none'} on rank 0 and {word.values.get(name) or 'none'} on rank {rank}"
                    for name, value in own.items()
                    if word.values.get(name) != value
                ]
                why = why or "; ".join(differing[:3])
        self._waits_for(None)
        self.check()
        if why:
            why = f"the ranks cannot train together: {why}"
            self.refuse(why)
            raise StartRefused(EXIT_CONFIG, why)
        self._tell(words.Agreed())

    def _lost_before(self, member: Member) -> None:
        """Take it that a rank has ended before training began."""

    def refuse(self, why: str) -> None:
        """Tell all ranks that nothing begins."""
        self._tell(words.Refused(code=EXIT_CONFIG, why=why, hint=""))

    def begin(self, take: Callable[[words.Word], None]) -> None:
        """Read the links from now on. `take` gets signals and orders of other ranks."""
        self._take = take
        self._thread = threading.Thread(target=self._read, name="tolaria-ranks", daemon=True)
        self._thread.start()

    # -- while training ------------------------------------------------------------------------------------------------

    def relay(self, order: bytes, attachment: bytes | None) -> None:
        """Pass an order on to all ranks."""
        self._tell(words.Obey(order=order, attachment=attachment))

    def train(self, order: words.Train) -> None:
        """Let all ranks begin to train."""
        self._tell(order)

    def check(self) -> None:
        """Raise RankLost if a rank has ended."""
        if self._lost or self._failed:
            self._noticed.set()
            raise RankLost(self._why())

    def _why(self) -> str:
        if self._lost:
            return "; ".join(self._lost.values())
        rank, report = next(iter(self._failed.items()))
        text = report.why if isinstance(report, m.SetupRefusedReport) else report.text or report.traceback
        return f"rank {rank} has ended with an error: {text}"

    def pieces(self, checkpoint: str, tick: Callable[[], None]) -> list[tuple[str, bytes]]:
        """Wait for the pieces of all ranks, and return them by name and rank. `tick` is called while it waits.

        Raises RuntimeError if a rank has none, or has ended.
        """
        while True:
            with self._changed:
                held = self._pieces.get(checkpoint, {})
                if len(held) == self._ranks - 1:
                    break
                self.check()
                self._changed.wait(BEAT_S)
            tick()
        for rank, piece in sorted(held.items()):
            if piece.why:
                raise RuntimeError(f"rank {rank}: {piece.why}")
        return [one for _, piece in sorted(held.items()) for one in piece.files]

    def voted(self, report: m.RollbackPreparedReport) -> _Vote:
        """Wait for the votes of all ranks. Return this report if all agree, else the first refusal, with its rank."""
        with self._changed:
            while len(votes := self._votes.get((report.rollback, report.checkpoint), {})) < self._ranks - 1:
                self.check()
                self._changed.wait(BEAT_S)
        for rank, vote in sorted(votes.items()):
            if isinstance(vote, m.RollbackRefusedReport):
                return replace(vote, file=f"rank {rank}: {vote.file}")
        return report

    def blamed(self, report: _Report) -> _Report | m.ExceptionReport | m.SetupRefusedReport | None:
        """Return the report of the error that came first: this one, or that of another rank. None: report nothing."""
        self._noticed.set()
        give_up = time.monotonic() + _FOLLOWS_S
        with self._changed:
            while not (self._lost or self._failed) and time.monotonic() < give_up:
                self._changed.wait(give_up - time.monotonic())
            # The end of a rank that was killed may come after the errors that it has led to.
            while not self._lost and self._failed and time.monotonic() < give_up:
                self._changed.wait(give_up - time.monotonic())
        if self._lost:
            return m.ExceptionReport(step=getattr(report, "step", 0), traceback=f"{self._why()}.")
        for rank, first in self._failed.items():
            if isinstance(first, m.ExceptionReport):
                return replace(first, traceback=f"Rank {rank}: {first.traceback}")
            return replace(first, why=f"rank {rank}: {first.why}")
        return report

    # -- the end -------------------------------------------------------------------------------------------------------

    def tell_over(self, over: words.Over) -> None:
        """Tell all ranks how the run has ended."""
        self._is_over = True
        self._tell(over)

    def close(self) -> None:
        """Close the links: a rank that is still there takes it for the end of this one."""
        self._is_over = True
        self._noticed.set()
        if self._thread is not None:
            self._thread.join()
        for member in self._members.values():
            member.link.close()
            os.close(member.pidfd)
        self._members.clear()
        self.page.close()
        os.close(self.mapping)

    # -- links ---------------------------------------------------------------------------------------------------------

    def _tell(self, word: words.Word) -> None:
        for member in self._members.values():
            with suppress(OSError):  # the reading thread notices that it is gone
                member.link.send(word)

    def _read(self) -> None:
        poll, by_fd = select.poll(), {one.link.fileno(): one for one in self._members.values()}
        for descriptor in by_fd:
            poll.register(descriptor, select.POLLIN)
        last = time.monotonic()
        while not self._is_over:
            for descriptor, _ in poll.poll(BEAT_S * 1000):
                if not self._receive(by_fd[descriptor]):
                    poll.unregister(descriptor)
            now = time.monotonic()
            self.page.beat(0, time.monotonic_ns())
            # This process itself may have been stopped: others are judged by the time that it has watched.
            if now - last < 4 * BEAT_S:
                self._end_stopped()
            self._waits_for(self._progress.look(self.page.progress, min(now - last, 4 * BEAT_S)))
            last = now

    def _receive(self, member: Member) -> bool:
        """Take a message. Return False if the rank is gone."""
        try:
            word, descriptors = member.link.receive()
        except (LinkLost, OSError):
            if not self._is_over and member.rank not in self._failed:
                self._note(self._lost, member.rank, self._ended(member))
            return False
        for one in descriptors:
            os.close(one)
        match word:
            case words.Piece(id=checkpoint):
                with self._changed:
                    # Those of a checkpoint that was given up are of no use any more.
                    while len(self._pieces) > 4:
                        self._pieces.pop(next(iter(self._pieces)))
                    self._pieces.setdefault(checkpoint, {})[member.rank] = word
                    self._changed.notify_all()
            case words.Vote(report=report):
                with self._changed:
                    while len(self._votes) > _VOTES_MAX:
                        self._votes.pop(next(iter(self._votes)))
                    self._votes.setdefault((report.rollback, report.checkpoint), {})[member.rank] = report
                    self._changed.notify_all()
            case words.Failed(report=report):
                self._note(self._failed, member.rank, report)
            case _:
                self._take(word)
        return True

    def _note(self, into: dict[int, _Report], rank: int, what: _Report) -> None:
        with self._changed:
            into.setdefault(rank, what)
            self._changed.notify_all()
        end_if_unnoticed(self._noticed, self._why())

    def _end_stopped(self) -> None:
        """Kill a rank that was stopped: the others wait for it, for half an hour by torch's default."""
        for rank, member in self._members.items():
            if rank in self._lost or not is_stopped(self.page, rank, member.pid):
                continue
            self._end(member, f"rank {rank} (process {member.pid}) was stopped for {SILENT_S:.0f} s and is killed")

    def _waits_for(self, behind: Behind | None) -> None:
        """Name a rank that all others wait for, and kill it if that does not end."""
        if behind is None or behind.seconds < min(NAMED_S, self._silent_s):
            self._was_named = False
            return
        rank, seconds = behind
        member = self._members.get(rank)
        who = f"rank {rank} (process {os.getpid() if member is None else member.pid})"
        if not self._was_named:
            self._was_named = True
            self._say(
                f"The other ranks have waited for {who} for {seconds:.0f} s. After {self._silent_s:.0f} s "
                "(trainer.silent_s) it is killed, and all ranks end."
            )
        if member is None or seconds < self._silent_s or rank in self._lost or is_traced(member.pid):
            return
        text = f"{who} was silent for {self._silent_s:.0f} s, while the others waited for it, and is killed"
        self._end(member, text)

    def _end(self, member: Member, why: str) -> None:
        """Kill a rank. It is the cause of what follows."""
        self._note(self._lost, member.rank, why)
        self._say(f"{why[0].upper()}{why[1:]}.")
        with suppress(OSError):
            signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)

    @staticmethod
    def _ended(member: Member) -> str:
        """Return that a rank has ended, with its cause if the system tells it."""
        for _ in range(20):
            if (found := exit_of(member.pidfd, member.pid)) is not None:
                break
            time.sleep(0.005)
        how = "has ended"
        if found is not None:
            how = f"was ended by {found.signal_name}" if found.signal_name else f"has ended with code {found.code}"
        return f"rank {member.rank} (process {member.pid}) {how}"


def end_if_unnoticed(noticed: threading.Event, why: str) -> None:
    """End this process unless its program notices soon that a rank is lost.

    It may wait in a collective for a rank that is gone: gloo does not always tell that, and waits for half an hour.
    """

    def end() -> None:
        if not noticed.wait(UNNOTICED_S):
            _log.critical("%s, and this rank waits for it in a collective: it ends too.", why)
            os._exit(EXIT_TRY_AGAIN)

    threading.Thread(target=end, name="tolaria-lost", daemon=True).start()


def turn_away(run_dir: Path, ranks: int, refused: StartRefused) -> None:
    """Tell the other ranks that rank 0's start was refused. Nothing can be told if there is no folder of the run."""
    give_up, told = time.monotonic() + _TURN_AWAY_S, 0
    with suppress(OSError):
        meeting = Meeting(run_dir)
        while told < ranks - 1 and time.monotonic() < give_up:
            if (found := meeting.next()) is not None and found[1].group == group_here():
                found[0].send(words.Refused(code=refused.code, why=refused.why, hint=refused.hint))
                told += 1
        meeting.close()


def is_stopped(page: GroupPage, rank: int, pid: int) -> bool:
    """Return whether a rank was stopped by a signal, as by SIGSTOP, for `SILENT_S`. One in a debugger is not."""
    alive = page.alive_ns(rank)
    if not alive or time.monotonic_ns() - alive < SILENT_S * 1e9:
        return False
    stat = process_stat(pid)
    return stat is not None and stat.state == "T"


def is_traced(pid: int) -> bool:
    """Return whether a debugger has stopped a process."""
    stat = process_stat(pid)
    return stat is not None and stat.state == "t"
