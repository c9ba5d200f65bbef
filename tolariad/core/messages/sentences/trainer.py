"""The sentences for a trainer's process: what it built, and how it ended."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import because, counted, last_line, last_name, listed
from tolariad.core.messages.sentences.givers import Sentences


def _built(e: m.ExecutionContextRecorded) -> str:
    a_epoch = f", {counted(e.steps_per_epoch, 'step')} an epoch" if e.steps_per_epoch else ""
    where = f"{e.environment.device}, torch {e.environment.torch}"
    other = f" Other data were accepted: {e.other_data.rstrip('.')}." if e.other_data else ""
    if e.former_steps_per_epoch:
        other = f"{other} An epoch had {counted(e.former_steps_per_epoch, 'step')} before."
    if e.other_code:
        first, *further = e.other_code
        which = f"{first} and {len(further)} more" if further else first
        other = f"{other} Code changed: {which}."
    if changed := e.other_blueprints:
        which = f"Blueprint {last_name(changed[0])}" if len(changed) == 1 else counted(len(changed), "blueprint")
        other = f"{other} {which} changed."
    # What differs from before is reported at once, and is not to be lost among the rest.
    more = other or f" On {where}.{f' Note{because(listed(e.notes))}' if e.notes else ''}"
    size = "" if e.other_code else f": {e.parameters} parameters{a_epoch}"
    return f"Trainer {e.incarnation} built the model{size}.{more}"


def _scheduled(e: m.SchedulingRecorded) -> str:
    own = f"Core {listed(e.daemon_cores)} is the recorder's own" if e.daemon_cores else "No process is pinned to a core"
    refused = f" The system refused: {e.refused.rstrip('.')}." if e.refused else ""
    return f"{own}{because(e.why) if not e.daemon_cores else '.'}{refused}"


def _spare(e: m.SpareChanged) -> str:
    if e.spare is m.Spare.READY:
        return f"A spare (pid {e.pid}) waits to become trainer {e.incarnation}. It holds {e.memory >> 20} MiB."
    if e.spare is m.Spare.USED:
        return f"The spare (pid {e.pid}) became trainer {e.incarnation}."
    return f"The spare (pid {e.pid}) was given up{because(e.why)}"


def _raised(e: m.ExceptionRaised) -> str:
    return f"An exception ended the training loop after step {e.step}{because(last_line(e.traceback))}"


def _hung(e: m.TrainerHung) -> str:
    who = f"Rank {e.rank} of trainer {e.incarnation}" if e.rank else f"Trainer {e.incarnation}"
    was = "was stopped by a signal" if e.activity == "stopped" else "was silent"
    return f"{who} {was} for {e.silent_s:.3g} s, over its limit of {e.limit_s:.3g} s."


def _next(restart_s: float) -> str:
    return f" The next one starts in {restart_s:.3g} s." if restart_s else " The next one starts at once."


def _died(e: m.TrainerDied) -> str:
    it = f"rank {e.rank}" if e.rank else "it"
    how = {
        m.DeathReason.SIGNAL: f"{e.signal or 'a signal'} ended {it}",
        m.DeathReason.EXCEPTION: last_line(e.output) or f"an exception ended {it}",
        m.DeathReason.EXIT: f"{it} exited" if e.exit_code is None else f"{it} exited with code {e.exit_code}",
        m.DeathReason.HANG: f"{it} hung",
        m.DeathReason.MEMORY: f"{it} was out of memory",
        m.DeathReason.KILLED: "the daemon ended it",
        m.DeathReason.WITH_DAEMON: "it ended with its daemon",
    }
    again = "" if e.restart_s is None else _next(e.restart_s)
    if again and e.in_program:
        again = " The next start of the program, or the next call of `train`, goes on."
    return f"Trainer {e.incarnation} died after step {e.step}{because(how[e.reason])}{again}"


def _inexact(e: m.InexactDataFound) -> str:
    return f"The data do not repeat themselves{because(e.why)}"


def _noted(e: m.DataNoted) -> str:
    return f"A note on the data{because(e.why)}"


SENTENCES: Final[Sentences] = {
    m.InexactDataFound: _inexact,
    m.DataNoted: _noted,
    m.TrainerStarted: "Trainer {e.incarnation} was started as pid {e.pid}.",
    m.ExecutionContextRecorded: _built,
    m.SchedulingRecorded: _scheduled,
    m.SpareChanged: _spare,
    m.TrainerHung: _hung,
    m.ExceptionRaised: _raised,
    m.TrainerDied: _died,
    m.TrainerEnded: "Trainer {e.incarnation} ended after step {e.step}, as ordered.",
    m.TrainerUnkillable: "Trainer {e.incarnation} (pid {e.pid}) does not end, even by SIGKILL. No other is started.",
}
