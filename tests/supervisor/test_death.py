"""The class of a death follows from its exit status and from other evidence."""

from __future__ import annotations

import signal

import pytest

from tolariad.core import messages as m
from tolariad.supervisor.process import Evidence, Exit, death_reason

KILLED = Exit(signal_number=signal.SIGKILL)
TRACEBACK = 'Traceback (most recent call last):\n  File "task.py", line 3\n'


@pytest.mark.parametrize(
    ("exit_", "evidence", "reason"),
    [
        (KILLED, Evidence(), m.DeathReason.SIGNAL),
        (KILLED, Evidence(oom_kills=0), m.DeathReason.SIGNAL),
        (KILLED, Evidence(oom_kills=1), m.DeathReason.MEMORY),
        (Exit(signal_number=signal.SIGSEGV), Evidence(oom_kills=1), m.DeathReason.SIGNAL),
        (KILLED, Evidence(killed_by_us=True, oom_kills=1), m.DeathReason.KILLED),
        (Exit(signal_number=signal.SIGSEGV), Evidence(killed_by_us=True), m.DeathReason.SIGNAL),
        (KILLED, Evidence(killed_by_us=True, hung=True), m.DeathReason.HANG),
        (Exit(code=1), Evidence(output=TRACEBACK + "ValueError: no"), m.DeathReason.EXCEPTION),
        (Exit(code=1), Evidence(output=TRACEBACK + "MemoryError"), m.DeathReason.MEMORY),
        (Exit(code=1), Evidence(output=TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory"), m.DeathReason.MEMORY),
        (
            Exit(code=1),
            Evidence(output=TRACEBACK + "MemoryError\n" + TRACEBACK + "KeyError: 1"),
            m.DeathReason.EXCEPTION,
        ),
        (Exit(code=1), Evidence(output="usage: trainer"), m.DeathReason.EXIT),
        (Exit(code=0), Evidence(output=TRACEBACK + "ValueError: caught and printed"), m.DeathReason.EXIT),
    ],
)
def test_evidence_decides(exit_, evidence, reason):
    """Death by memory needs evidence (the kernel's count, or the last traceback).

    A process that we killed has no other cause.
    """
    assert death_reason(exit_, evidence) is reason


def test_signals_have_names():
    """This includes signals for which Python has no name."""
    assert (KILLED.signal_name, Exit(signal_number=40).signal_name) == ("SIGKILL", "signal 40")
    assert Exit(code=3).signal_name == ""
