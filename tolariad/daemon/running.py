"""`run`: the life of `tolariad run`, from the request to the exit code.

Promises: nothing is started before the journal's lock is held and every check has passed. However the daemon ends, no
process of the run is left.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
from collections.abc import Callable
from typing import Final

from tolariad import signals
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.daemon.live import Host, log_fields
from tolariad.daemon.opening import OpenRun, open_run
from tolariad.daemon.policy import DaemonPolicy
from tolariad.daemon.request import RunRequest, StartRefused, refusing
from tolariad.daemon.signal_handler import block_for_good
from tolariad.failpoints import reached
from tolariad.refusal import require_linux
from tolariad.supervisor.activation import ActivationError, PassedSocket, take_passed_socket
from tolariad.supervisor.notify import Notifier
from tolariad.telemetry.logs import DaemonLog

_log: Final = logging.getLogger(__name__)


def run(request: RunRequest) -> int:
    """Run until the end and return the exit code.

    Raises StartRefused (code and reason) if nothing was started, FolderLost if the run's folder was deleted or moved.
    Raises Terminated if SIGTERM came before the run was open.

    Call it in the main thread: signals arrive there, and a trainer dies with the thread that started it. After it has
    returned, the daemon's signals stay blocked: the process is to end with that code.
    """
    restore = signals.hold()
    try:
        return _run(request)
    except BaseException:
        restore()
        raise


def _run(request: RunRequest) -> int:
    require_linux()
    reached("start")
    # Print all stacks on a crash in native code, or on the SIGABRT of a watchdog.
    faulthandler.enable()
    notifier = Notifier(os.environ)
    with refusing(EXIT_IO, "", ActivationError, OSError):
        passed = take_passed_socket(os.environ)
    opened = open_run(request, _mode(request, passed), notifier)
    logging_ = opened.resolved.settings.logging
    log = DaemonLog(logging_.level, logging_.format, verbose=request.verbose)
    log.bind(lambda: log_fields(opened.run_dir, opened.state))
    try:
        for note in opened.resolved.notes:
            _log.warning("%s", note)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_live(request, opened, notifier, passed, log))
    except StartRefused:
        opened.journal.close()
        raise
    finally:
        log.close()


async def _live(
    request: RunRequest, opened: OpenRun, notifier: Notifier, passed: PassedSocket | None, log: DaemonLog
) -> int:
    try:
        policy = DaemonPolicy(request, opened, log.write)
        return await Host(request, opened, log, policy, notifier=notifier, passed=passed).live()
    finally:
        block_for_good()


def _mode(request: RunRequest, passed: PassedSocket | None) -> m.StartMode:
    if request.retry:
        return m.StartMode.RETRY
    return m.StartMode.ACTIVATED if passed is not None and passed.called else m.StartMode.EXPLICIT


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Use uvloop if it is installed: small messages take a quarter less time."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
