"""`-n N`: run the tests in N forks of the process that has collected them.

So all modules, torch with them, are imported and collected once. Each fork takes one module after the other from a
queue. Those that took longest in the last session come first. A fork reports as `pytest-xdist`
does, with whose interface pytest's own plugins reckon. If a fork dies, its test has failed, and another fork goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import mmap
import os
import pickle
import selectors
import signal
import struct
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests import own_place
from tests.core.reactions.checked import record_in_this_fork
from tolariad.lifelines import die_with_parent

_SECONDS = "workers/seconds"
_LENGTH = struct.Struct("<I")
_PIECE = struct.Struct("<H")


def add_option(parser: pytest.Parser) -> None:
    """Add the options by which people know pytest-xdist. All of its ways to deal out tests are the one of here."""
    group = parser.getgroup("workers")
    said = "run the tests in N forks; auto: one for each core"
    group._addoption("-n", "--numprocesses", dest="workers", type=_count, default=0, metavar="N", help=said)
    group.addoption("--dist", help="taken and not used: forks take one module after the other")


def _count(said: str) -> int:
    return len(os.sched_getaffinity(0)) if said in ("auto", "logical") else int(said)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks, if that is asked for and there is something to run."""
    option = session.config.option
    if not option.workers or option.collectonly or option.usepdb or session.testsfailed or not session.items:
        return None
    pool = _Pool(session)
    try:
        pool.run(option.workers)
    finally:
        pool.end()
    return True


def pieces(items: list[pytest.Item], seconds: dict[str, float]) -> list[list[pytest.Item]]:
    """Return the items by module: first those of which nothing is known, then the longest."""
    modules = [list(group) for _, group in itertools.groupby(items, _module)]
    return sorted(modules, key=lambda some: -seconds.get(_module(some[0]), sys.maxsize))


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


class _Pool:
    """The forks, and what they report."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._hook = session, session.config.hook
        self._cache = getattr(session.config, "cache", None)
        self._before = self._cache.get(_SECONDS, {}) if self._cache else {}
        self._seconds: dict[str, float] = {}
        self._pieces = pieces(session.items, self._before)
        # The queue is a pipe: a read of one number is atomic, and its end is the end of the work.
        self._queue, filled = os.pipe()
        os.write(filled, b"".join(map(_PIECE.pack, range(len(self._pieces)))))
        os.close(filled)
        # Forks read this byte before each test: not zero, and they begin no more.
        self._stop = mmap.mmap(-1, 1)
        self._selector = selectors.DefaultSelector()
        self._names = itertools.count()
        session.config._tmp_path_factory.getbasetemp()  # that of each fork is in it
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # tests of several modules run at once

    def run(self, count: int) -> None:
        """Start the forks, and hand on what they report until all have ended."""
        for _ in range(min(count, len(self._pieces))):
            self._fork([])
        while self._selector.get_map():
            for key, _ in self._selector.select():
                fork, hears = key.data
                if not fork.has_ended:  # its end may stand before its last reports in this list, and has read them
                    hears(fork)
            if self._session.shouldfail or self._session.shouldstop:
                self._stop[0] = 1
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)
        if self._cache:
            self._cache.set(_SECONDS, self._before | self._seconds)

    def end(self) -> None:
        """End the forks that are left if this process is interrupted."""
        for pid in {key.data[0].pid for key in self._selector.get_map().values()}:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._selector.close()
        os.close(self._queue)

    def _fork(self, left: list[pytest.Item]) -> None:
        name = f"w{next(self._names)}"
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            os.close(reading)
            die_with_parent(parent)
            _work(self._session, name, self._taken(left, writing), writing, self._stop)
        os.close(writing)
        fork = _Fork(name, pid, reading, left)
        self._selector.register(reading, selectors.EVENT_READ, (fork, self._hear))
        # Not at the end of the pipe: processes that tests leave may hold it open.
        self._selector.register(fork.pidfd, selectors.EVENT_READ, (fork, self._end))

    def _taken(self, left: list[pytest.Item], tell: int) -> Iterator[pytest.Item]:
        """Yield the tests of the fork: those that another one has left, then piece by piece."""
        yield from left
        while number := os.read(self._queue, _PIECE.size):
            (piece,) = _PIECE.unpack(number)
            _send(tell, "takes", piece)
            yield from self._pieces[piece]

    def _hear(self, fork: _Fork) -> None:
        for message in fork.receive():
            match message:
                case ("takes", piece):
                    fork.left += self._pieces[piece]
                case ("begins", nodeid, location):
                    fork.at = fork.left.pop(0)
                    self._hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
                case ("reports", data):
                    report = self._hook.pytest_report_from_serializable(config=self._session.config, data=data)
                    module = report.nodeid.partition("::")[0]
                    self._seconds[module] = self._seconds.get(module, 0.0) + report.duration
                    self._tell(fork, report)
                case ("ends", nodeid, location):
                    fork.at = None
                    self._hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
                case ("warns", said):
                    self._hook.pytest_warning_recorded.call_historic(kwargs=said)

    def _end(self, fork: _Fork) -> None:
        self._hear(fork)
        fork.has_ended = True
        for descriptor in (fork.reading, fork.pidfd):
            self._selector.unregister(descriptor)
            os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        if code == 0:
            return
        if fork.at is None:
            raise RuntimeError(f"the worker {fork.name} ended with {code} between two tests")
        said = f"the worker {fork.name} ended with {code} in this test"
        self._tell(fork, pytest.TestReport(fork.at.nodeid, fork.at.location, {}, "failed", said, "call"))
        if not self._stop[0]:
            self._fork(fork.left)

    def _tell(self, fork: _Fork, report: pytest.TestReport) -> None:
        # By this attribute, which is pytest-xdist's, pytest's terminal knows that tests run side by side.
        report.node = SimpleNamespace(gateway=SimpleNamespace(id=fork.name), _workerinfocache=f"[{fork.name}]")
        self._hook.pytest_runtest_logreport(report=report)


class _Fork:
    """One fork, from the side of its parent: `left` are the tests that it has taken and not begun."""

    def __init__(self, name: str, pid: int, reading: int, left: list[pytest.Item]) -> None:
        self.name, self.pid, self.reading, self.left = name, pid, reading, left
        self.pidfd = os.pidfd_open(pid)
        self.at: pytest.Item | None = None
        self.has_ended = False
        self._bytes = bytearray()
        os.set_blocking(reading, False)

    def receive(self) -> Iterator[tuple]:
        """Read all that is there, and yield the messages that are complete."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.reading, 1 << 20):
                self._bytes += piece
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            yield pickle.loads(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]


