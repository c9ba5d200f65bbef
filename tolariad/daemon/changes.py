"""Whether an existing run may go on with another configuration, and what it says about that.

Promises: a refusal names every key that stands in the way, with its old and its new value. It gives one command that
does what was meant. A change is accepted only if the key is free, or with --accept-config if it can change at all.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_FAILED
from tolariad.core.calc.settings import rules
from tolariad.core.calc.settings.changes import RANKS, Change, change_of, is_of_end, is_reloadable, why_never
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.core.state.run_state import RunState
from tolariad.daemon.request import RunRequest, StartRefused
from tolariad.daemon.settings import RESOLVED_NAME, Resolved
from tolariad.rate_functions import Source

_VALUE_CHARACTERS: Final = 48


def at_start(
    state: RunState, resolved: Resolved, request: RunRequest, mode: m.StartMode = m.StartMode.EXPLICIT
) -> m.ConfigChanged | None:
    """Return what differs from the run's configuration. Raises StartRefused unless it may differ.

    An end that has passed already is not free to choose. A failed run goes on with --retry only: without it nothing is
    changed, and each command that is named has it.
    """
    needs_retry = mode is m.StartMode.EXPLICIT and _has_failed(state, request)
    if needs_retry:
        request = replace(request, retry=True)
    passed = q.is_end_reached(_with_end(state, resolved.policy))

    def refusal(former: Settings, keys: list[str]) -> StartRefused | None:
        free = {RANKS} if former.parallel.exact and resolved.settings.parallel.exact else ()
        fixed = [key for key in keys if key not in free and not _may_change(key, request, end_passed=passed)]
        return _refused_start(state, former, resolved.settings, fixed, request) if fixed else None

    change = _change(state.run.config, resolved, request, refusal)
    if change is not None and needs_retry:
        why = f"the run has failed: {state.run.why}"
        raise StartRefused(EXIT_FAILED, why, f"to go on: {_command(request, accept=request.accept_config)}")
    return change


def _has_failed(state: RunState, request: RunRequest) -> bool:
    """Return whether the run has failed, and this start accepts nothing that answers the failure."""
    answers = {m.FailureKind.DATA: request.accept_data, m.FailureKind.CODE: request.accept_code}
    is_answered = state.run.failure is not None and answers.get(state.run.failure, False)
    return state.run.phase is st.Phase.FAILED and not is_answered


def at_reload(former: str, resolved: Resolved, request: RunRequest) -> m.ConfigChanged | None:
    """Return what differs from the configuration of the live run. Raises StartRefused unless a reload may change it."""

    def refusal(before: Settings, keys: list[str]) -> StartRefused | None:
        fixed = [key for key in keys if not is_reloadable(key)]
        if not fixed:
            return None
        lines = "\n".join(_difference(before, resolved.settings, key, why_never(key)) for key in fixed)
        accept = any(change_of(key) is Change.ACCEPT for key in fixed)
        stop = shlex.join(["tolaria", "stop", "--dir", str(request.run_dir)])
        hint = "" if any(map(why_never, fixed)) else f"{stop} && {_command(request, accept=accept)}"
        return StartRefused(EXIT_CONFIG, f"a running daemon cannot change these keys:\n{lines}", hint)

    return _change(former, resolved, request, refusal)


def differs(state: RunState, resolved: Resolved, request: RunRequest) -> bool:
    """Return whether a start with this configuration would be refused."""
    try:
        at_start(state, resolved, request)
    except StartRefused:
        return True
    return False


def _change(
    former: str,
    resolved: Resolved,
    request: RunRequest,
    refusal: Callable[[Settings, list[str]], StartRefused | None],
) -> m.ConfigChanged | None:
    try:
        before = rules.read_resolved(former.encode())
    except ConfigError as error:
        # Another version with other keys wrote it. Only the operator can decide that the new one replaces it.
        if not request.accept_config:
            why = f"this version cannot read the run's configuration: {error}"
            raise StartRefused(EXIT_CONFIG, why, f"to replace it: {_command(request, accept=True)}") from error
        keys = ["*"]
    else:
        keys = rules.difference(before, resolved.settings)
        if (refused := refusal(before, keys)) is not None:
            raise refused
    if not keys:
        return None
    return m.ConfigChanged(config=resolved.text, config_hash=resolved.hash, policy=resolved.policy, keys=tuple(keys))


def _may_change(key: str, request: RunRequest, *, end_passed: bool) -> bool:
    match change_of(key):
        case Change.NEVER:
            return False
        case Change.FREE if not (end_passed and is_of_end(key)):
            return True
        case _:
            return request.accept_config


# -- a refusal ---------------------------------------------------------------------------------------------------------


def _refused_start(
    state: RunState, former: Settings, new: Settings, fixed: list[str], request: RunRequest
) -> StartRefused:
    place = _place(state)
    notes = {key: why_never(key) or (f"the run is at {place}" if is_of_end(key) else "") for key in fixed}
    lines = [_difference(former, new, key, notes[key]) for key in fixed]
    why = "\n".join([f"the run in {request.run_dir} has another configuration:", *lines])
    if any(map(why_never, fixed)):
        hint = f"to begin another run with its weights: {_begin_another(request)}"
    elif all(map(is_of_end, fixed)):
        hint = _about_end(state, new, request)
    else:
        hint = f"to go on with the new values: {_command(request, accept=True)}"
    return StartRefused(EXIT_CONFIG, why, hint)


def _place(state: RunState) -> str:
    """Return how far the run is, as words."""
    return f"epoch {max(1, state.progress.epoch)}, step {state.progress.step}"


def _difference(former: Settings, new: Settings, key: str, note: str) -> str:
    """Return one line: the key, its value in the run, its value now."""
    was, now = (rules.values_of(settings).get(key) for settings in (former, new))
    return f"  {key}: {_changed_file(was, now) or f'{_shown(was)} in the run, {_shown(now)} now'}" + (
        f" ({note})" if note else ""
    )


def _changed_file(was: Any, now: Any) -> str:
    """Return what happened if both values are a rate function of one name, with another source; else ""."""
    if not (isinstance(was, str) and isinstance(now, str) and ":" in was and ":" in now):
        return ""
    before, after = Source.of(was), Source.of(now)
    if (before.path, before.name) != (after.path, after.name):
        return ""
    return f"{after.path} has changed since the run read it: its hash was {before.pin} and is {after.pin}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}..."


def _about_end(state: RunState, new: Settings, request: RunRequest) -> str:
    """Return what to do if the end that was given has passed."""
    if state.run.phase is not st.Phase.COMPLETED:
        return f"to end the run here: {_command(request, accept=True)}"
    progress, stop = state.progress, new.stop
    nearer = {
        "stop.epochs": stop.epochs is not None and stop.epochs <= progress.epoch_finished < new.epochs,
        "stop.steps": stop.steps is not None and stop.steps <= progress.step,
    }
    ends = [f"{key}=null" for key, is_passed in nearer.items() if is_passed]
    if ends and progress.epoch_finished < new.epochs:
        return f"to go on to epoch {new.epochs}: {_command(request, sets=ends)}"
    return f"to go on: {_command(request, epochs=progress.epoch_finished + new.epochs, sets=ends)}"


def _command(
    request: RunRequest, *, accept: bool = False, epochs: int | None = None, sets: list[str] | None = None
) -> str:
    """Return the command of this start, with what it lacks."""
    if request.settings is not None:
        return "Tolaria(..., accept_config=True)" if accept else "train with more epochs"
    more = [f"--set={one}" for one in sets or ()]
    return shlex.join(
        ["tolariad", "run", *_given(request, epochs), *more, "--dir", str(request.run_dir)]
        + (["--retry"] if request.retry else [])
        + (["--accept-config"] if accept else [])
        + (["--accept-data"] if request.accept_data else [])
        + (["--accept-code"] if request.accept_code else [])
    )


def _begin_another(request: RunRequest) -> str:
    """Return the command that begins another run with the weights of this one, and with the new configuration."""
    folder, number = request.run_dir, 2
    while (other := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    if request.settings is not None:
        return f"Tolaria(..., run_dir={str(other)!r})"
    given = _given(request, None, of_run=True)
    return shlex.join(["tolariad", "run", *given, "--dir", str(other), "--from", str(folder)])


def _given(request: RunRequest, epochs: int | None, *, of_run: bool = False) -> list[str]:
    """Return the arguments that gave the configuration; `epochs` takes the place of those given.

    `of_run`: for another folder. If the configuration is the run's own, name its file.
    """
    count = epochs or request.epochs
    named: dict[str, Path | str | int | None] = {"--task": request.task, "--epochs": count}
    config = request.config
    if of_run and config is None and request.task is None:
        config = request.run_dir / RESOLVED_NAME
    return [
        *([str(config)] if config is not None else []),
        *(part for option, value in named.items() if value is not None for part in (option, str(value))),
        *(part for one in request.sets for part in ("--set", one)),
    ]


def note(change: m.ConfigChanged) -> str:
    """Return what the change does to steps that are made again; "" if it does nothing to them."""
    # The number of ranks is changed only where it changes no step.
    accepted = [key for key in change.keys if change_of(key) is not Change.FREE and key != RANKS]
    keys = "the configuration" if accepted == ["*"] else ", ".join(accepted)
    return f"changed and recorded: {keys}; steps that are re-run may differ from the journal" if accepted else ""


# -- another end -------------------------------------------------------------------------------------------------------


def _with_end(state: RunState, policy: m.Policy) -> RunState:
    """Return the state in which the end is what the configuration says."""
    unlimited = replace(state.limits, end=None, reached=None)
    return replace(state, run=replace(state.run, policy=policy), limits=unlimited)


def about_end(state: RunState, resolved: Resolved, change: m.ConfigChanged) -> str:
    """Return where the run goes on to and what the rates will do, if the change is about the end; else ""."""
    if not any(map(is_of_end, change.keys)):
        return ""
    done, planned = state.progress, _with_end(state, resolved.policy)
    end = f"epoch {q.last_epoch(planned)}"
    if resolved.policy.stop_steps:
        end += f", at most step {resolved.policy.stop_steps}"
    if state.run.phase is st.Phase.COMPLETED:
        after = f"after epoch {done.epoch_finished}, step" if done.epoch_finished else "at step"
        here = f"the run was complete {after} {done.step}, and goes on to {end}"
    else:
        here = f"the run is at {_place(state)} and goes on to {end}"
    rates = _about_rates(state, planned, resolved, change)
    return f"{here}; {rates}" if rates else here


def _about_rates(state: RunState, planned: RunState, resolved: Resolved, change: m.ConfigChanged) -> str:
    """Return what the rates will do: computed for `epochs`, or `stop.steps` if the data has no length; else kept."""
    an_epoch = state.progress.steps_per_epoch
    plan = resolved.settings.epochs * an_epoch if an_epoch else resolved.policy.stop_steps
    is_planned_anew = "epochs" in change.keys or (not an_epoch and "stop.steps" in change.keys)
    if plan and is_planned_anew:
        return q.rates_of_plan(state, plan) or "learning rates do not depend on it"
    kept = q.rates_until(state, None, q.steps_in_all(planned))
    return f"{kept[:1].lower()}{kept[1:].rstrip('.')}"
