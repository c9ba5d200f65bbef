"""The files of a run: no link is followed, only regular files are opened, and modes and writers are checked."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from pathlib import Path

import pytest

from tolariad import run_files
from tolariad.run_files import UnsafeFile, UnsafeFolder

UPDATE = os.O_RDWR | os.O_CREAT


@pytest.fixture
def run(tmp_path):
    """A run's folder with a file in a folder of it, and beside it what belongs to somebody else."""
    (tmp_path / "victim").write_bytes(b"somebody else's")
    (tmp_path / "theirs").mkdir()
    run_files.make_run_folder(tmp_path / "run")
    run_files.make_folder(tmp_path / "run", "logs")
    return tmp_path / "run"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "victim")


def dangling(path: Path) -> None:
    path.symlink_to(path.parents[2] / "new")


def folder(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)
        made.bind(path.name)


@pytest.mark.parametrize("umask", [0, 0o077])
def test_modes_are_the_same_whatever_the_umask(tmp_path, umask):
    """0640 and 0750 for what is made; what was there keeps its own."""
    before = os.umask(umask)
    try:
        run_files.make_run_folder(tmp_path / "run")
        run_files.make_folder(tmp_path / "run", "logs")
        os.close(run_files.open_file(tmp_path / "run", "logs/trainer.log", UPDATE))
        run_files.replace_file(tmp_path / "run", "config.yaml", b"tolaria:")
    finally:
        os.umask(before)
    (tmp_path / "run" / "logs" / "trainer.log").chmod(0o600)
    os.close(run_files.open_file(tmp_path / "run", "logs/trainer.log", UPDATE))

    assert (mode(tmp_path / "run"), mode(tmp_path / "run" / "logs")) == (0o750, 0o750)
    assert mode(tmp_path / "run" / "config.yaml") == 0o640
    assert mode(tmp_path / "run" / "logs" / "trainer.log") == 0o600


def test_a_folder_hands_on_its_parents_group(tmp_path):
    """In a project's folder with the set-group-id bit the run's folders have it, too."""
    tmp_path.chmod(0o2750)
    run_files.make_run_folder(tmp_path / "run")
    assert mode(tmp_path / "run") == 0o2750


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, UPDATE, os.O_WRONLY | os.O_CREAT | os.O_APPEND])
@pytest.mark.parametrize(
    ("put", "said"),
    [
        (link, "a symbolic link"),
        (dangling, "a symbolic link"),
        (fifo, "a FIFO"),
        (folder, "a folder"),
        (unix_socket, "a socket"),
    ],
)
def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(run, put, said, flags, monkeypatch):
    """Within a second, by name, and what a link leads to is neither made nor changed."""
    monkeypatch.chdir(run)
    put(run / "logs" / "trainer.log")
    began = time.monotonic()
    with pytest.raises(UnsafeFile, match=f"is {said}.*trainer.log"):
        run_files.open_file(run, "logs/trainer.log", flags)

    assert time.monotonic() - began < 30
    assert (run.parent / "victim").read_bytes() == b"somebody else's"
    assert not (run.parent / "new").exists()


def test_a_link_in_the_place_of_a_folder_is_not_followed(run):
    """At any depth below the run's folder; the way to that folder is the user's own."""
    (run / "logs").rmdir()
    (run / "logs").symlink_to(run.parent / "theirs")
    for make in (
        lambda: run_files.open_file(run, "logs/trainer.log", UPDATE),
        lambda: run_files.make_folder(run, "logs"),
        lambda: run_files.open_folder(run, "logs"),
    ):
        with pytest.raises(UnsafeFile, match=r"symbolic link.*logs"):
            make()
    assert list((run.parent / "theirs").iterdir()) == []

    (run.parent / "latest").symlink_to(run)
    os.close(run_files.open_file(run.parent / "latest", "trainer.lock", UPDATE))
    assert (run / "trainer.lock").exists()


@pytest.mark.parametrize("name", ["../victim", "logs/../../victim", "", "logs/", ".", "/etc/hosts"])
def test_a_name_stays_within_the_run(run, name):
    """Names come from manifests, too."""
    with pytest.raises(UnsafeFile, match="not the name of a file in"):
        run_files.open_file(run, name, os.O_RDONLY)


def test_a_link_is_replaced_and_not_written_through(run):
    """A configuration that somebody has linked elsewhere: the link gives way."""
    (run / "config.yaml").symlink_to(run.parent / "victim")
    run_files.replace_file(run, "config.yaml", b"tolaria:")

    assert (run.parent / "victim").read_bytes() == b"somebody else's"
    assert (run / "config.yaml").read_bytes() == b"tolaria:"
    assert not (run / "config.yaml").is_symlink()


