"""How the ranks of a program meet: rank 0 listens in the run's folder, and the others connect to it.

Promises: only a process of the same user joins, and only one of the same start of the program. A socket that a dead
rank 0 has left is in nobody's way. A path may be of any length.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tolariad import run_files
from tolariad.attach import words
from tolariad.attach.link import Link, LinkLost

SOCKET_NAME: Final = "ranks.sock"
_LOOK_S: Final = 0.05
_FIRST_WORD_S: Final = 5.0


class Meeting:
    """Rank 0's listening socket."""

    def __init__(self, run_dir: Path) -> None:
        """Listen in the run's folder, which exists. Raises OSError."""
        self._folder = run_files.way_to(run_dir)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        place = _place(self._folder)
        aside = place.with_name(f".{place.name}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        self._socket.bind(str(aside))
        aside.chmod(0o600)
        self._socket.listen()
        aside.replace(place)
        self._socket.settimeout(_LOOK_S)

    def next(self) -> tuple[Link, words.Join] | None:
        """Return the next process that wants to join; None if there is none now."""
        try:
            connected, _ = self._socket.accept()
        except TimeoutError:
            return None
        connected.settimeout(_FIRST_WORD_S)
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        link = Link(connected)
        with suppress(LinkLost, BlockingIOError, TimeoutError):
            if int.from_bytes(credentials[4:8], "little") == os.geteuid():
                word, descriptors = link.receive()
                for one in descriptors:
                    os.close(one)
                if isinstance(word, words.Join):
                    connected.settimeout(None)
                    return link, word
        link.close()
        return None

    def close(self) -> None:
        """Listen no more."""
        _place(self._folder).unlink(missing_ok=True)
        self._socket.close()
        os.close(self._folder)


def join(run_dir: Path, word: words.Join, waiting: Callable[[], None]) -> tuple[Link, words.Word, list[int]]:
    """Connect to rank 0 of this start, and return the link and its first word, with descriptors.

    Rank 0 makes the folder and listens when its recorder has opened the run: `waiting` is called until then.
    """
    while True:
        link = _connected(run_dir)
        if link is not None:
            with suppress(LinkLost, OSError):
                link.send(word)
                return link, *link.receive()
            link.close()
        waiting()


def _connected(run_dir: Path) -> Link | None:
    try:
        folder = run_files.way_to(run_dir)
    except OSError:
        return None
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        one.connect(str(_place(folder)))
    except OSError:
        one.close()
        return None
    finally:
        os.close(folder)
    return Link(one)


def _place(folder: int) -> Path:
    """Return a path of the socket that is short enough for the system, whatever the folder's is."""
    return Path(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
