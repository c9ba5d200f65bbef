"""Format a run's status: several lines for `status`, one for `watch` and the progress of `tolariad run`.

A status is a mapping, so that one from the socket and one from a journal are formatted alike.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from tolariad.cli.output import COLUMNS, counted, duration, number, painted, size
from tolariad.cli.rank_words import ranks_words
from tolariad.cli.wrapping import named, width
from tolariad.core.calc.text.phrases import COMMAND, listed, with_run
from tolariad.core.calc.text.repeats import Repeats, heard, rest
from tolariad.forensics.words import safe

_PHASE_COLOURS: Final = {
    "running": "green",
    "completed": "green",
    "paused": "yellow",
    "frozen": "red",
    "failed": "red",
    "stopped": "yellow",
}
_SAID_SHOWN: Final = 5
STARTS: Final = ("starting", "recovering")
# Activities of a trainer that starts.
_STARTING: Final = {
    "import": "importing torch",
    "build": "building the model",
    "data": "reading the data",
    "restore": "restoring the state",
    "compile": "compiling the model",
    "checkpoint": "writing a checkpoint",
    "hook": "calling the task's hooks",
    "validate": "trying evaluate",
}
_SPEED_RANK: Final = 1000
_VALIDATION_LOSS_RANK: Final = 1001
_RATE_RANK: Final = 1002
_RANKS_RANK: Final = 1003
FACTS_INDENT: Final = 14
_INDENT: Final = " " * FACTS_INDENT
_DISK_ADVICE: Final = "if this paused the run, the run resumes by itself when there is space"
Status = Mapping[str, Any]


def status_lines(status: Status) -> Iterator[str]:
    """Yield the lines of `tolaria status`."""
    by = "library, " if status.get("served_by") == "library" else ""
    place = f"{by}pid {status['pid']}" if status["live"] else "not live"
    name = painted(safe(str(status["name"] or "(unnamed)")), "bold")
    phase = painted(phase_words(status), "red") if status.get("dead") else _phase(str(status["phase"]))
    yield f"{name}  {phase}  ({place}, {safe(status['dir'])})"
    yield from _fact_lines(status)
    yield from _troubles(status)
    yield from _said(status)


def phase_words(status: Status) -> str:
    """Return the phase; for a run whose process was killed, that, and in which phase it was."""
    phase = str(status["phase"])
    return f"dead (was {phase})" if status.get("dead") else phase


def state_lines(status: Status, now: str) -> Iterator[str]:
    """Yield the page of `tolaria state`: `now` is the event that led to the state, and what is live is left out."""
    yield f"{painted(safe(str(status['name'] or '(unnamed)')), 'bold')}  {_phase(str(status['phase']))}"
    yield f"  {'after':<11} {now}"
    yield from _fact_lines({**status, "trainer": None})
    if status["troubles"]:
        counts = ", ".join(f"{one['event']} {one['count']}" for one in status["troubles"])
        yield f"  {'troubles':<11} {counts}"


def _fact_lines(status: Status) -> Iterator[str]:
    yield from (f"  {label:<11} {text}" for label, text in facts(status).items())


def facts(status: Status) -> dict[str, str]:
    """Return the facts that apply, each by its label, in the order in which they are shown."""
    emergency = status.get("emergency")
    found = {
        "ordered": status["ordered"] and f"{status['ordered']}, at the next step boundary",
        "frozen": safe(str(status["frozen"] or "")),
        "last error": safe(str(status["last_error"] or "")),
        "disk": status.get("disk_low") and f"{safe(status['disk_low'])}; {_DISK_ADVICE}",
        "detector": safe(str(status.get("detector") or "")),
        "stage": status.get("stage") and _stage(status["stage"]),
        "emergency": emergency and f"{painted(safe(emergency['level'].upper()), 'red')}: {safe(emergency['why'])}",
        "mode": status.get("conservative") and _conservative(status["conservative"]),
        "memory": status.get("memory") and _memory(status["memory"]),
        "strategy": status.get("strategy") and _strategy(status["strategy"]),
        "progress": _progress(status),
        "seeds": status.get("seeds") and _seeds(status["seeds"]),
        "pruning": status.get("pruning") and _pruning(status["pruning"]),
        "loss": _has(status, "loss")
        and f"{number(status['loss'], status['loss_state'])}  (lr {number(status['lr'])}, {_norm(status)})",
        "metrics": ", ".join(
            f"{named(name)} {number(value)}" for name, value in (status.get("step_metrics") or {}).items()
        ),
        "validation": _validation(status),
        "speed": status["steps_per_s"] and f"{status['steps_per_s']:.1f} steps/s, {duration(status['eta_s'])} left",
        "checkpoint": _checkpoint(status),
        "journal": _journal(status["journal"]),
        "trainer": status["trainer"] and _trainer(status["trainer"]),
        "ranks": status.get("ranks") and ranks_words(status["ranks"]),
        "telemetry": "; ".join(map(_receiver, status.get("receivers") or ())),
        "rng seed": str(status["rng_seed"]),
    }
    return {label: text for label, text in found.items() if text}


def status_row(status: Status, columns: int | None = None) -> str:
    """Return one line: stage, epoch, step, loss, metrics, rate, steps per second, time left.

    If it is longer than `columns`, leave out the rate, then the validation's loss, then the steps per second,
    then metrics.
    """
    return "  ".join(fitted([(0, place(status)), *figures(status)], columns))


def place(status: Status) -> str:
    """Return the stage, if it is not plain training, and epoch and step once there are any."""
    total = f"/{status['steps_total']}" if status["steps_total"] else ""
    parts = [stage(status)]
    if status["epoch"] or not parts[0]:
        parts += [f"epoch {status['epoch'] or 1}/{status['epochs']}", f"step {status['step']}{total}"]
    return "  ".join(part for part in parts if part)


def stage(status: Status) -> str:
    """Return the stage of the run: a start-up phase by its name, else the phase; empty while it trains."""
    phase, trainer = str(status["phase"]), status["trainer"] or {}
    if phase in STARTS:
        if status["rerunning_to"]:
            return painted(f"re-running up to step {status['rerunning_to']}", "cyan")
        activity = trainer.get("activity") if trainer.get("alive") else None
        word = _STARTING.get(activity, phase) if activity else "starting the trainer"
        return painted(word, "cyan")
    return "" if phase == "running" else _phase(phase)


def figures(status: Status) -> list[tuple[int, str]]:
    """Return what is measured, each with its rank: the highest is left out first, 0 never. Nothing at a start."""
    if not status["epoch"] or status["phase"] in STARTS:
        return []
    metrics = dict(status.get("metrics") or {})
    loss, accuracy = metrics.pop("loss", None), metrics.pop("accuracy", None)
    parts = [(0, f"loss {number(status['loss'], status['loss_state'])}")]
    parts += [(_VALIDATION_LOSS_RANK, f"val_loss {number(loss)}")] if loss is not None else []
    parts += [(1, f"acc {100 * accuracy:.2f} %")] if accuracy is not None else []
    parts += [(3 + n, f"{named(name)} {number(value)}") for n, (name, value) in enumerate(metrics.items())]
    parts.append((_RATE_RANK, f"lr {number(status['lr'])}"))
    if status["steps_per_s"]:
        parts.append((_SPEED_RANK, f"{status['steps_per_s']:.1f} steps/s"))
        parts.append((0, f"{duration(status['eta_s'])} left"))
    if (ranks := status.get("ranks")) and ranks["slowest"] is not None:
        parts.append((_RANKS_RANK, f"slowest rank {ranks['slowest']} ({ranks['share']:.0%})"))
    if status.get("conservative"):
        parts.append((1, painted("conservative", "yellow")))
    return parts


def fitted(parts: list[tuple[int, str]], columns: int | None) -> list[str]:
    """Return the texts of the parts; if they and the spaces between them are too wide, without those of high rank."""
    while columns is not None and sum(width(text) + 2 for _, text in parts) - 2 > columns:
        least = max(parts)
        if least[0] == 0:
            break
        parts = [part for part in parts if part is not least]
    return [text for _, text in parts]


def _has(status: Status, name: str) -> bool:
    """Return whether the run has this number; it may be one that is not finite."""
    return status[name] is not None or status.get(f"{name}_state") is not None


def said_lines(text: str, prefix: str, columns: int = COLUMNS) -> list[str]:
    """Wrap a sentence of the run. Further lines are indented to the end of `prefix`."""
    from textwrap import wrap  # not needed by most commands

    # A command is copied, so it stays on one line. `safe` leaves no NUL in a text.
    joined = COMMAND.sub(lambda command: command[0].replace(" ", "\0"), safe(text))
    is_whole = "\0" not in joined
    lines = wrap(
        *(joined, columns),
        initial_indent=prefix,
        subsequent_indent=" " * len(prefix),
        break_long_words=is_whole,
        break_on_hyphens=is_whole,
    )
    return [line.replace("\0", " ") for line in lines]


def _troubles(status: Status) -> Iterator[str]:
    """Yield for each kind of trouble the last one, and below it how many there were and the command that tells more."""
    for index, one in enumerate(status.get("troubles") or ()):
        first = "  troubles    " if not index else _INDENT
        yield from said_lines(f"{_clock(str(one['time']))}  {one['text']}", first)
        many = f"{one['count']} in all; " if one["count"] > 1 else ""
        # Not wrapped: the command is copied.
        yield f"{_INDENT}{many}tolaria why {safe(shlex.quote(status['dir']))} {one['why']}"


def _said(status: Status) -> Iterator[str]:
    """Yield the run's newest actions, the newest last, except those that are shown among the troubles."""
    shown = {one["seq"] for one in status.get("troubles") or ()}
    for index, (time, text) in enumerate(lately(status, shown)[-_SAID_SHOWN:]):
        yield from said_lines(f"{_clock(time)}  {text}", "  lately      " if not index else _INDENT)


