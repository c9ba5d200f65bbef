"""A passed descriptor is used only if it is meant for this process and can be the control socket."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys

import pytest

# The descriptors that are passed begin at 3, which only a process of its own has free.
CHILD = """
import os, socket, stat, sys
from tolariad.supervisor.activation import ActivationError, take_passed_socket
os.environ["LISTEN_PID"] = os.environ.get("FORCED_PID", str(os.getpid()))
try:
    taken = take_passed_socket(os.environ)
except ActivationError as error:
    print("refused:", error)
else:
    inherits = taken is not None and os.get_inheritable(taken.socket.fileno())
    left = sorted(name for name in os.environ if name.startswith("LISTEN_"))
    if taken is not None:
        for number in range(3, 10):
            try:
                assert number == taken.socket.fileno() or not stat.S_ISSOCK(os.fstat(number).st_mode)
            except OSError:
                pass
    print("none" if taken is None else f"taken called={taken.called} inherits={inherits}", left)
"""


def ask(*passed: int, **environ: str) -> str:
    """Return the output of a process that gets these descriptors from 3 on."""
    script = "".join(f"exec {3 + place}<&{fd}; " for place, fd in enumerate(passed))
    command = f'{script}exec "{sys.executable}" -c "$CHILD"'
    environment = dict(os.environ) | {"CHILD": CHILD, "LISTEN_FDS": str(len(passed))} | environ
    result = subprocess.run(
        ["/bin/bash", "-c", command], env=environment, pass_fds=passed, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture
def listener(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(tmp_path / "sock"))
        sock.listen()
        # Away from the numbers that are passed.
        os.set_inheritable(sock.fileno(), True)
        yield sock


def high(sock: socket.socket) -> int:
    """Return a duplicate whose number is not among those passed."""
    return fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD, 20)


def test_the_socket_is_taken_and_the_variables_go(listener):
    """One listening stream socket is taken; no child inherits it or the variables."""
    assert ask(high(listener)) == "taken called=False inherits=False []"


def test_a_waiting_client_is_seen(listener, tmp_path):
    """A client that has already connected is the reason of this start."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(tmp_path / "sock"))
        assert ask(high(listener)).startswith("taken called=True")


def test_variables_of_another_process_mean_nothing(listener):
    """LISTEN_PID names another process, such as a shell: the descriptors are not for this one."""
    assert ask(high(listener), FORCED_PID="1") == "none []"


def test_of_several_the_one_called_control_is_taken(listener):
    """The name decides, not the position. Without it the start is refused with what to write into the unit."""
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    assert ask(high(other), high(listener), LISTEN_FDNAMES="metrics:control").startswith("taken")
    assert "FileDescriptorName=control" in ask(high(other), high(listener), LISTEN_FDNAMES="metrics:trace")
    other.close()


def test_what_cannot_be_the_control_socket_is_refused(tmp_path):
    """A file, and a socket that does not listen, are refused with the reason."""
    with (tmp_path / "file").open("w") as file:
        assert "not a socket" in ask(high(file))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as idle:
        assert "listening Unix stream socket" in ask(high(idle))


def test_of_several_only_the_control_socket_stays_open(listener):
    """Every trainer would inherit the others."""
    others = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2)]
    told = ask(high(others[0]), high(listener), high(others[1]), LISTEN_FDNAMES="metrics:control:trace")
    assert told.startswith("taken called=False inherits=False")
    for one in others:
        one.close()


def test_a_name_or_a_number_beyond_what_was_passed_is_refused(listener):
    """More names than descriptors, more descriptors than there are, numbers that are none."""
    assert "FileDescriptorName=control" in ask(high(listener), high(listener), LISTEN_FDNAMES="a:b:control")
    assert "cannot be used: Bad file descriptor" in ask(LISTEN_FDS="1")
    for count in ("-1", "1.0", "9" * 5000):
        assert ask(high(listener), LISTEN_FDS=count) == "none []"


def test_a_socket_without_a_path_is_refused():
    """Every user can connect to the abstract name space."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(f"\0tolaria-test-{os.getpid()}")
        sock.listen()
        assert "with a path" in ask(high(sock))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(f"\0tolaria-test-{os.getpid()}-packets")
        sock.listen()
        assert "listening Unix stream socket" in ask(high(sock))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.listen()
        assert "listening Unix stream socket" in ask(high(sock))
