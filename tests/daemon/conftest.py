"""Fixtures: start daemons, and end those that a failing test leaves."""

from __future__ import annotations

import pytest

from tests.daemon.harness import DaemonProcess, ForkedDaemon


@pytest.fixture
def start(run_dir):
    """Starts daemons on one run folder: as forks, or as a user does."""
    started = []

    def start_one(*, as_user: bool = False, **asked) -> DaemonProcess:
        kind = DaemonProcess if as_user else ForkedDaemon
        started.append(kind(asked.pop("run_dir", run_dir), **asked))
        return started[-1]

    yield start_one
    for one in started:
        if one.process.poll() is None:
            one.kill()