def lately(status: Status, without: Container[int] = ()) -> list[tuple[str, str]]:
    """Return time and sentence of the run's newest actions, the newest last. `without`: events that are left out."""
    repeats, found = Repeats(), []
    for one in (said := status.get("said") or ()):
        if one["seq"] in without:
            continue
        repeats, lines = heard(repeats, one["event"], one.get("step"), one["text"])
        found += [(str(one["time"]), with_run(line, status["dir"])) for line in lines]
    if said:
        found += [(str(said[-1]["time"]), with_run(line, status["dir"])) for line in rest(repeats)[1]]
    return found


def _clock(time: str) -> str:
    """Return local date and time of an RFC 3339 time, to the second; as it is if it is outside the calendar."""
    try:
        return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return time


def _phase(phase: str) -> str:
    return painted(phase, _PHASE_COLOURS.get(phase, "cyan"))


def _progress(status: Status) -> str:
    step, total = status["step"], status["steps_total"]
    share = f" ({100 * step / total:.0f} %)" if total else ""
    rerun = f", re-running up to step {status['rerunning_to']}" if status["rerunning_to"] else ""
    return f"epoch {status['epoch']} of {status['epochs']}, step {step} of {total or '?'}{share}{rerun}"


def _norm(status: Status) -> str:
    return f"gradient norm {number(status['grad_norm'], status['grad_norm_state'])}"


