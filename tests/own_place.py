"""A place of the tests' own, so that no test sees the user's runs, settings or services.

`settle` gives this process a home, a runtime folder, a temporary folder and a working folder. It takes everything out
of the environment that the user's session has put there. Processes that tests start inherit that. `guard` refuses one
that would see the user's runs or home nevertheless. An audit hook of Python calls it, and refuses also what a test
itself looks for in the user's folders.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tolariad.control.where import runtime_folder

ROOT = Path(__file__).resolve().parents[1]
# A pipe that the first process of a session holds open: a process that serves the session reads it to know its end.
ALIVE = "alive"
# Variables of the tests themselves, which may be given on the command line.
_KNOBS = ("TOLARIA_SEED", "TOLARIA_RECORD_DECISIONS", "TOLARIA_CAMPAIGN_", "TOLARIA_BENCH_", "TOLARIA_STUDY_")
# What a terminal, the system manager or a scheduler has said to the process that starts the tests.
_OF_THE_SESSION = ("XDG_", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "DBUS_", "SLURM_", "NO_COLOR", "FORCE_COLOR")
# A socket's path ends at 107 bytes. Those in the runtime folder need 40, and the names of our folders 20.
_LONGEST = 40
# The folders of the tests: that of this session comes first.
_OWN = [Path("/dev/shm")]
# Where the user's runs are found: here, in the session that has begun the tests, and without a session.
_USERS = tuple(f"{path}/" for path in (ROOT / "runs", runtime_folder(), runtime_folder({})))


def settle() -> None:
    """Make the folders of this session, and set the environment."""
    given = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    _OWN.insert(0, Path(tempfile.mkdtemp(prefix="tt-", dir=given if len(given) <= _LONGEST else "/tmp")))
    os.mkfifo(session() / ALIVE)
    os.open(session() / ALIVE, os.O_RDWR)
    for name in list(os.environ):
        if name.startswith(_OF_THE_SESSION) or (name.startswith("TOLARIA_") and not name.startswith(_KNOBS)):
            del os.environ[name]
    # Where pytest keeps the folders of the last three sessions, and what hypothesis has found, is as it was. matplotlib
    # looks for fonts for seconds where it has kept no list of them.
    os.environ["PYTEST_DEBUG_TEMPROOT"] = given
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".hypothesis"))
    os.environ["MPLCONFIGDIR"] = str(ROOT / ".pytest_cache" / "matplotlib")
    _furnish(session())


def enter(worker: str = "") -> None:
    """Go into the working folder. A worker gets folders of its own.

    Not before the tests are collected: the arguments of pytest are relative to the user's folder.
    """
    place = session() / worker
    if worker:
        _furnish(place)
    os.chdir(place / "work")
    if not worker:  # which has inherited it
        sys.addaudithook(_audit)


def leave() -> None:
    """Remove the folders."""
    os.chdir(session().parent)
    shutil.rmtree(session(), ignore_errors=True)


def join(place: Path) -> None:
    """Count this process among those of the session that has this folder."""
    _OWN.insert(0, place)


def session() -> Path:
    """Return the folder of the session."""
    return _OWN[0]


def allow(folder: Path) -> None:
    """Count this folder among those of the tests."""
    _OWN.append(folder)


def guard(environ: Mapping[str, str], folder: Path) -> None:
    """Refuse a process that would see the user's runs or home. Raises AssertionError."""
    why = _sees(environ, folder.resolve())
    assert not why, f"a process of the tests would see the user's: {why}; see tests/own_place.py"


def _furnish(place: Path) -> None:
    home = place / "home"
    folders = {
        "HOME": home,
        "XDG_CONFIG_HOME": home / ".config",
        "XDG_CACHE_HOME": home / ".cache",
        "XDG_DATA_HOME": home / ".local" / "share",
        "XDG_STATE_HOME": home / ".local" / "state",
        "XDG_RUNTIME_DIR": place / "x",
        "TMPDIR": place / "t",
    }
    for name, folder in folders.items():
        folder.mkdir(mode=0o700, parents=True)
        os.environ[name] = str(folder)
    (place / "work").mkdir()
    tempfile.tempdir = None  # it has kept the former one


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if check := _CHECKS.get(event):
        check(*given)


def _starts(_program: object, _words: object, folder: str | bytes | None, environ: Mapping[str, str] | None) -> None:
    guard(os.environ if environ is None else environ, Path(os.fsdecode(folder or ".")))


def _becomes(program: object, words: object, environ: Mapping[str, str] | None) -> None:
    _starts(program, words, None, environ)


def _looks(path: object, *how: object) -> None:
    # `os.open` may have been given a folder's descriptor, which the event does not tell: `shutil.rmtree` does so.
    is_in_another_folder = how[:1] == (None,) and isinstance(path, str) and not path.startswith("/")
    if isinstance(path, str | os.PathLike) and not is_in_another_folder:
        found = os.path.abspath(path)  # noqa: PTH100 — it is called for every file, and asks no disk
        assert not f"{found}/".startswith(_USERS), f"a test looks for the user's runs in {found}"


# By the names of Python's audit events.
_CHECKS: dict[str, Callable[..., None]] = {
    "subprocess.Popen": _starts,
    "os.posix_spawn": _becomes,
    "os.exec": _becomes,
    "os.system": lambda _command: _starts(None, None, None, None),
    "os.listdir": _looks,
    "os.scandir": _looks,
    "open": _looks,
}


def _sees(environ: Mapping[str, str], folder: Path) -> str:
    if folder.is_relative_to(ROOT) and not _is_own(folder):
        return f"its working folder {folder} is in the checkout, where `runs` is"
    runtime, home = runtime_folder(environ), Path(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    if not _is_own(runtime):
        return f"its runtime folder is {runtime}"
    return "" if _is_own(home) else f"its home is {home}"


def _is_own(path: Path) -> bool:
    kept = Path(os.environ["PYTEST_DEBUG_TEMPROOT"]).glob("pytest-of-*")
    return any(path.is_relative_to(one) or path.resolve().is_relative_to(one.resolve()) for one in (*_OWN, *kept))
