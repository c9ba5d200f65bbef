"""One rank of a group that the daemon has started: the trainer of a task, whose ranks meet as those of torchrun do.

Rank 0 has the channel to the daemon and leads the others. What differs from a program under torchrun is who acts when a
rank fails: here it is the daemon, which sees every process, names the first one that ended, and starts all again. So a
rank that is lost is no exception of the task: rank 0 reports nothing and ends.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tolariad import lifelines
from tolariad.attach import words
from tolariad.channel import Activity, Page
from tolariad.channel.points import FollowerPoints, LeaderPoints
from tolariad.channel.rank_ends import FollowerEnd, LeaderEnd
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_TRY_AGAIN
from tolariad.library.crew import Crew, Member, RankLost
from tolariad.library.joined import Joined
from tolariad.library.leading import built
from tolariad.refusal import StartRefused
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.loop import Trainer
from tolariad.trainer.process.lifecycle import Ending, see_through
from tolariad.trainer.ranks.following import RanksOfFollower
from tolariad.trainer.ranks.group import Follower, Leader
from tolariad.trainer.ranks.leading import RanksOfLeader
from tolariad.trainer.setup import Place, Setup

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch does not declare it

_HERE: Final = "127.0.0.1"
# The daemon ends a group long before.
_NEVER: Final = timedelta(days=7)
_Report = TypeVar("_Report")


class Rank(NamedTuple):
    """What the daemon tells a rank. `group`: the same for all ranks of one start. `printed`: see `shortened`."""

    place: Place
    group: str
    run_dir: Path
    run_id: str
    config: Callable[[], bytes]
    threads: int | None
    setup: Setup | None = None


class CrewOfDaemon(Crew):
    """The other ranks of a group whose daemon watches them: it says which is lost, and ends one that is stopped."""

    @property
    def has_lost(self) -> bool:
        """Whether a rank has ended without a word."""
        return bool(self._lost)

    def _lost_before(self, member: Member) -> None:
        self._lost[member.rank] = self._ended(member)

    def blamed(self, report: _Report) -> _Report | m.ExceptionReport | m.SetupRefusedReport | None:
        """Return the report of the error that came first; None if a rank was lost, of which the daemon knows more."""
        found = super().blamed(report)
        return None if self._lost else found

    def _end_stopped(self) -> None:
        """Leave that to the daemon."""


def lead(rank: Rank, channel: socket.socket, page: Page) -> Ending | None:
    """Be rank 0. Return how the trainer has ended; None if another rank was lost."""
    page.beat(0, time.monotonic_ns(), Activity.BUILD)
    sums = _sums(rank)
    crew = CrewOfDaemon(rank.run_dir, rank.place.ranks, _say, rank.group)
    lifelines.guard_children((crew.page.descriptor,))
    store = sums.store(rank.place.ranks)
    port = store.port if store is not None else 0
    crew.gather(words.Opened(run_id=rank.run_id, config="", threads=None, state=b"", store=port))
    end = LeaderEnd(channel, page, crew)

    def make() -> Trainer:
        _meet(store, rank)
        setup = rank.setup or _built(rank)
        try:
            crew.agree(built(setup))
        except StartRefused as refused:
            raise SetupRefused(refused.why) from refused
        crew.begin(_pass)
        leader = Leader(crew.page, LeaderPoints(crew.page), crew.check)
        ranks = RanksOfLeader(leader, crew.pieces, sums.stepper(crew.mapping, crew.check))
        return Trainer(setup, end, rank.run_dir, rank.run_id, makers=ranks)

    ending = see_through(make, end)
    return None if crew.has_lost else ending


def follow(rank: Rank) -> Ending | None:
    """Be any other rank. Return how the trainer has ended; None if rank 0 was lost."""
    sums = _sums(rank)
    joined = Joined(rank.run_dir, rank.place, _say, rank.group)
    lifelines.guard_children((joined.descriptor, joined.page.descriptor))
    store = sums.store(rank.place.ranks, joined.opened.store)
    group = Follower(joined.page, FollowerPoints(joined.page, rank.place.rank), joined.check)
    channel = FollowerEnd(joined, lambda: group.limit, group.wait)

    def make() -> Trainer:
        _meet(store, rank)
        setup = rank.setup or _built(rank)
        try:
            joined.agree(built(setup))
        except StartRefused as refused:
            raise SetupRefused(refused.why) from refused
        joined.begin(words.Begin(program="", workers=0, cores=()))
        ranks = RanksOfFollower(group, joined.give, sums.stepper(joined.mapping, joined.check))
        return Trainer(setup, channel, rank.run_dir, rank.run_id, makers=ranks)

    ending = see_through(make, channel)
    return None if joined.is_lost else ending


def serve(rank: Rank, lead_over: Callable[[], tuple[socket.socket, Page]]) -> Ending:
    """Be the rank of this place. A rank of a group that has lost another one ends the process."""
    ending = follow(rank) if rank.place.rank else lead(rank, *lead_over())
    if ending is None or isinstance(ending.error, RankLost):
        lifelines.leave(EXIT_TRY_AGAIN)
    return ending


class SumsByDdp:
    """The gradients of all ranks are averaged by DistributedDataParallel, which needs torch's process group."""

    @staticmethod
    def store(ranks: int, port: int = 0) -> Any:
        """Return the store where the ranks meet. Rank 0 has it at a port that the system chooses; `port` 0."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not declare it

        return TCPStore(_HERE, port, ranks, is_master=port == 0, timeout=_NEVER, wait_for_workers=False)

    @staticmethod
    def stepper(mapping: int, waiting: Callable[[], None]) -> Any:  # noqa: ARG004 - as the other one's
        """Return what makes the steps."""
        from tolariad.trainer.ranks.shared import StepperOfShares

        return StepperOfShares


class ExactSums:
    """They are added in shared memory: no store and no process group, whose import alone takes seconds of a start."""

    @staticmethod
    def store(ranks: int, port: int = 0) -> None:
        """Return nothing."""

    @staticmethod
    def stepper(mapping: int, waiting: Callable[[], None]) -> Any:
        """Return what makes the steps. `mapping`: the descriptor of the shared memory; `waiting`: see `sums_of`."""
        from tolariad.trainer.ranks.leaf_steps import StepperOfSharedLeaves

        return partial(StepperOfSharedLeaves, mapping=mapping, waiting=waiting)


def _sums(rank: Rank) -> type[SumsByDdp | ExactSums]:
    """Return how this run adds up gradients."""
    from tolariad.core.calc.settings.rules import read_resolved

    return ExactSums if read_resolved(rank.config()).parallel.exact else SumsByDdp


def _meet(store: Store | None, rank: Rank) -> None:
    """Make torch's process group, if there is a store for it."""
    if store is None:
        return
    from torch import distributed

    from tolariad.core.calc.settings.rules import read_resolved
    from tolariad.trainer.process.determinism import chosen_device

    place = rank.place
    # One machine: gloo would ask for the address of its name, which may be another one's.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    kind = chosen_device(read_resolved(rank.config()), *place).type
    backend = "nccl" if kind == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=place.rank, world_size=place.ranks, timeout=_NEVER)


def _built(rank: Rank) -> Setup:
    from tolariad.trainer.build import build

    return build(rank.config(), rank.threads, place=rank.place)


def _pass(_: words.Word) -> None:
    """Another rank of a task orders nothing, and gets no signal: both are the daemon's."""


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
