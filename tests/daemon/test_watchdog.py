"""The watchdog is sent while the loop runs and the kernel answers or writes; the trainer does not matter."""

from __future__ import annotations

import msgspec
import pytest

from tests.daemon.test_port import a_status
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.state.run_state import RunState
from tolariad.daemon.watchdog import Watchdog, status_line


class Words:
    """A notifier that keeps what it would send."""

    watchdog_s = 3.0

    def __init__(self) -> None:
        self.said: list[str] = []

    def status(self, text):
        self.said.append(text)

    def watchdog(self):
        self.said.append("WATCHDOG")

    def stopping(self):
        self.said.append("STOPPING")

    def extend(self, seconds):
        self.said.append(f"EXTEND {seconds:g}")


class KernelStub:
    """Answers pings, or not."""

    def __init__(self) -> None:
        self.answers = True
        self.write_started_ns = 0
        self.durable = RunState()

    def call(self, answer):
        if self.answers:
            answer()


@pytest.fixture
def parts():
    words, kernel, overdue = Words(), KernelStub(), []
    view = {"status": a_status()}
    attendant = Watchdog(words, kernel, lambda: view["status"], lambda: overdue.append(True), 0.0)
    return attendant, words, kernel, view, overdue


def fed(words: Words) -> bool:
    result = "WATCHDOG" in words.said
    words.said.clear()
    return result


def test_a_kernel_that_answers_feeds_the_watchdog(parts):
    """It is sent each round if the ping of the round before was answered."""
    attendant, words, *_ = parts
    for _ in range(3):
        attendant.check()
        assert fed(words)


def test_a_kernel_that_stands_still_starves_it(parts):
    """Without an answer to the ping and without a write in flight nothing is sent, until the kernel answers again."""
    attendant, words, kernel, *_ = parts
    kernel.answers = False
    attendant.check()
    assert fed(words)
    attendant.check()
    attendant.check()
    assert not fed(words)
    kernel.answers = True
    attendant._answer()
    attendant.check()
    assert fed(words)


def test_a_write_that_takes_long_is_said_and_not_punished(parts):
    """Inside a write the kernel cannot answer: the watchdog is sent, and the status shows the time of the write."""
    attendant, words, kernel, view, _ = parts
    kernel.answers = False
    kernel.write_started_ns = 1
    journal = msgspec.structs.replace(view["status"].journal, write_age_s=12.4)
    view["status"] = msgspec.structs.replace(view["status"], journal=journal)
    for _ in range(3):
        attendant.check()
        assert "12 s" in words.said[-1]
        assert fed(words)
    view["status"] = msgspec.structs.replace(view["status"], journal=msgspec.structs.replace(journal, write_age_s=9.0))
    attendant.check()
    assert not any("write" in line for line in words.said)


def test_a_stop_has_a_budget_that_a_moving_checkpoint_renews(parts):
    """Without a checkpoint the budget ends once; while one is written and heartbeats come, it is extended."""
    attendant, words, kernel, view, overdue = parts
    view["status"] = msgspec.structs.replace(a_status(beat_age_s=0.1), phase="stopping")
    kernel.durable = with_open_checkpoint()
    for _ in range(3):
        attendant.check()
    assert overdue == []
    assert words.said.count("STOPPING") == 1
    assert words.said.count("EXTEND 15") == 3

    kernel.durable = RunState()
    for _ in range(3):
        attendant.check()
    assert overdue == [True]


def with_open_checkpoint() -> RunState:
    open_ = st.OpenCheckpoint("c000001", m.CheckpointReason.STOP, m.Cause(1, 1))
    return msgspec.structs.replace(RunState(), checkpoints=st.Checkpoints(open=(open_,)))


def test_the_line_shows_what_an_operator_asks_first():
    """Phase, epoch, step, loss, accuracy; the name of a loss that is not finite; the reason of a freeze."""
    status = a_status()
    assert status_line(status) == "running; epoch 2/5, step 12, loss 0.25; accuracy 0.5000"
    frozen = msgspec.structs.replace(
        status, phase="frozen", loss=None, loss_state="nan", accuracy=None, frozen="no space"
    )
    assert status_line(frozen) == "frozen; epoch 2/5, step 12, loss nan; no space"


def test_a_defect_in_showing_is_not_taken_for_death(parts, caplog):
    """If the status line fails, the watchdog is still sent, and the log gives the reason."""
    attendant, words, _, view, _ = parts
    view["status"] = None
    for _ in range(3):
        attendant.check()
        assert fed(words)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
