"""Who is at the other end of the socket, and who may change the run.

Promises: credentials are the kernel's, as of the connect; a member of a group by a supplementary group counts; a peer
whose groups cannot be read has none. It must not know: methods.
"""

from __future__ import annotations

import grp
import pwd
import socket
import struct
from pathlib import Path
from typing import Final

import msgspec

from tolariad.core.vocabulary import Actor

# Not in Python's socket module; from Linux 4.13. Python's getsockopt takes at most 1 024 bytes: 256 groups.
_SO_PEERGROUPS: Final = 59
_GROUPS_BYTES: Final = 1024
_CRED: Final = struct.Struct("3i")


class Peer(msgspec.Struct, frozen=True):
    """One end of a connection. `groups`: all of them, the primary one too."""

    uid: int
    pid: int
    groups: frozenset[int]
    program: str = ""

    @property
    def actor(self) -> Actor:
        """As an event names it."""
        return Actor(uid=self.uid, pid=self.pid, program=self.program)


def peer_of(descriptor: int) -> Peer:
    """The peer of a connected Unix socket. Raises OSError where the kernel does not say."""
    # A duplicate, because event loops hand out socket objects of their own that lack getsockopt.
    with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as own:
        pid, uid, gid = _CRED.unpack(own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CRED.size))
        return Peer(uid, pid, frozenset({gid, *_groups(own)}), _program(pid))


def _groups(own: socket.socket) -> tuple[int, ...]:
    try:
        raw = own.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()  # more than 256 groups, or an old kernel: known by user id and primary group only
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _program(pid: int) -> str:
    """The command's name, for the record; empty where the process is gone or in another namespace."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class UnknownOperator(ValueError):
    """`control.operators` names a user or group that this machine does not have."""


class Operators(msgspec.Struct, frozen=True):
    """Who may change the run."""

    uids: frozenset[int]
    gids: frozenset[int] = frozenset()

    def allow(self, peer: Peer) -> bool:
        """Whether `peer` may change the run."""
        return peer.uid in self.uids or not self.gids.isdisjoint(peer.groups)


def operators(named: tuple[str, ...] | None, *, owner_uid: int, socket_gid: int) -> Operators:
    """From `control.operators`: user names, uids, @groups; None: the socket's group. Owner and root always may.

    Raises UnknownOperator.
    """
    if named is None:
        return Operators(frozenset({0, owner_uid}), frozenset({socket_gid}))
    uids = {_uid(name) for name in named if not name.startswith("@")}
    gids = {_gid(name.removeprefix("@")) for name in named if name.startswith("@")}
    return Operators(frozenset({0, owner_uid, *uids}), frozenset(gids))


def _uid(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        hint = "name an existing user, a uid, or a group as @group"
        raise UnknownOperator(f"control.operators: there is no user {name!r} here; {hint}") from error


def _gid(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        hint = "name an existing group or a gid"
        raise UnknownOperator(f"control.operators: there is no group {name!r} here; {hint}") from error