def test_a_full_disk_leaves_nothing_of_a_file_that_was_not_written(run, monkeypatch):
    """A part of it would take the space for good. The former content stays."""
    run_files.replace_file(run, "config.yaml", b"before")

    def full(file, name):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        run_files.replace_file(run, "config.yaml", b"after")
    monkeypatch.undo()

    assert [path.name for path in run.iterdir() if path.is_file()] == ["config.yaml"]
    assert (run / "config.yaml").read_bytes() == b"before"


def test_a_file_of_a_terabyte_is_refused_before_it_is_read(run):
    """A file with holes costs whoever made it nothing."""
    with (run / "config.resolved.json").open("wb") as file:
        file.truncate(1 << 40)
    began = time.monotonic()
    with pytest.raises(UnsafeFile, match="has more than 1000 bytes"):
        run_files.read_file(run, "config.resolved.json", 1000)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("name", "bits", "said"),
    [
        ("", 0o770, "group .* may write to it"),
        ("", 0o707, "everybody may write to it"),
        ("logs", 0o770, "group .* may write to it"),
    ],
)
def test_a_folder_that_others_may_write_to_is_refused(run, name, bits, said, monkeypatch):
    """With the folder, who may, and what to do; a group that may only read is meant."""
    monkeypatch.setattr(run_files, "_is_private_group", lambda *_: False)
    run.chmod(0o755)
    run_files.require_own(run)
    (run / name).chmod(bits)
    with pytest.raises(UnsafeFolder, match=f"{said}.*chmod g-w,o-w"):
        run_files.require_own(run)


def test_the_group_of_a_user_alone_may_write(run, monkeypatch):
    """Many systems make such a group with each user, and a umask of 002 with it; another member ends that."""
    me = run_files.pwd.struct_passwd(("ann", "x", os.getuid(), os.getgid(), "", "", ""))
    groups = {False: ("ann", "x", os.getgid(), ["ann"]), True: ("ann", "x", os.getgid(), ["ann", "bob"])}
    monkeypatch.setattr(run_files.pwd, "getpwuid", lambda _: me)
    run.chmod(0o770)
    monkeypatch.setattr(run_files.grp, "getgrgid", lambda _: run_files.grp.struct_group(groups[False]))
    run_files.require_own(run)
    monkeypatch.setattr(run_files.grp, "getgrgid", lambda _: run_files.grp.struct_group(groups[True]))
    with pytest.raises(UnsafeFolder, match="may write to it"):
        run_files.require_own(run)


def test_a_parent_that_everybody_writes_to_needs_its_sticky_bit(run):
    """As /tmp has it: without it anybody could put another folder in the run's place."""
    run.parent.chmod(0o1777)
    run_files.require_own(run)
    run.parent.chmod(0o777)
    with pytest.raises(UnsafeFolder, match=r"everybody may replace.*chmod \+t"):
        run_files.require_own(run)
    run.parent.chmod(0o755)


def test_a_folder_of_another_user_is_refused(run):
    """Its owner can change everything in it, whatever the modes say; so it is with a file that is written."""
    if os.geteuid() != 0:
        pytest.skip("giving a file to another user takes root")
    os.chown(run, 12345, -1)
    with pytest.raises(UnsafeFolder, match="belongs to user 12345, and this is user 0"):
        run_files.require_own(run)
    os.chown(run, 0, -1)
    (run / "trainer.lock").touch()
    os.chown(run / "trainer.lock", 12345, -1)
    with pytest.raises(UnsafeFolder, match=r"trainer\.lock.*belongs to user 12345"):
        run_files.require_own(run)
    with pytest.raises(UnsafeFile, match="belongs to user 12345"):
        run_files.open_file(run, "trainer.lock", os.O_RDWR)
    os.close(run_files.open_file(run, "trainer.lock", os.O_RDONLY))


@pytest.mark.parametrize(
    ("name", "put"),
    [("journal", "folder"), ("importance", "folder"), ("trainer.lock", "file"), ("logs/trainer.log", "file")],
)
def test_a_link_in_the_runs_folder_is_found_before_anything_is_written(run, name, put):
    """With its name and what to do."""
    (run / name).symlink_to(run.parent / ("theirs" if put == "folder" else "victim"))
    with pytest.raises(UnsafeFolder, match=f"{name}.*it is a symbolic link, not a {put} of the run"):
        run_files.require_own(run)
