"""Fixtures for every test: a seed that can be given back, a fresh run folder, a folder that syncs quickly, torch."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis
import hypothesis.core
import pytest

from tests.core.reactions.checked import check_declarations, record_decisions

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
# A shell that starts the suite in the background has ^C ignored by everything below it; tests send it on purpose.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A rule of core.reactions may make declared events only, in every test.
check_declarations()
record_decisions()

# No deadline: two busy cores are not the property's fault. One seed governs hypothesis as well, so that a failure
# anywhere is repeated by the one variable that the header prints.
hypothesis.settings.register_profile("house", deadline=None, print_blob=True)
hypothesis.settings.load_profile("house")
hypothesis.core.global_force_seed = _SEED


def pytest_report_header() -> str:
    """Print the seed where every report begins."""
    return f"TOLARIA_SEED={_SEED} (set it to repeat the randomised tests)"


def pytest_configure(config: pytest.Config) -> None:
    """Say to the workers whether `--basetemp` was given: xdist gives it to each of them."""
    if config.option.basetemp and not hasattr(config, "workerinput"):
        os.environ["TOLARIA_BASETEMP"] = str(config.option.basetemp)


# The collector is off while four thousand tests are imported. Their objects are then frozen. A collection that walked
# them would take a third of a second each time, and none of them is ever freed.
gc.disable()


def pytest_collection_finish() -> None:
    """Switch the garbage collector on, for what tests make."""
    gc.freeze()
    gc.enable()


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
    """The process from which daemons and other programs are forked: it imports torch once."""
    from tests.campaign.forks import shared_template  # the mutation table copies a part of the tests only

    return shared_template()


def pytest_sessionfinish() -> None:
    """End the template, if one was started."""
    if forks := sys.modules.get("tests.campaign.forks"):
        forks.end_shared_template()


@pytest.fixture
def quick_path(tmp_path):
    """A folder on a file system in memory, if there is one: for tests that sync hundreds of times."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
