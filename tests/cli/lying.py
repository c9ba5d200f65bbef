"""A server at a run's socket that answers with whatever it is given, and replies that no run sends."""

from __future__ import annotations

import copy
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONTROLS = "a\x1b[2Jb\x1b]0;title\x07\r\x9b31m\u202e\u2028\nevil: line"
VALUES = (
    *(0, -1, 2**31, 2**53, 2**63, 2**64, 10**400, -(10**400), 1.5e308, -1.5e308, 5e-324, True, None),
    *("", "x" * 5000, "x" * (2 << 20), CONTROLS, "a\0b", "\ud800", "9" * 5000, "9999-99-99", "../../etc"),
    *([], {}, [1, "a"], {"a": {"b": CONTROLS}}, {CONTROLS: CONTROLS}, [[]], [{}]),
)
RAW = (
    *(b"", b"{", b"null", b"[]", b"5", b'"x"', b"\xff\xfe", b"NaN", b"{}", b'{"parameters": 5}', b'{"error": 5}'),
    *(b'{"parameters": {"status": NaN}}', b'{"parameters": {"a": 1e999}}', b"[" * 100_000, b'{"error": ""}'),
    *(b'{"parameters": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}", b'{"parameters": {"a\xff": 1}}'),
    *(b'{"parameters": {"seq": 1' + b"0" * 6000 + b"}}", b'{"parameters": {"seq": true, "seq": 2}} {}'),
    *(b'{"error": "io.esper.tolaria.Refused", "parameters": null}', b'{"continues": true}'),
)


class LyingServer:
    """Answers each call with the next of `replies`, and ends the connection after the last."""

    def __init__(self, path: Path, truth: Callable[[], dict[str, Any]]) -> None:
        """`truth` makes the answer to a Status call, if the truth is told first."""
        self._truth = truth
        self.replies: list[bytes] = []
        self.tells_status = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                try:
                    self._answer(client)
                except OSError:
                    continue

    def _answer(self, client: socket.socket) -> None:
        replies, buffer, is_first = iter(self.replies), b"", True
        client.settimeout(30)
        while True:
            while b"\0" not in buffer:
                chunk = client.recv(65_536)
                if not chunk:
                    return
                buffer += chunk
            _, _, buffer = buffer.partition(b"\0")
            if is_first and self.tells_status:
                client.sendall(json.dumps({"parameters": {"status": self._truth()}}).encode() + b"\0")
            else:
                for reply in replies:
                    client.sendall(reply + b"\0")
                client.shutdown(socket.SHUT_WR)
                return
            is_first = False

    def close(self) -> None:
        """Accept no more clients."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value of a reply is, also those that hold others."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from leaves(one, (*path, key))


def changed(reply: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return a reply of ours with one to three values changed, left out or added."""
    whole = json.loads(json.dumps(reply))
    for _ in range(draw.choice([1, 1, 2, 3])):
        path = draw.choice([one for one in leaves(whole) if one])
        place = whole
        for key in path[:-1]:
            place = place[key]
        if draw.random() < 0.2 and isinstance(place, dict):
            del place[path[-1]]
        else:
            place[path[-1]] = copy.deepcopy(draw.choice(VALUES))
        if not whole:
            break
    return whole


def replies(ours: list[dict[str, Any]], draw: random.Random) -> list[bytes]:
    """Return one to three replies, of which the last ends the stream or not."""
    found = []
    for _ in range(draw.choice([1, 1, 2, 20])):
        if draw.random() < 0.2:
            found.append(draw.choice([*RAW, draw.randbytes(draw.randrange(200)).replace(b"\0", b"")]))
            continue
        parameters = draw.choice(ours)
        reply: dict[str, Any] = {"parameters": parameters if draw.random() < 0.1 else changed(parameters, draw)}
        if draw.random() < 0.5:
            reply["continues"] = draw.choice([True, True, False, None, 1])
        if draw.random() < 0.15:
            reply["error"] = draw.choice(["io.esper.tolaria.Refused", CONTROLS, "", 5, "x" * 5000, "InvalidParameter"])
        found.append(json.dumps(reply).encode())
    return found
