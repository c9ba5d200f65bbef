"""Messages to the service manager arrive complete, and cost nothing without one."""

from __future__ import annotations

import os
import socket

import pytest

from tolariad.supervisor.notify import Notifier


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


def test_each_word_is_one_datagram(manager):
    """READY carries the pid; a status is one line and is not repeated; times are microseconds."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready()
    notifier.status("step 1\nof many")
    notifier.status("step 1\nof many")
    notifier.extend(1.5)
    notifier.watchdog()
    heard = [manager.recv(4096).decode() for _ in range(4)]
    assert heard == [
        f"READY=1\nMAINPID={os.getpid()}",
        "STATUS=step 1 of many",
        "EXTEND_TIMEOUT_USEC=1500000",
        "WATCHDOG=1",
    ]


def test_an_abstract_address_is_understood():
    """A leading @ means the abstract name space."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"tolaria-test-{os.getpid()}"
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert sock.recv(100) == b"STOPPING=1"


def test_a_full_or_dead_socket_never_blocks(manager):
    """Ten thousand messages to a manager that does not read, or is gone, return at once."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(10_000):
        notifier.watchdog()
    manager.close()
    notifier.watchdog()
    silent = Notifier({})
    silent.watchdog()
    assert silent.watchdog_s is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_ours_only_if_it_says_so(environ, expected):
    """A limit for another process is ignored."""
    assert Notifier(environ).watchdog_s == expected
