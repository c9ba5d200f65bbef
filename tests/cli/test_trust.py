"""An order goes to the run that was meant, and to nobody else: owners, processes and folders are compared first."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from tolariad.cli import runs
from tolariad.control import trust, where
from tolariad.control.client import Client, NotTrusted
from tolariad.core import messages as m

OTHER = 54_321


@pytest.fixture
def foreign(monkeypatch):
    """Make a file or folder somebody else's: by chown if this is root, else by being somebody else."""

    def give(*paths: Path) -> None:
        if os.getuid() == 0:
            for path in paths:
                os.chown(path, OTHER, -1)
        else:
            monkeypatch.setattr(os, "getuid", lambda: OTHER)

    return give


def notes(live_run) -> list:
    return [one for one in live_run.recorder.state.said.latest if isinstance(one.event, m.NoteAdded)]


def ordered(live_run) -> int:
    """Return how many events the run has: none is added by what is not obeyed."""
    return live_run.recorder.state.seq


@pytest.fixture
def planted(tmp_path, monkeypatch, live_run, run_dir):
    """Somebody has made /tmp/tolaria-UID first, with a link to a live run of theirs."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(temporary))
    folder = where.runtime_folder()
    folder.mkdir(mode=0o700)
    (folder / "digits").symlink_to(run_dir)
    assert folder.parent == temporary
    return folder


def test_a_run_in_the_runtime_folder_is_found_if_it_is_ours(planted, live_run, tolaria):
    """As a daemon that was started by hand leaves it."""
    before = ordered(live_run)
    assert tolaria("note", "lunch", "-r", "digits").code == 0
    assert tolaria("note", "lunch").code == 0
    assert ordered(live_run) == before + 2


def test_an_order_never_reaches_a_runtime_folder_of_somebody_else(planted, live_run, tolaria, foreign):
    """Not by its name, nor as the only live run; the error names the owner and what to do. `list` has a row for it."""
    before = ordered(live_run)
    foreign(planted)
    for place in ((), ("-r", "digits")):
        said = tolaria("note", "a secret reason", *place)
        assert said.code == 3, said.out
    assert f"{planted} belongs to user" in said.err
    assert "XDG_RUNTIME_DIR" in said.err
    (row,) = tolaria("list", "--json").lines
    assert (row["live"], row["phase"]) == (False, None)
    assert "belongs to" in row["error"]
    assert ordered(live_run) == before


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_runtime_folder_that_others_may_write_to_is_not_used(planted, live_run, tolaria, mode):
    """They could have put anything into it."""
    planted.chmod(mode)
    said = tolaria("note", "lunch", "-r", "digits")
    assert said.code == 3
    assert f"chmod go-w {planted}" in said.err


def test_a_runtime_folder_that_is_a_link_is_not_used(planted, live_run, tolaria, tmp_path):
    """A link to a folder of ours, which somebody else can point elsewhere."""
    planted.rename(tmp_path / "moved")
    planted.symlink_to(tmp_path / "moved")
    assert tolaria("note", "lunch", "-r", "digits").code == 3


@pytest.mark.parametrize("which", ["folder", "socket", "folder of the socket"])
def test_an_order_never_reaches_a_folder_or_socket_of_somebody_else(
    live_run, run_dir, tolaria, foreign, tmp_path, which
):
    """The folder that was named, the socket in it, the folder that a link leads to. Reading goes to the journal."""
    before = ordered(live_run)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if which == "folder of the socket":
        live_run.path.rename(elsewhere / "s")
        live_run.path.symlink_to(elsewhere / "s")
    foreign(*{"folder": [run_dir], "socket": [live_run.path], "folder of the socket": [elsewhere]}[which])
    said = tolaria("note", "a secret reason", "--dir", run_dir)
    assert said.code == 3, said.out
    assert "belongs to user" in said.err
    assert ordered(live_run) == before
    said = tolaria("status", "--dir", run_dir, "--json")
    assert (said.code, said.json["live"]) == (3, False)
    assert "The journal is read instead" in said.err


def test_a_folder_that_everybody_may_write_to_is_not_trusted(live_run, run_dir, tolaria):
    """The daemon refuses to start in one; somebody may have changed it since."""
    run_dir.chmod(0o777)
    said = tolaria("note", "lunch", "--dir", run_dir)
    assert (said.code, f"chmod o-w {run_dir}" in said.err) == (3, True)


def test_the_process_at_the_other_end_is_checked(live_run):
    """Its user is that of the kernel's record, whoever owns the file."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(live_run.path))
        trust.check_peer(client, live_run.path, {os.getuid()})
        with pytest.raises(NotTrusted, match=f"a process of user {os.getuid()} serves"):
            trust.check_peer(client, live_run.path, {OTHER})


