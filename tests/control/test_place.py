"""The place of the socket: never over a live one, with any length of path, found by name."""

from __future__ import annotations

import errno
import os
import socket
import stat

import pytest

from tolariad.control import place, where
from tolariad.control.client import Client, NotReachable
from tolariad.control.peer import Operators, Peer, UnknownOperator, operators, peer_of


@pytest.fixture(autouse=True)
def _own_runtime_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "xdg"))


def test_the_socket_has_its_mode_before_anybody_can_connect(run_dir):
    """It is created under another name and renamed: no other name is left, and the mode is 0660."""
    bound = place.bind(run_dir)

    assert stat.S_IMODE(bound.path.stat().st_mode) == 0o660
    assert [path.name for path in run_dir.iterdir()] == ["control.sock"]
    bound.listener.close()


def test_a_dead_daemons_socket_is_replaced(run_dir):
    """Its file is left after a SIGKILL; the next daemon, which holds the lock, replaces it."""
    place.bind(run_dir).listener.close()
    second = place.bind(run_dir)

    with Client(where.socket_of(run_dir)):
        accepted, _ = second.listener.accept()
    assert peer_of(accepted.fileno()).pid == os.getpid()
    accepted.close()
    second.listener.close()


def test_removing_spares_what_somebody_else_has_put_there(run_dir):
    """A daemon that ends late does not remove its successor's socket."""
    first = place.bind(run_dir)
    second = place.bind(run_dir)
    place.remove_made(first)
    assert second.path.exists()
    place.remove_made(second)

    assert not second.path.exists()
    first.listener.close()
    second.listener.close()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL])
@pytest.mark.parametrize("links", [True, False], ids=["with links", "without links"])
def test_on_a_file_system_without_sockets_it_lies_in_the_runtime_folder(run_dir, monkeypatch, code, links):
    """As on some network and FUSE file systems: clients find it by the link or, without links, by the path."""

    class Refusing(socket.socket):
        def bind(self, address):
            if str(run_dir) in str(address):
                raise OSError(code, os.strerror(code))
            super().bind(address)

    def no_link(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(place.socket, "socket", Refusing)
    if not links:
        monkeypatch.setattr(place.Path, "symlink_to", no_link)
    bound = place.bind(run_dir)
    found = where.socket_of(run_dir)

    assert bound.path.parent == where.runtime_folder()
    assert found == bound.path
    assert (run_dir / "control.sock").is_symlink() is links
    with Client(found):
        accepted, _ = bound.listener.accept()
    accepted.close()
    bound.listener.close()
    place.remove_made(bound)
    assert not bound.path.exists()
    assert list(run_dir.iterdir()) == []


def test_a_disk_that_is_full_is_not_taken_for_one_without_sockets(run_dir, monkeypatch):
    """ENOSPC is raised as it is."""

    class Full(socket.socket):
        def bind(self, address):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(place.socket, "socket", Full)
    with pytest.raises(OSError, match="No space"):
        place.bind(run_dir)


def test_a_path_too_long_for_a_socket_is_served_by_a_link(tmp_path):
    """The socket is in the runtime folder; the run's folder has a link that clients follow."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    bound = place.bind(deep)

    assert (deep / "control.sock").is_symlink()
    with Client(where.socket_of(deep)):
        bound.listener.accept()[0].close()
    place.remove_made(bound)
    assert list(deep.iterdir()) == []
    bound.listener.close()


def test_a_passed_socket_is_neither_unlinked_nor_changed(run_dir, tmp_path):
    """The service manager's socket is not changed; the run's folder gets a link to it."""
    listener = socket.socket(socket.AF_UNIX)
    path = tmp_path / "c"
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen()
    bound = place.adopt(listener, run_dir)
    assert where.socket_of(run_dir) == path
    place.remove_made(bound)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(run_dir.iterdir()) == []
    listener.close()


def test_runs_of_one_name_get_links_of_their_own(tmp_path):
    """The second run's link does not replace the first one's; each run removes only its own."""
    one, two = tmp_path / "a" / "digits", tmp_path / "b" / "digits"
    one.mkdir(parents=True)
    two.mkdir(parents=True)
    links = [place.publish(one, "digits"), place.publish(two, "digits")]
    place.withdraw(links[0], two)

    assert [link.resolve() for link in links] == [one, two]
    assert links[0].name == "digits"
    place.withdraw(links[0], one)
    assert not links[0].exists()


def test_a_runtime_folder_of_somebody_else_is_refused(tmp_path):
    """A link that another user put into a shared temporary folder is not followed."""
    (tmp_path / "elsewhere").mkdir()
    planted = tmp_path / "planted"
    planted.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(place.PlaceError):
        place.private_folder(planted)


def test_nobody_at_the_socket_is_not_reachable(run_dir):
    """A stale file and a missing file give a client the same error, with the path."""
    with pytest.raises(NotReachable, match=r"control\.sock"):
        Client(run_dir / "control.sock")


def test_the_peer_is_who_the_kernel_says(run_dir):
    """User, process, all groups, and the program's name."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        peer = peer_of(one.fileno())

    assert (peer.uid, peer.pid) == (os.getuid(), os.getpid())
    assert {os.getgid(), *os.getgroups()} <= peer.groups
    assert peer.program


@pytest.mark.parametrize(
    ("named", "peer", "allowed"),
    [
        (None, Peer(1000, 1, frozenset({50})), True),  # the socket's group
        (None, Peer(1000, 1, frozenset({51})), False),
        ((), Peer(77, 1, frozenset()), True),  # the owner
        ((), Peer(0, 1, frozenset()), True),
        ((), Peer(1000, 1, frozenset({50})), False),
        (("1000",), Peer(1000, 1, frozenset()), True),
        (("@60",), Peer(1000, 1, frozenset({1, 60})), True),  # by a supplementary group
        (("root",), Peer(1000, 1, frozenset({1, 60})), False),
    ],
)
def test_who_may_change_the_run(named, peer, allowed):
    """`control.operators` decides; owner and root always may."""
    assert operators(named, owner_uid=77, socket_gid=50).allow(peer) is allowed


def test_an_operator_nobody_knows_is_an_error_that_names_it():
    """A misspelt name is an error: otherwise it would silently lock users out."""
    with pytest.raises(UnknownOperator, match="no-such-user"):
        operators(("no-such-user-here",), owner_uid=0, socket_gid=0)
    with pytest.raises(UnknownOperator, match="no group"):
        operators(("@no-such-group",), owner_uid=0, socket_gid=0)


def test_operators_are_values():
    """Equal lists give equal permissions, so a reload can tell whether anything changed."""
    assert operators(("5", "6"), owner_uid=1, socket_gid=2) == Operators(frozenset({0, 1, 5, 6}), frozenset())
