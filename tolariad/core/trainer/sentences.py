"""The sentences for a trainer's process: what it built, and how it ended."""

from __future__ import annotations

from typing import Final

from tolariad.core.text.giver_sentences import Sentences
from tolariad.core.text.phrases import because, counted, last_line, last_name, listed
from tolariad.core.trainer import words as tv


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


def _inexact(e: tv.InexactDataFound) -> str:
    return f"The data do not repeat themselves{because(e.why)}"


def _noted(e: tv.DataNoted) -> str:
    return f"A note on the data{because(e.why)}"


SENTENCES: Final[Sentences] = {
    tv.InexactDataFound: _inexact,
    tv.DataNoted: _noted,
    tv.TrainerStarted: "Trainer {e.incarnation} was started as pid {e.pid}.",
    tv.ExecutionContextRecorded: _built,
    tv.SchedulingRecorded: _scheduled,
    tv.TrainerHung: "Trainer {e.incarnation} was silent for {e.silent_s:.3g} s, over its limit of {e.limit_s:.3g} s.",
    tv.ExceptionRaised: _raised,
    tv.TrainerDied: _died,
    tv.TrainerEnded: "Trainer {e.incarnation} ended after step {e.step}, as ordered.",
    tv.TrainerUnkillable: "Trainer {e.incarnation} (pid {e.pid}) does not end, even by SIGKILL. No other is started.",
}