@pytest.mark.skipif(os.getuid() != 0, reason="making a process of another user takes root")
def test_a_process_of_another_user_in_our_folder_gets_no_order(run_dir, recorder, tolaria):
    """It may have been let into the folder for another purpose."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(run_dir / "control.sock"))
        os.setuid(OTHER)
        listener.listen()
        os.write(told, b"x")
        listener.accept()
        os._exit(0)
    os.read(ready, 1)
    try:
        said = tolaria("note", "a secret reason", "--dir", run_dir)
        assert (said.code, f"process of user {OTHER}" in said.err) == (3, True)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


def test_the_runs_of_another_user_are_served_by_that_user(tmp_path, monkeypatch):
    """In a home that root has made, or where the service keeps its runs; not in a folder that anybody can make."""
    home = tmp_path / "home" / "runs" / "r"
    home.mkdir(parents=True)
    real = Path.stat

    def owned(path: Path, **how: bool) -> os.stat_result:
        found = list(real(path, **how))
        found[4] = OTHER if path.is_relative_to(tmp_path / "home") else 0
        found[0] = (found[0] & ~0o777) | (shared if path == tmp_path else 0o755)
        return os.stat_result(found)

    shared = 0o755
    monkeypatch.setattr(Path, "stat", owned)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert trust.servers_of(home) == {0, 1000, OTHER}
    shared = 0o1777
    with pytest.raises(NotTrusted, match=f"belongs to user {OTHER}, and this is user 1000"):
        trust.servers_of(home)
    shared = 0o775
    with pytest.raises(NotTrusted):
        trust.servers_of(home)
    shared = 0o755
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(NotTrusted, match="as user"):
        trust.servers_of(home)
    monkeypatch.setattr(where, "SYSTEM_FOLDERS", (tmp_path,))
    assert trust.servers_of(tmp_path / "home") == {0, OTHER}


def test_a_copy_of_a_run_gives_no_order_to_the_original(live_run, run_dir, tmp_path, tolaria):
    """Its link leads to the live run, and it has the same run's id. Reading shows the copy as it is."""
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(run_dir / "journal", copy / "journal")
    (copy / "control.sock").symlink_to(live_run.path)
    before = ordered(live_run)
    for command in (
        ("note", "lunch"),
        ("stop", "--now", "--yes"),
        ("rollback", "--yes", "--step", "1"),
        ("pause", "--no-wait"),
    ):
        said = tolaria(*command, "--dir", copy)
        assert said.code == 3, said.out
        assert f"the socket of the run in {run_dir}, not of that in {copy}" in said.err
    assert tolaria("call", "Pause", "--dir", copy).code == 3
    assert ordered(live_run) == before
    said = tolaria("status", "--dir", copy, "--json")
    assert (said.code, said.json["live"], said.json["dir"]) == (3, False, str(copy))
    assert [row["live"] for row in tolaria("list", tmp_path, "--json").lines] == [False, True]
    assert tolaria("note", "lunch", "--dir", run_dir).code == 0
    assert tolaria("note", "lunch", "--socket", live_run.path).code == 0


def test_a_run_by_another_path_is_the_same_run(live_run, run_dir, tmp_path, tolaria):
    """A link to its folder, or a path with dots: the inode is compared, not the name."""
    (tmp_path / "link").symlink_to(run_dir)
    assert tolaria("note", "lunch", "--dir", tmp_path / "link").code == 0
    assert tolaria("note", "lunch", "--dir", run_dir / ".." / run_dir.name).code == 0


def test_one_bad_candidate_is_one_bad_row(live_run, run_dir, tmp_path, tolaria, monkeypatch):
    """Dead and circular links, files, folders that cannot be read: the other runs are listed all the same."""
    place = where.runtime_folder()
    place.mkdir(parents=True, mode=0o700)
    (place / "good").symlink_to(run_dir)
    (place / "dead").symlink_to(tmp_path / "nothing")
    (place / "circle").symlink_to(place / "circle")
    (place / "file").write_text("x")
    (place / ("n" * 200)).symlink_to(tmp_path / ("n" * 200) / "x")
    (place / "no run").mkdir()
    (place / "fifo").mkdir()
    os.mkfifo(place / "fifo" / "journal")
    (place / "bad").mkdir()
    (place / "bad" / "journal").mkdir()
    (place / "bad" / "control.sock").symlink_to("control.sock")
    (place / "forbidden").mkdir()
    is_dir = Path.is_dir

    def refusing(path: Path) -> bool:
        if path.parent.name == "forbidden" or path.name == "forbidden":
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refusing)
    rows = {row["name"]: row for row in tolaria("list", "--json").lines}
    assert rows["digits"]["live"]
    assert all(row["error"] for name, row in rows.items() if name != "digits")
    assert {"bad", "no run", "fifo"} <= rows.keys()
    (tmp_path / "forbidden").mkdir()
    rows = {row["name"]: row for row in tolaria("list", tmp_path, "--json").lines}
    assert rows["digits"]["live"]
    assert "Permission denied" in rows["forbidden"]["error"]


def test_a_path_of_a_link_is_relative_to_the_run(live_run, run_dir, monkeypatch, tmp_path):
    """Not to the folder that the command is given in."""
    live_run.path.rename(run_dir / "other.sock")
    (run_dir / "control.sock").symlink_to("other.sock")
    monkeypatch.chdir(tmp_path)
    with Client(where.socket_of(run_dir), folder=run_dir) as client:
        assert client.call("Status")["status"]["name"] == "digits"
    assert runs.is_live(runs.Target(run_dir, where.socket_of(run_dir)))
