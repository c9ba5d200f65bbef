"""The conditions under which a run trains: configuration, code, libraries, data and host, and how two of them differ.

Promises: a value is shown with its name, in both runs or at both moments. Nothing of the configuration is left out
because it seems to be without effect: `matters` says so instead.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from journal.reader import Reader
from tolariad.core import messages as m
from tolariad.core.calc.settings.changes import may_change_steps
from tolariad.core.messages.vocabulary import decode_event
from tolariad.core.state.replay import newest_usable
from tolariad.core.state.run_state import RunState
from tolariad.forensics.moment import state_at
from tolariad.forensics.timeline import brief

_E = TypeVar("_E", bound=m.Event)
_OF_THE_HOST: Final = ("cpu", "threads", "device", "gpu")
_OF_THE_CODE: Final = ("task_hash", "model_hash", "optimizers")


class Part(enum.Enum):
    """The part of the conditions that a value belongs to."""

    CONFIGURATION = "configuration"
    DATA = "data"
    CODE = "code"
    LIBRARIES = "libraries"
    HOST = "host"


class Differing(msgspec.Struct, frozen=True):
    """A value that is another one on side B; None: absent there. `matters`: it may change what a step computes."""

    part: Part
    name: str
    a: Any
    b: Any
    matters: bool = True


class Context(msgspec.Struct, frozen=True):
    """The conditions at one moment of a run: values by name, for each part. `loaded`: the names of other libraries.

    Journals of older versions do not have those.
    """

    by_part: dict[Part, dict[str, Any]]
    loaded: frozenset[str] = frozenset()


def context_of(reader: Reader, state: RunState) -> Context:
    """Return the conditions in this state of the journal's run. What no trainer has reported yet is absent."""
    recorded = recorded_at(reader, state)
    fields: dict[str, Any] = msgspec.to_builtins(recorded.environment) if recorded is not None else {}
    loaded = {one.name: one.version for one in recorded.libraries} if recorded is not None else {}
    libraries = loaded | {name: value for name, value in fields.items() if isinstance(value, str)}
    for other in (*_OF_THE_HOST, *_OF_THE_CODE, "config_hash", "data", "determinism", "precision"):
        libraries.pop(other, None)
    host = {name: fields[name] for name in _OF_THE_HOST if fields.get(name)}
    if (daemon := _daemon_at(reader, state)) is not None:
        host["host"] = daemon.host
        libraries["recorder"] = daemon.version
    code = {name: fields[name] for name in _OF_THE_CODE if fields.get(name)}
    code |= {f"file {one.name}": one.hash for one in state.progress.code.files}
    data = {f"set {number}": msgspec.to_builtins(one) for number, one in enumerate(state.progress.data, 1)}
    return Context(
        {
            Part.CONFIGURATION: flattened(state.run.config),
            Part.DATA: data,
            Part.CODE: code,
            Part.LIBRARIES: libraries,
            Part.HOST: host,
        },
        frozenset(loaded),
    )


def differing(a: Context, b: Context) -> list[Differing]:
    """Return every value that differs, part by part. Other libraries are compared if both sides have them."""
    found = []
    unknown = frozenset[str]() if a.loaded and b.loaded else a.loaded | b.loaded
    for part in Part:
        one, other = a.by_part[part], b.by_part[part]
        for name in sorted((one.keys() | other.keys()) - (unknown if part is Part.LIBRARIES else frozenset())):
            if one.get(name) != other.get(name):
                matters = may_change_steps(name) if part is Part.CONFIGURATION else name not in ("host", "recorder")
                found.append(Differing(part, name, one.get(name), other.get(name), matters))
    return found


def flattened(config: str) -> dict[str, Any]:
    """Return a resolved configuration by dotted keys. One that is no JSON object has the single key `*`."""
    try:
        found = msgspec.json.decode(config)
    except ValueError:
        return {"*": config}
    values: dict[str, Any] = {}
    _flatten(found.get("tolaria", found) if isinstance(found, dict) else {"*": found}, "", values)
    return values


def _flatten(given: Mapping[str, Any], prefix: str, into: dict[str, Any]) -> None:
    for name, value in given.items():
        # A map without keys is the same as none.
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{name}.", into)
        else:
            into[f"{prefix}{name}"] = value


def recorded_at(reader: Reader, state: RunState) -> m.ExecutionContextRecorded | None:
    """Return what the trainer that made the steps of this state recorded of its context; None before the first one."""
    if not state.trainer.incarnation:
        return None
    before = _before(reader, state, lambda one: one.trainer.incarnation)
    newest: m.ExecutionContextRecorded | None = None
    for event in _events(reader, before.seq, state.seq, m.ExecutionContextRecorded):
        newest = event
        if event.incarnation == state.trainer.incarnation:
            break
    if newest is None or newest.hash == state.progress.environment:
        return newest
    # The present trainer has not reported its context yet, so one before it made the steps.
    earlier = _events(reader, 0, state.seq, m.ExecutionContextRecorded)
    return next((one for one in earlier if one.hash == state.progress.environment), None)


def host_at(reader: Reader, seq: int) -> str:
    """Return the name of the machine that recorded the run up to this event; "" before the first start."""
    daemon = _daemon_at(reader, state_at(reader, seq).state)
    return daemon.host if daemon is not None else ""


def _daemon_at(reader: Reader, state: RunState) -> m.DaemonStarted | None:
    """Return the start of the daemon that recorded this state."""
    if not state.run.starts:
        return None
    before = _before(reader, state, lambda one: one.run.starts)
    starts = _events(reader, before.seq, state.seq, m.DaemonStarted)
    return next(islice(starts, max(0, state.run.starts - before.run.starts - 1), None), None)


def _before(reader: Reader, state: RunState, of: Callable[[RunState], int]) -> RunState:
    """Return a capture from before `of`, which only rises, got the value that it has in `state`.

    It is found by halving, so that no journal is read from end to end. The empty state if no capture is earlier.
    """
    found, low, high = RunState(), 0, state.seq
    while low < high:
        middle = newest_usable(reader.captures((low + high + 1) // 2))
        if middle.seq <= low:
            break
        if of(middle) < of(state):
            found, low = middle, middle.seq
        else:
            high = middle.seq - 1
    return found


def _events(reader: Reader, after_seq: int, until_seq: int, kind: type[_E]) -> Iterator[_E]:
    for entry in reader.seek(seq=after_seq + 1):
        if entry.seq > until_seq:
            return
        if brief(entry.event).type == kind.__name__:
            event = decode_event(entry.event)
            if isinstance(event, kind):
                yield event
