"""Clients of the control socket: PyPI's varlink package, and raw bytes."""

from __future__ import annotations

import contextlib
import json
import socket

import varlink

from tolariad.control.wire import INTERFACE


@contextlib.contextmanager
def foreign(served):
    """The client of PyPI's varlink package, bound to our interface by introspection."""
    with varlink.Client.new_with_address(f"unix:{served.path}") as client, client.open(INTERFACE) as connection:
        yield connection


def raw(served, timeout_s=60.0):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    sock.connect(str(served.path))
    return sock


def messages(sock, count=None):
    """Return replies until there are `count`, or the connection ends."""
    data = b""
    while count is None or data.count(b"\0") < count:
        try:
            chunk = sock.recv(65536)
        except ConnectionResetError:
            break
        if not chunk:
            break
        data += chunk
    return [json.loads(part) for part in data.split(b"\0") if part]


def call(method, more=False, **parameters):
    return json.dumps({"method": f"{INTERFACE}.{method}", "parameters": parameters, "more": more}).encode() + b"\0"
