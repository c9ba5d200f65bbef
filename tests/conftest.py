"""Fixtures for every test: a seed that can be given back, a fresh run folder, a folder that syncs quickly, torch."""

from __future__ import annotations

import gc
import multiprocessing
import os
import secrets
import signal
import tempfile
from pathlib import Path

import pytest

from tests import own_place, sampling, second_look, workers
from tests.core.reactions.checked import check_declarations, record_decisions
from tests.outside import programs

# Before any module keeps a folder or a variable of the user's.
own_place.settle()
MEMORY = Path("/dev/shm")
# Models of tests are small: a second thread waits for the first, and takes a core from the other tests. Before torch is
# imported, and for every process that a test starts. A test that needs more threads says so.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _seed_of_this_session() -> int:
    """Take the seed from TOLARIA_SEED, else draw one."""
    given = os.environ.get("TOLARIA_SEED")
    return int(given) if given else secrets.randbits(32)


_SEED = _seed_of_this_session()
# Workers and the processes that tests start inherit it: one seed for all of a session.
os.environ["TOLARIA_SEED"] = str(_SEED)
# Temporary folders may lie on a container's stacked file system, on which a daemon writes no journal unasked.
os.environ.setdefault("TOLARIA_ALLOW_FILESYSTEM", "1")
# Workers of a loader fork, also where Python 3.14 would start them by a server: each would import torch again, for
# seconds. Tests that are about another way name it. Programs that tests start have the default of their Python.
if "fork" in multiprocessing.get_all_start_methods() and multiprocessing.get_start_method(allow_none=True) is None:
    multiprocessing.set_start_method("fork")
# A shell that starts the suite in the background has ^C ignored by everything below it; tests send it on purpose.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A rule of core.rules.table.reactions may make declared events only, in every test.
check_declarations()
record_decisions()


def pytest_report_header() -> str:
    """Print the seed where every report begins."""
    return f"TOLARIA_SEED={_SEED} (set it to repeat the randomised tests)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the workers and of the second look."""
    workers.add_option(parser)
    second_look.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Let workers run the tests, draw cases, and count the folder of `--basetemp` among those of the tests."""
    config.pluginmanager.register(workers)
    config.pluginmanager.register(second_look)
    sampling.settle(_SEED, whole=_is_torture(config))
    if config.option.basetemp:
        own_place.allow(Path(config.option.basetemp).absolute())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw cases before pytest leaves out what its expression of markers excludes."""
    sampling.draw(items, _SEED, whole=_is_torture(config))


def _is_torture(config: pytest.Config) -> bool:
    return config.option.markexpr == "torture"


# The collector is off while four thousand tests are imported. Their objects are then frozen. A collection that walked
# them would take a third of a second each time, and none of them is ever freed.
gc.disable()


def pytest_collection_finish() -> None:
    """Switch the garbage collector on, for what tests make. From now on relative paths are the tests' own."""
    gc.freeze()
    gc.enable()
    own_place.enter()


_SEEN_LEFT: set[int] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item):
    """Fail a test that leaves workers, of a loader or others of multiprocessing, behind its fixtures.

    The garbage collector would end them in some later test, and torch waits five seconds for each one then.
    """
    yield
    left = {one.pid: one.name for one in multiprocessing.active_children() if one.pid not in _SEEN_LEFT}
    _SEEN_LEFT.update(left)
    if left:
        pytest.fail(f"{item.name} has left processes: {left}. End them in the test: feed.end_workers()", pytrace=False)


@pytest.fixture
def seed() -> int:
    """The seed of randomised tests: printed with a failure, taken back from TOLARIA_SEED."""
    print(f"TOLARIA_SEED={_SEED}")
    return _SEED


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run folder; short, because a socket's path ends at 107 bytes."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def template():
    """The process from which daemons and other programs are forked: it imports torch once for all workers."""
    from tests.campaign.forks import shared_template  # the mutation table copies a part of the tests only

    return shared_template()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to install the programs that skipped tests named."""
    skipped = terminalreporter.stats.get("skipped", ())
    if command := programs.to_install(report.longrepr[2] for report in skipped):
        terminalreporter.write_line(f"To run the tests that were skipped for want of a program: {command}")


def pytest_unconfigure() -> None:
    """Remove the folders of this session."""
    own_place.leave()


@pytest.fixture
def quick_path(tmp_path):
    """A folder on a file system in memory, if there is one: for tests that sync hundreds of times."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
