"""The sentences for the run's own events: its begin, pauses and ends, its configuration, disk and journal."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because, counted, listed, size
from tolariad.core.messages.sentences.givers import Sentences


def _disk_low(e: m.DiskLow) -> str:
    needed = size(e.floor)
    return f"The disk is low: {size(e.free)} are free, {needed} are needed. The run pauses until there is space."


def _disk_recovered(e: m.DiskRecovered) -> str:
    return f"The disk has space again: {size(e.free)} are free. The run goes on."


def _began(e: m.RunStarted) -> str:
    origin = f", with the weights of {e.began_from.words}" if e.began_from else ""
    return f"Run {e.name} began: task {e.task}, seed {e.rng_seed}{origin}."


def _lost(e: m.GapRecorded) -> str:
    events = f"events {e.first_seq} to {e.last_seq}" if e.last_seq else f"all events from {e.first_seq} on"
    return f"A repair gave up {events}{because(e.why)}"


def _resumed(e: m.RunResumed) -> str:
    how = {m.Origin.START: "it was started again", m.Origin.DISK: "the disk has space again"}
    return f"The run goes on: {how.get(e.origin, 'it was resumed')}."


def _stopped(e: m.RunStopped) -> str:
    newest = f"; the newest checkpoint is {e.checkpoint}" if e.checkpoint else ", without a checkpoint"
    return f"The run stopped at step {e.step}{newest}{because(e.why)}"


def _completed(e: m.RunCompleted) -> str:
    done = f"{counted(e.step, 'step')}, {counted(e.epochs, 'epoch')}"
    return f"The run is complete: {done}; its last checkpoint is {e.checkpoint}."


SENTENCES: Final[Sentences] = {
    m.RunStarted: _began,
    m.DaemonStarted: "A daemon opened the run: pid {e.pid} on {e.host}, version {e.version}.",
    m.JournalRecovered: "At the end of {e.file}, {e.bytes_cut} bytes were set aside that were never acknowledged.",
    m.GapRecorded: _lost,
    m.ConfigChanged: lambda e: f"The configuration changed: {listed(e.keys)}.",
    m.RunPaused: "The run paused before step {e.applied_before_step}.",
    m.RunResumed: _resumed,
    m.RunStopped: _stopped,
    m.StopAborted: "A stop was cut short{why} The next start goes on.",
    m.RunCompleted: _completed,
    m.RunFailed: "The run failed{why}",
    m.RunRetried: "The failed run was started again{by}",
    m.RunFrozen: "The run halted{why} Use `tolaria resume`, `rollback` or `stop`, or start your own program again.",
    m.DiskLow: _disk_low,
    m.DiskRecovered: _disk_recovered,
}
