"""Describe an event in one plain sentence: one table, with an entry for each type of event.

The console, `tolaria events`, `tolaria why`, `tolaria status` and the library's log use it. An entry is a function or a
template of `str.format`. `{e}` is the event, and `{why}` its reason and the end of the sentence. `{by}` is the giver of
the order, the reason for it, and the end of the sentence.

Promises: pure. A sentence can be understood without the events around it. It contains no digest and no name of a field.
It may contain any text that an event contains, so it must be escaped before a terminal shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tolariad.core.base import Event
from tolariad.core.checkpoints import words as ck
from tolariad.core.control import words as cv
from tolariad.core.phrases import because, by, counted, last_line, last_name, listed, size, who
from tolariad.core.pruning_sentences import PRUNING
from tolariad.core.reaction_sentences import REACTIONS
from tolariad.core.run import words as run
from tolariad.core.steps import words as st
from tolariad.core.strategy_sentences import STRATEGY
from tolariad.core.trainer import words as tv


def sentence(event: Event) -> str:
    """Return the event in words."""
    say = SENTENCES[type(event)]
    if not isinstance(say, str):
        return say(event)
    return say.format(e=event, why=because(getattr(event, "why", "")), by=by(event))


def _skipped(e: st.StepSkipped) -> str:
    batch = f"batch {e.batch} of epoch {e.epoch}"
    norm = "" if e.grad_norm < 0 else f", its gradient norm {e.grad_norm:.6g}"
    figures = f"its loss is {e.loss:.6g}{norm}"
    match e.reason:
        case st.SkipReason.QUARANTINED:
            return f"Skipped {batch}: it is in quarantine."
        case st.SkipReason.OVERFLOW:
            return f"Made no update from {batch}: fp16 gradients overflowed. The loss scale is lowered."
        case st.SkipReason.SPIKE:
            return f"Skipped {batch}: {figures}, far above the usual values."
        case st.SkipReason.NON_FINITE:
            return f"Skipped {batch}: {figures}."


def _end_ordered(e: cv.EndOrdered) -> str:
    end, former = _end(e.epochs, e.steps), _end(e.former_epochs, e.former_steps)
    words = f"The training ends after {end}{f' instead of {former}' if former != end else ''}"
    words += by(e) if e.actor is None else f", ordered{by(e)}"
    return f"{words} {e.rates.rstrip('.')}." if e.rates else words


def _end(epochs: int | None, steps: int | None) -> str:
    return f"epoch {epochs}" if steps is None else f"step {steps}"


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


def _built(e: tv.ExecutionContextRecorded) -> str:
    a_epoch = f", {counted(e.steps_per_epoch, 'step')} an epoch" if e.steps_per_epoch else ""
    where = f"{e.environment.device}, torch {e.environment.torch}"
    other = f" Other data were accepted: {e.other_data.rstrip('.')}." if e.other_data else ""
    if e.former_steps_per_epoch:
        other = f"{other} An epoch had {counted(e.former_steps_per_epoch, 'step')} before."
    if changed := e.other_blueprints:
        which = f"Blueprint {last_name(changed[0])}" if len(changed) == 1 else counted(len(changed), "blueprint")
        other = f"{other} {which} changed."
    # What differs from before is reported at once, and is not to be lost among the rest.
    more = other or f" On {where}.{f' Note{because(listed(e.notes))}' if e.notes else ''}"
    return f"Trainer {e.incarnation} built the model: {e.parameters} parameters{a_epoch}.{more}"


def _scheduled(e: tv.SchedulingRecorded) -> str:
    own = f"Core {listed(e.daemon_cores)} is the recorder's own" if e.daemon_cores else "No process is pinned to a core"
    refused = f" The system refused: {e.refused.rstrip('.')}." if e.refused else ""
    return f"{own}{because(e.why) if not e.daemon_cores else '.'}{refused}"


def _raised(e: tv.ExceptionRaised) -> str:
    return f"An exception ended the training loop after step {e.step}{because(last_line(e.traceback))}"


def _died(e: tv.TrainerDied) -> str:
    how = {
        tv.DeathReason.SIGNAL: f"{e.signal or 'a signal'} ended it",
        tv.DeathReason.EXCEPTION: last_line(e.output) or "an exception ended it",
        tv.DeathReason.EXIT: "it exited" if e.exit_code is None else f"it exited with code {e.exit_code}",
        tv.DeathReason.HANG: "it hung",
        tv.DeathReason.MEMORY: "it was out of memory",
        tv.DeathReason.KILLED: "the daemon ended it",
        tv.DeathReason.WITH_DAEMON: "it ended with its daemon",
    }
    again = "" if e.restart_s is None else f" The next one starts in {e.restart_s:.3g} s."
    if again and e.in_program:
        again = " The next start of the program, or the next call of `train`, goes on."
    return f"Trainer {e.incarnation} died after step {e.step}{because(how[e.reason])}{again}"


def _stepped(e: st.StepCompleted) -> str:
    norm = "" if e.grad_norm < 0 else f", gradient norm {e.grad_norm:.6g}"
    return f"Step {e.step} of epoch {e.epoch}: loss {e.loss:.6g}{norm}, learning rate {e.lr:.6g}."


def _validated(e: st.ValidationFinished) -> str:
    named = (f"{name} {value:.6g}" for name, value in e.metrics.items())
    return f"Validation after epoch {e.epoch}: {listed(named) or 'no metrics'} ({counted(e.samples, 'sample')})."


_BEGUN: Final = {
    ck.CheckpointReason.START: "the run begins",
    ck.CheckpointReason.EPOCH: "an epoch ended",
    ck.CheckpointReason.INTERVAL: "its interval has passed",
    ck.CheckpointReason.ORDERED: "somebody ordered it",
    ck.CheckpointReason.STOP: "the run stops",
    ck.CheckpointReason.END: "the training ended",
    ck.CheckpointReason.BEST: "the epoch is the best so far",
}


def _committed(e: ck.CheckpointCommitted) -> str:
    best = " It ends the best epoch so far." if e.best else ""
    return f"Checkpoint {e.id} of step {e.step} is on disk: {size(e.size)} in {e.seconds:.2g} s.{best}"


def _training(e: ck.TrainingStarted) -> str:
    origin = f", from {e.checkpoint}" if e.checkpoint else ""
    return f"Trainer {e.incarnation} is ready to train after step {e.step}{origin}."


def _rerun(e: ck.RerunFinished) -> str:
    if e.last < e.first:
        return f"No step had to be run again, only batches that were skipped ({e.skipped})."
    steps, first = e.compared + e.skipped, e.first_difference
    again = counted(steps, "re-run step")
    if first is None:
        return f"Re-run finished: {steps} of {again} {'equals' if steps == 1 else 'equal'} the journal, bit for bit."
    differing = min(first.count, steps) if steps else first.count
    verb = "differs" if differing == 1 else "differ"
    expected = f", as expected ({e.expected})" if e.expected else ""
    return f"Re-run finished: {differing} of {again} {verb} from the journal{expected}: {_differs(first)}."


def _differs(found: ck.Difference) -> str:
    """Return which value differs first, before and after, as decimal numbers."""
    was, now = _values(found.expected, found.found)
    return f"{_VALUES.get(found.field, found.field)} of step {found.step} was {was} and is {now}"


def _values(was: str, found: str) -> tuple[str, str]:
    """Return both values with as many digits as it takes to tell them apart. Older journals have hexadecimal floats."""
    try:
        a, b = float.fromhex(was), float.fromhex(found)
    except (ValueError, OverflowError):
        return was, found  # words, such as those of a skipped batch
    if "0x" not in f"{was}{found}":
        return was, found
    short = f"{a:.6g}", f"{b:.6g}"
    return short if short[0] != short[1] else (repr(a), repr(b))


_VALUES: Final = {"loss": "the loss", "grad_norm": "the gradient norm", "lr": "the learning rate", "rates": "the rates"}


def _ordered_stop(e: cv.StopRequested) -> str:
    how = {run.StopMode.GRACEFUL: "A stop", run.StopMode.NOW: "A stop without a checkpoint"}
    return f"{how.get(e.mode, 'An immediate stop')} was ordered{by(e)}"


def _noted(e: cv.NoteAdded) -> str:
    return f"Note{f' by {who(e)}' if e.actor is not None else ''}{because(e.text)}"


# Type of event: a template, or a function. docs/events.md describes the types.
SENTENCES: Final[dict[type[Event], str | Callable[[Any], str]]] = {
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
    tv.TrainerStarted: "Trainer {e.incarnation} was started as pid {e.pid}.",
    tv.ExecutionContextRecorded: _built,
    tv.SchedulingRecorded: _scheduled,
    tv.TrainerHung: "Trainer {e.incarnation} was silent for {e.silent_s:.3g} s, over its limit of {e.limit_s:.3g} s.",
    tv.ExceptionRaised: _raised,
    tv.TrainerDied: _died,
    tv.TrainerEnded: "Trainer {e.incarnation} ended after step {e.step}, as it was told.",
    tv.TrainerUnkillable: "Trainer {e.incarnation} (pid {e.pid}) does not end, even by SIGKILL. No other is started.",
    st.StepCompleted: _stepped,
    st.MetricsNamed: lambda e: f"The steps have metrics: {listed(e.names)}.",
    st.StepSkipped: _skipped,
    st.EpochStarted: "Epoch {e.epoch} began.",
    st.EpochFinished: "Epoch {e.epoch} ended at step {e.step}: mean loss {e.train_loss:.6g}, {e.seconds:.3g} s.",
    st.ValidationBegun: "The validation after epoch {e.epoch} began.",
    st.ValidationFinished: _validated,
    st.ValidationAborted: "The validation after epoch {e.epoch} did not end{why}",
    st.ValidationImproved: "Epoch {e.epoch} is the best so far: {e.metric} {e.value:.6g}.",
    st.LimitReached: "The training ended at step {e.step} of epoch {e.epoch}, by the limit on {e.limit.value}.",
    ck.CheckpointBegun: lambda e: f"Checkpoint {e.id} was begun: {_BEGUN[e.reason]}.",
    ck.CheckpointCommitted: _committed,
    ck.CheckpointPromoted: "Enough healthy steps followed checkpoint {e.id}: the run may go back to it by itself.",
    ck.CheckpointAborted: "Checkpoint {e.id} was not made{why}",
    ck.CheckpointRejected: "Checkpoint {e.id} is damaged, in {e.file}{why} The next older one is tried.",
    ck.CheckpointUnfit: "Checkpoint {e.id} does not fit the model{why}",
    ck.CheckpointDeletionBegun: "Checkpoint {e.id} is being removed{why}",
    ck.CheckpointDeleted: lambda e: f"Checkpoint {e.id} was removed, which freed {size(e.freed)}.",
    ck.CheckpointDeletionAborted: "Checkpoint {e.id} could not be removed{why}",
    ck.StorageExhausted: lambda e: f"Checkpoints that must stay take {size(e.used)}; the quota is {size(e.quota)}.",
    ck.StorageRelieved: lambda e: f"The checkpoints fit into the quota of {size(e.quota)} again.",
    ck.TrainingStarted: _training,
    ck.RerunBegun: "Steps {e.first} to {e.last} are being run again from {e.checkpoint}.",
    ck.RerunFinished: _rerun,
    ck.RerunAborted: "The re-run did not reach its end{why}",
    ck.RerunDiverged: lambda e: f"The re-run differs from the journal, and the run stops: {_differs(e.difference)}.",
    cv.PauseRequested: "A pause was ordered{by}",
    cv.ResumeRequested: "A resume was ordered{by}",
    cv.StopRequested: _ordered_stop,
    cv.CheckpointRequested: "A checkpoint was ordered{by}",
    cv.NoteAdded: _noted,
    cv.EndOrdered: _end_ordered,
    cv.CommandRefused: "The order {e.command} was refused{why}",
    cv.TelemetryDropped: lambda e: f"There was no room for {counted(sum(e.dropped.values()), 'telemetry message')}.",
    cv.ReportRefused: "Trainer {e.incarnation} contradicts the journal and is ended{why}",
    **REACTIONS,
    **STRATEGY,
    **PRUNING,
}
