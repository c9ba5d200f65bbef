"""When a signal is a second one, which stops the run at once: after the stop is recorded, or if it never is."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from tolariad.core import messages as m
from tolariad.core.calc.settings.model import SignalSettings
from tolariad.daemon.signal_handler import SignalHandler


@pytest.fixture
async def handled(monkeypatch):
    """A handler whose clock and record are the test's, and what it has submitted."""
    given, now = [], SimpleNamespace(s=100.0, stop=None)
    durable = SimpleNamespace(run=now)
    kernel = SimpleNamespace(durable=durable, submit=lambda one, *_: given.append(one))
    handler = SignalHandler(SignalSettings(USR2="stop"), kernel, lambda _: None)
    monkeypatch.setattr(handler, "_loop", SimpleNamespace(time=lambda: now.s, call_later=lambda *_: None))
    handler.begin()
    return handler, given, now


def counts(given) -> list[int]:
    return [one.count for one in given if isinstance(one, m.SignalReceived)]


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_a_twin_counts_once_and_a_second_one_hastens(handled, which):
    """`timeout` sends two within a moment; a person sends the second when the first has shown an effect."""
    handler, given, now = handled
    handler._act(which)
    handler._act(which)
    assert (counts(given), handler.is_hurried) == ([1], False)
    now.stop = object()
    handler._act(which)
    assert (counts(given), handler.is_hurried) == ([1, 2], True)


async def test_without_a_record_a_second_one_hastens_after_a_while(handled):
    """The disk hangs: the daemon must be able to leave."""
    handler, given, now = handled
    handler._act(signal.SIGTERM)
    now.s += 1.5
    handler._act(signal.SIGTERM)

    assert (counts(given), handler.is_hurried) == ([1, 2], True)


async def test_a_warning_that_stops_is_no_first_signal(handled):
    """However often it comes; the SIGTERM after it is the first."""
    handler, given, now = handled
    handler._act(signal.SIGUSR2)
    now.stop = object()
    for which in (signal.SIGUSR2, signal.SIGTERM):
        handler._act(which)
    assert (counts(given), handler.is_hurried, handler.is_stop_ordered) == ([1, 1, 1], False, True)
    handler._act(signal.SIGINT)
    assert (counts(given), handler.is_hurried) == ([1, 1, 1, 2], True)