def _validation(status: Status) -> str:
    """Return the metrics of the last validation by the task's names; accuracy and loss come first."""
    shown = [f"accuracy {_accuracy(status)}"] if _has(status, "accuracy") else []
    if _has(status, "validation_loss"):
        shown.append(f"loss {number(status['validation_loss'], status['validation_loss_state'])}")
    others = {name: value for name, value in (status.get("metrics") or {}).items() if name not in ("accuracy", "loss")}
    return ", ".join([*shown, *(f"{named(name)} {number(value)}" for name, value in others.items())])


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
    when = f"{duration(checkpoint['age_s'])} ago" if checkpoint["age_s"] is not None else _clock(checkpoint["time"])
    shown = f"{safe(checkpoint['id'])} at step {checkpoint['step']}, {size(checkpoint['size'])}, {when}"
    if not checkpoint.get("given_up"):
        return shown
    shown += f"; the one after it was given up: {safe(checkpoint['given_up'])}"
    is_behind = status["phase"] == "stopped" and checkpoint["step"] < status["step"]
    return f"{shown}; the next start continues from step {checkpoint['step'] + 1}" if is_behind else shown


def _journal(journal: Status) -> str:
    shown = f"{journal['seq']} events, segment {journal['segment']}"
    if journal["write_age_s"] and journal["write_age_s"] > 1:
        shown += f", a write has taken {duration(journal['write_age_s'])} so far"
    return f"{shown}, FAILED: {safe(journal['failed'])}" if journal["failed"] else shown


