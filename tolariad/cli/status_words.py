"""Format a run's status: several lines for `status`, one for `watch` and the progress of `tolariad run`.

The status is a mapping, so that one from the socket and one from a journal are formatted alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tolariad.cli.output import OWN_MARKS, counted, duration, number, painted, size
from tolariad.forensics.words import safe

_PHASE_COLOURS: Final = {
    "running": "green",
    "completed": "green",
    "paused": "yellow",
    "frozen": "red",
    "failed": "red",
    "stopped": "yellow",
}
_COLUMNS: Final = 80
_SAID_SHOWN: Final = 5
_DISK_ADVICE: Final = "if this paused the run, the run resumes by itself when there is space"
Status = Mapping[str, Any]


def status_lines(status: Status) -> Iterator[str]:
    """Yield the lines of `tolaria status`."""
    phase = str(status["phase"])
    where = f"pid {status['pid']}" if status["live"] else "no daemon"
    name = painted(safe(str(status["name"] or "(unnamed)")), "bold")
    yield f"{name}  {_phase(phase)}  ({where}, {safe(status['dir'])})"
    if status["ordered"]:
        yield f"  ordered     {status['ordered']}, at the next step boundary"
    for name in ("frozen", "last_error"):
        if status[name]:
            yield f"  {name.replace('_', ' '):<11} {safe(str(status[name]))}"
    if status.get("disk_low"):
        yield f"  disk        {safe(status['disk_low'])}; {_DISK_ADVICE}"
    if status.get("emergency"):
        level, why = status["emergency"]["level"], status["emergency"]["why"]
        yield f"  emergency   {painted(safe(level.upper()), 'red')}: {safe(why)}"
    if status.get("conservative"):
        yield f"  mode        {_conservative(status['conservative'])}"
    if status.get("memory"):
        yield f"  memory      {_memory(status['memory'])}"
    yield f"  progress    {_progress(status)}"
    yield f"  loss        {number(status['loss'], status['loss_state'])}  (lr {number(status['lr'])}, {_norm(status)})"
    yield f"  validation  accuracy {_accuracy(status)}, loss {number(status['validation_loss'])}"
    if status["steps_per_s"]:
        yield f"  speed       {status['steps_per_s']:.1f} steps/s, {duration(status['eta_s'])} left"
    yield f"  checkpoint  {_checkpoint(status)}"
    yield f"  journal     {_journal(status['journal'])}"
    if status["trainer"]:
        yield f"  trainer     {_trainer(status['trainer'])}"
    yield f"  rng seed    {status['rng_seed']}"
    yield from _said(status.get("said") or ())


def status_row(status: Status, columns: int | None = None) -> str:
    """Return one line: epoch, step, loss, accuracy, rate, steps per second, time left.

    If it is longer than `columns`, leave out the rate, and then the steps per second.
    """
    phase = str(status["phase"])
    parts = [
        f"epoch {status['epoch']}/{status['epochs']}",
        f"step {status['step']}" + (f"/{status['steps_total']}" if status["steps_total"] else ""),
        f"loss {number(status['loss'], status['loss_state'])}",
        f"acc {_accuracy(status, best=False)}",
        f"lr {number(status['lr'])}",
    ]
    if status["steps_per_s"]:
        parts.append(f"{status['steps_per_s']:.1f} steps/s")
        parts.append(f"{duration(status['eta_s'])} left")
    if phase != "running":
        parts.insert(0, _phase(phase))
    if status.get("conservative"):
        parts.append(painted("conservative", "yellow"))
    if status["rerunning_to"]:
        parts.append(f"re-running up to step {status['rerunning_to']}")
    for dropped in ("lr ", " steps/s"):
        if columns is not None and sum(map(_width, parts)) + 2 * (len(parts) - 1) > columns:
            parts = [part for part in parts if not (part.startswith(dropped) or part.endswith(dropped))]
    return "  ".join(parts)


def _width(part: str) -> int:
    """Return the columns that the part takes; colours take none."""
    return len(OWN_MARKS.sub("", part))


def said_lines(text: str, prefix: str) -> list[str]:
    """Wrap a sentence of the run to 80 columns. Further lines are indented to the end of `prefix`."""
    from textwrap import wrap  # not needed by most commands

    return wrap(safe(text), _COLUMNS, initial_indent=prefix, subsequent_indent=" " * len(prefix))


def _said(lines: Sequence[Status]) -> Iterator[str]:
    """Yield the run's newest actions, the newest last."""
    for index, one in enumerate(lines[-_SAID_SHOWN:]):
        yield from said_lines(f"{_clock(str(one['time']))}  {one['text']}", "  lately      " if not index else " " * 14)


