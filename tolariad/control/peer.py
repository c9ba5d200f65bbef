"""The credentials of a client, and the rules who may change the run, and how often.

Promises: credentials come from the operating system, as of the connect. Supplementary groups count. A client whose
groups cannot be read has none.
"""

from __future__ import annotations

import grp
import pwd
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.token_bucket import TokenBucket

# Not in Python's socket module; since Linux 4.13. Python's getsockopt returns at most 1 024 bytes: 256 groups.
_SO_PEERGROUPS: Final = 59
_GROUPS_BYTES: Final = 1024
_USERS_MAX: Final = 1024
_CRED: Final = struct.Struct("3i")


class Peer(msgspec.Struct, frozen=True):
    """The client of a connection. `groups` includes the primary group."""

    uid: int
    pid: int
    groups: frozenset[int]
    program: str = ""

    @property
    def actor(self) -> m.Actor:
        """Return the client as the actor of an event."""
        return m.Actor(uid=self.uid, pid=self.pid, program=self.program)


def peer_of(descriptor: int) -> Peer:
    """Return the peer of a connected Unix socket. Raises OSError if its credentials cannot be read."""
    # Duplicate the descriptor: the socket objects of event loops lack getsockopt.
    with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as own:
        pid, uid, gid = _CRED.unpack(own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CRED.size))
        return Peer(uid, pid, frozenset({gid, *_groups(own)}), _program(pid))


def _groups(own: socket.socket) -> tuple[int, ...]:
    try:
        raw = own.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()  # more than 256 groups, or an old kernel: only user id and primary group are known
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _program(pid: int) -> str:
    """Return the process's command name; empty if the process has ended or is in another namespace."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class UnknownOperator(ValueError):
    """`control.operators` names a user or group that this machine does not have."""


class Operators(msgspec.Struct, frozen=True):
    """The users and groups that may change the run."""

    uids: frozenset[int]
    gids: frozenset[int] = frozenset()

    def allow(self, peer: Peer) -> bool:
        """Return whether `peer` may change the run."""
        return peer.uid in self.uids or not self.gids.isdisjoint(peer.groups)


def operators(named: tuple[str, ...] | None, *, owner_uid: int, socket_gid: int) -> Operators:
    """Read `control.operators`: user names, uids, @groups. None means the socket's group. Owner and root always may.

    Raises UnknownOperator.
    """
    if named is None:
        return Operators(frozenset({0, owner_uid}), frozenset({socket_gid}))
    uids = {
        _id(name, "user", lambda user: pwd.getpwnam(user).pw_uid, "name an existing user, a uid, or a group as @group")
        for name in named
        if not name.startswith("@")
    }
    gids = {
        _id(name[1:], "group", lambda group: grp.getgrnam(group).gr_gid, "name an existing group or a gid")
        for name in named
        if name.startswith("@")
    }
    return Operators(frozenset({0, owner_uid, *uids}), frozenset(gids))


def _id(name: str, kind: str, look_up: Callable[[str], int], hint: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return look_up(name)
    except KeyError as error:
        raise UnknownOperator(f"control.operators: this machine has no {kind} {name!r}; {hint}") from error


class Rate:
    """A token bucket for each user: `burst` at once, `per_s` in the long run. Holds the most recent users only."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: dict[int, TokenBucket] = {}

    def take(self, uid: int) -> bool:
        """Count one change by `uid`. Return False if that is one too many."""
        bucket = self._buckets.pop(uid, None) or TokenBucket(self._per_s, self._burst)
        # At the end of the order, so that the first one is that of the user who was seen longest ago.
        self._buckets[uid] = bucket
        if len(self._buckets) > _USERS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return bucket.take(self._clock()) == 0.0