def _stage(told: Status) -> str:
    return f"since step {told['step']}: {safe(str(told['why']))}"


def _memory(pressure: Status) -> str:
    part = safe(str(pressure["budget"])).removeprefix("memory_")
    held = f"{part} holds {pressure['percent']:.3g} % of it, over its share of {pressure['limit']:.3g} %"
    kept = "two slots for snapshots are kept, no copies of checkpoints"
    return f"{painted('short', 'yellow')} since {safe(str(pressure['since']))}: {held}; {kept}"


def _strategy(told: Status) -> str:
    shown = f"asked {counted(told['asked'], 'time')}"
    if told["unanswered"]:
        shown += f", {told['unanswered']} without an answer"
    if told["answered_epoch"] is not None:
        shown += f", answered last after epoch {told['answered_epoch']}"
    if told["waits_for"] is not None:
        shown += f", training waits for its answer after epoch {told['waits_for']}"
    if told["fallback"] is not None:
        shown += f": {safe(told['fallback'])}"
    return f"{shown} {painted('(not asked for a while: it failed too often)', 'yellow')}" if told["open"] else shown


def _conservative(mode: Status) -> str:
    when = f"for {duration(mode['age_s'])}" if mode["age_s"] is not None else f"since {mode['since']}"
    healthy = counted(mode["healthy_epochs"], "healthy epoch")
    return f"{painted('conservative', 'yellow')} {when}, {healthy} since: {safe(mode['why'])}"


def _receiver(one: Status) -> str:
    counts = ", ".join(f"{one[name]} {name}" for name in ("sent", "waiting", "dropped", "thinned") if one[name])
    return f"{safe(one['to'])}: {counts or 'nothing yet'}" + (f" ({safe(one['why'])})" if one["why"] else "")


def _seeds(seeds: list[Status]) -> str:
    """Return the first slots with their stages, and how many more there are; alpha while a seed is blended in."""
    each = (
        f"{safe(one['slot'])} {one['stage']}" + (f" (alpha {one['alpha']:.3g})" if one["stage"] == "BLENDING" else "")
        for one in seeds
    )
    return listed(each)


def _pruning(told: Status) -> str:
    """Return the phase, what is masked and removed, and what is under way or failed."""
    shown = [told["phase"] + (f" ({safe(told['why'])})" if told["why"] else "")]
    if told["total"] is not None:
        channels = f"{told['masked']} of {counted(told['total'], 'channel')} masked, {told['removed']} removed"
        shown.append(f"{told['share']:.2%} of the parameters pruned: {channels}")
    if told["analyzing"] is not None:
        shown.append(f"cycle {told['analyzing']} is being analysed")
    elif (window := told["window"]) is not None:
        shown.append(f"the masks of cycle {window['cycle']} are watched until step {window['until_step']}")
    elif told["failures"] and told["why"] is None:
        failed = counted(told["failures"], "cycle") + (" in a row" if told["failures"] > 1 else "")
        shown.append(painted(f"{failed} failed", "yellow") + f": {safe(str(told['why_failed']))}")
    elif not told["cycles"]:
        shown.append("no checkpoint was analysed yet")
    return ", ".join(shown)


def _trainer(trainer: Status) -> str:
    shown = (
        f"{'pid ' + str(trainer['pid']) if trainer['alive'] else 'not running'}, incarnation {trainer['incarnation']}"
    )
    if trainer["heartbeat_age_s"] is not None:
        shown += f", activity {safe(str(trainer['activity']))}, heartbeat {duration(trainer['heartbeat_age_s'])} ago"
    if trainer["deaths_total"]:
        shown += f", {counted(trainer['deaths_total'], 'death')} (last: {safe(str(trainer['last_death']))})"
    if trainer.get("spare_bytes"):
        shown += f", a spare waits ({size(trainer['spare_bytes'])})"
    return shown
