"""Fixtures: start daemons, and end those that a failing test leaves."""

from __future__ import annotations

import pytest

from tests.daemon.harness import DaemonProcess


@pytest.fixture
def start(run_dir):
    """Starts daemons on one run folder."""
    started = []

    def start_one(**asked) -> DaemonProcess:
        started.append(DaemonProcess(asked.pop("run_dir", run_dir), **asked))
        return started[-1]

    yield start_one
    for one in started:
        if one.process.poll() is None:
            one.kill()
