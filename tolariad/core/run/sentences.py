"""The sentences for the run's own events: its begin, pauses and ends, its configuration, disk and journal."""

from __future__ import annotations

from typing import Final

from tolariad.core.run import words as run
from tolariad.core.text.giver_sentences import Sentences
from tolariad.core.text.phrases import because, counted, listed, size


def _disk_low(e: run.DiskLow) -> str:
    needed = size(e.floor)
    return f"The disk is low: {size(e.free)} are free, {needed} are needed. The run pauses until there is space."


def _disk_recovered(e: run.DiskRecovered) -> str:
    return f"The disk has space again: {size(e.free)} are free. The run goes on."


def _began(e: run.RunStarted) -> str:
    origin = f", with the weights of {e.began_from.checkpoint} of {e.began_from.folder}" if e.began_from else ""
    return f"Run {e.name} began: task {e.task}, seed {e.rng_seed}{origin}."


def _lost(e: run.GapRecorded) -> str:
    events = f"events {e.first_seq} to {e.last_seq}" if e.last_seq else f"all events from {e.first_seq} on"
    return f"A repair gave up {events}{because(e.why)}"


def _resumed(e: run.RunResumed) -> str:
    how = {run.Origin.START: "it was started again", run.Origin.DISK: "the disk has space again"}
    return f"The run goes on: {how.get(e.origin, 'it was resumed')}."


def _stopped(e: run.RunStopped) -> str:
    newest = f"; the newest checkpoint is {e.checkpoint}" if e.checkpoint else ", without a checkpoint"
    return f"The run stopped at step {e.step}{newest}{because(e.why)}"


def _completed(e: run.RunCompleted) -> str:
    done = f"{counted(e.step, 'step')}, {counted(e.epochs, 'epoch')}"
    return f"The run is complete: {done}; its last checkpoint is {e.checkpoint}."


SENTENCES: Final[Sentences] = {
    run.RunStarted: _began,
    run.DaemonStarted: "A daemon opened the run: pid {e.pid} on {e.host}, version {e.version}.",
    run.JournalRecovered: "At the end of {e.file}, {e.bytes_cut} bytes were set aside that were never acknowledged.",
    run.GapRecorded: _lost,
    run.ConfigChanged: lambda e: f"The configuration changed: {listed(e.keys)}.",
    run.RunPaused: "The run paused before step {e.applied_before_step}.",
    run.RunResumed: _resumed,
    run.RunStopped: _stopped,
    run.StopAborted: "A stop was cut short{why} The next start goes on.",
    run.RunCompleted: _completed,
    run.RunFailed: "The run failed{why}",
    run.RunRetried: "The failed run was started again{by}",
    run.RunFrozen: "The run halted{why} Use `tolaria resume`, `rollback` or `stop`, or start your own program again.",
    run.DiskLow: _disk_low,
    run.DiskRecovered: _disk_recovered,
}