def _clock(time: str) -> str:
    """Return date and time of an RFC 3339 time, to the second."""
    return f"{time[:10]} {time[11:19]}"


def _phase(phase: str) -> str:
    return painted(phase, _PHASE_COLOURS.get(phase, "cyan"))


def _progress(status: Status) -> str:
    step, total = status["step"], status["steps_total"]
    share = f" ({100 * step / total:.0f} %)" if total else ""
    rerun = f", re-running up to step {status['rerunning_to']}" if status["rerunning_to"] else ""
    return f"epoch {status['epoch']} of {status['epochs']}, step {step} of {total or '?'}{share}{rerun}"


def _norm(status: Status) -> str:
    return f"gradient norm {number(status['grad_norm'], status['grad_norm_state'])}"


def _accuracy(status: Status, *, best: bool = True) -> str:
    accuracy = status["accuracy"]
    if accuracy is None:
        return number(None, status["accuracy_state"])
    shown = f"{100 * accuracy:.2f} %"
    return f"{shown} (best {100 * status['best_accuracy']:.2f} %)" if best and status["best_accuracy"] else shown


def _checkpoint(status: Status) -> str:
    checkpoint = status["checkpoint"]
    if checkpoint is None:
        return f"none is usable: {safe(status['checkpoint_none'])}" if status.get("checkpoint_none") else "none yet"
    when = f"{duration(checkpoint['age_s'])} ago" if checkpoint["age_s"] is not None else checkpoint["time"]
    shown = f"{safe(checkpoint['id'])} at step {checkpoint['step']}, {size(checkpoint['size'])}, {when}"
    if not checkpoint.get("given_up"):
        return shown
    shown += f"; the one after it was given up: {safe(checkpoint['given_up'])}"
    is_behind = status["phase"] == "stopped" and checkpoint["step"] < status["step"]
    return f"{shown}; the next start continues from step {checkpoint['step'] + 1}" if is_behind else shown


def _journal(journal: Status) -> str:
    shown = f"{journal['seq']} events, segment {journal['segment']}"
    if journal["write_age_s"] and journal["write_age_s"] > 1:
        shown += f", the disk has not answered for {duration(journal['write_age_s'])}"
    return f"{shown}, FAILED: {safe(journal['failed'])}" if journal["failed"] else shown


def _memory(pressure: Status) -> str:
    part = safe(str(pressure["budget"])).removeprefix("memory_")
    held = f"{part} holds {pressure['percent']:.3g} % of it, over its share of {pressure['limit']:.3g} %"
    return (
        f"{painted('short', 'yellow')} since {safe(str(pressure['since']))}: {held}; no copies of checkpoints are kept"
    )


def _conservative(mode: Status) -> str:
    when = f"for {duration(mode['age_s'])}" if mode["age_s"] is not None else f"since {mode['since']}"
    healthy = counted(mode["healthy_epochs"], "healthy epoch")
    return f"{painted('conservative', 'yellow')} {when}, {healthy} since: {safe(mode['why'])}"


def _trainer(trainer: Status) -> str:
    shown = (
        f"{'pid ' + str(trainer['pid']) if trainer['alive'] else 'not running'}, incarnation {trainer['incarnation']}"
    )
    if trainer["heartbeat_age_s"] is not None:
        shown += f", activity {safe(str(trainer['activity']))}, heartbeat {duration(trainer['heartbeat_age_s'])} ago"
    if trainer["deaths_total"]:
        shown += f", {counted(trainer['deaths_total'], 'death')} (last: {safe(str(trainer['last_death']))})"
    return shown
