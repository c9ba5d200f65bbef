"""The tests have a place of their own: neither they nor a process that they start can see the user's runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import own_place
from tests.control.fakes import Recorder, Served
from tolariad.control.where import runtime_folder

LIST = (Path(sys.executable).with_name("tolaria"), "list", "--json")
NONE_SEEN = f"{Path(__file__)}::test_no_run_is_seen_here_and_no_folder_is_the_users"


def test_no_run_is_seen_here_and_no_folder_is_the_users():
    """`tolaria list` finds nothing; home, runtime, temporary and working folder are in the folder of the session."""
    listed = subprocess.run(LIST, capture_output=True, text=True, check=True)
    named = (
        "HOME",
        "TMPDIR",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
    )
    folders = [Path.home(), Path.cwd(), runtime_folder(), *(Path(os.environ[name]) for name in named)]

    assert listed.stdout == ""
    assert len(named) == 7
    assert [one for one in folders if not one.is_relative_to(own_place.session())] == []
    assert list(Path.cwd().iterdir()) == []
    assert "TOLARIA_RUN" not in os.environ


def test_a_live_run_of_the_user_is_seen_in_the_users_session_and_not_in_tests_that_it_starts(tmp_path, monkeypatch):
    """One run lies in ./runs and is linked in the runtime folder, as `make run` leaves it; a variable names it, too."""
    users = {"HOME": "home", "XDG_RUNTIME_DIR": "runtime", "TMPDIR": "temporary"}
    for name, folder in users.items():
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    run = tmp_path / "runs" / "digits"
    run.mkdir(parents=True)
    monkeypatch.setenv("TOLARIA_RUN", str(run))
    recorder = Recorder(run / "journal", segment_bytes=1 << 20)
    recorder.begin_run()
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", NONE_SEEN)
    with Served(recorder, run):
        seen, ended = (
            subprocess.run(one, cwd=tmp_path, capture_output=True, text=True, check=False) for one in (LIST, tests)
        )
    recorder.journal.close()

    assert '"digits"' in seen.stdout, seen
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout


@pytest.mark.parametrize(
    ("given", "folder", "why"),
    [
        ({}, ".", "its runtime folder is /tmp/tolaria-"),
        ({"XDG_RUNTIME_DIR": "/run/user/1"}, ".", "its runtime folder is /run/user/1/tolaria"),
        ({"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]}, ".", "its home is"),
        (os.environ | {"HOME": "/home/user"}, ".", "its home is /home/user"),
        (os.environ, own_place.ROOT, "where `runs` is"),
        (os.environ, own_place.ROOT / "examples", "where `runs` is"),
    ],
)
def test_a_process_that_would_see_the_users_is_not_started(template, given, folder, why):
    """Neither as a program nor as a fork of the template; the test that starts it fails and says why."""
    with pytest.raises(AssertionError, match=why):
        subprocess.run([sys.executable, "-c", "pass"], env=dict(given), cwd=folder, check=True)
    with pytest.raises(AssertionError, match=why):
        template.start(["list"], environment=given, folder=Path(folder), log=1, shells=0, program="tolaria")


def in_the_checkout(call, *arguments):
    with contextlib.chdir(own_place.ROOT):
        call(*arguments)


ABSENT = own_place.ROOT / "no such program"


@pytest.mark.parametrize(
    ("look", "why"),
    [
        (lambda: in_the_checkout(os.listdir, "runs"), "looks for the user's runs in .*/runs"),
        (lambda: list((own_place.ROOT / "runs").iterdir()), "looks for the user's runs in .*/runs"),
        (lambda: os.scandir(str(own_place.ROOT / "runs" / "digits")), "looks for the user's runs in .*/digits"),
        ((runtime_folder({}) / "a").open, "looks for the user's runs in /tmp/tolaria-"),
        (lambda: os.posix_spawn(ABSENT, [ABSENT], {}), "its runtime folder is /tmp/tolaria-"),
        (lambda: os.execve(ABSENT, [ABSENT], {}), "its runtime folder is /tmp/tolaria-"),
    ],
)
def test_a_test_that_would_see_the_users_fails_by_itself(look, why):
    """In its own process: by looking where they are, and by every way to become a program."""
    with pytest.raises(AssertionError, match=why):
        look()


def test_nothing_of_a_terminal_or_a_manager_is_in_the_environment():
    """The tests' own variables may be given; those of a run, of the system manager and of Slurm may not."""
    code = "import os; from tests.own_place import settle, leave; settle(); print(*os.environ); leave()"
    users = {"TOLARIA_FAILPOINT": "step", "NOTIFY_SOCKET": "/run/n", "SLURM_JOB_ID": "7", "XDG_DATA_DIRS": "/usr/share"}
    ours = {"TOLARIA_SEED": "3", "TOLARIA_BENCH_ROUNDS": "2"}
    asked = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | users | ours, capture_output=True, text=True, check=True
    )
    left = set(asked.stdout.split())

    assert left & users.keys() == set()
    assert left >= ours.keys()
    assert list(Path(os.environ["TMPDIR"]).glob("tt-*")) == []