def _send(tell: int, *message: object) -> None:
    given = pickle.dumps(message)
    given = memoryview(_LENGTH.pack(len(given)) + given)
    while given:
        given = given[os.write(tell, given) :]


def _work(session: pytest.Session, name: str, items: Iterator[pytest.Item], tell: int, stop: mmap.mmap) -> NoReturn:
    code = 1
    try:
        _become_worker(session.config, name, tell)
        record_in_this_fork()
        _run(session, items, stop)
        threading._shutdown()
        atexit._run_exitfuncs()
        code = 0
    except KeyboardInterrupt:
        pass  # the parent has it too
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(session: pytest.Session, items: Iterator[pytest.Item], stop: mmap.mmap) -> None:
    item = next(items, None)
    while item is not None:
        # The next one says to pytest which fixtures to keep.
        after = next(items, None)
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.shouldfail or session.shouldstop or stop[0]:
            session._setupstate.teardown_exact(None)
            return
        item = after


def _become_worker(config: pytest.Config, name: str, tell: int) -> None:
    """Report to the parent instead of to the terminal, and share no file with another fork."""
    manager = config.pluginmanager
    for plugin in ("terminalreporter", "lfplugin", "nfplugin"):
        if (found := manager.getplugin(plugin)) is not None:
            manager.unregister(found)
    manager.register(_Reports(config, tell))
    capture = manager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=True)
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)
    own_place.enter(name)


class _Reports:
    """The plugin of a fork that sends what happens to the parent."""

    def __init__(self, config: pytest.Config, tell: int) -> None:
        self._config, self._tell = config, tell

    def pytest_runtest_logstart(self, nodeid: str, location: tuple) -> None:
        _send(self._tell, "begins", nodeid, location)

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple) -> None:
        _send(self._tell, "ends", nodeid, location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        _send(self._tell, "reports", data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if when == "runtest":  # the parent has the others
            one = warning_message
            text = warnings.WarningMessage(str(one.message), one.category, one.filename, one.lineno)
            said = {"warning_message": text, "when": when, "nodeid": nodeid, "location": location}
            _send(self._tell, "warns", said)
