"""Writes the golden journal of the present version: run once a release, then never again for that version.

`python -m tests.journals.make_golden` makes `tests/journals/<version>/`. It has a disturbed run's events over several
segments, with captures, seals and state hashes. `expected.json` has the value to which they fold: every field of the
state. If RunState gains a field, `make docs` writes `expected.json` again. The journal's own bytes never change, and
every recorded value must come out as before. Captures and hashes inside are of the FOLD_VERSION that wrote them and say
nothing under another. This record holds a later fold to the results of an earlier one. `--changed FIELD…` writes the
named fields again. Use it if RunState loses a field, or if FOLD_VERSION rises because an old event means something
else, and say why.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import tolariad
from journal import FrameKind, Journal, Reader
from tests.core.simulate import World
from tests.journals.packed import unpacked
from tests.journals.renamed import renamed
from tolariad.core.calc.text.plain import plain
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.state.replay import replay_records
from tolariad.core.state.run_state import RunState, apply, capture, hash_mark, state_hash

SEED = 20261121
EVENTS_A_FRAME = 7
HERE = Path(__file__).parent


def expected(state: RunState) -> dict[str, object]:
    """Return what is compared: the whole state, and its hash."""
    values: dict[str, object] = plain(msgspec.to_builtins(state, builtin_types=(bytes,)))
    return {"state_hash": state_hash(state).hex(), "state": values}


def changed(recorded: Any, now: Any, where: str = "state") -> Iterator[str]:
    """Where a value that is recorded is another one now, or gone; what has been added is none."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name, value in recorded.items():
            if name in now:
                yield from changed(value, now[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for number, (one, other) in enumerate(zip(recorded, now, strict=True)):
            yield from changed(one, other, f"{where}.{number}")
    elif recorded != now:
        yield where


def make(folder: Path) -> None:
    """Write the journal and what it folds to."""
    world = World(SEED, deaths_max=50)
    for _ in range(400):
        world.anything()
    state = RunState()
    with Journal.open(folder / "journal", segment_bytes=32 * 1024) as journal:
        journal.begin(
            run_id=bytes(range(16)),
            context_hash=bytes(32),
            capture=lambda: capture(state),
            wall_ns=1,
            boot_id=bytes(16),
        )
        for start in range(0, len(world.events), EVENTS_A_FRAME):
            batch = world.events[start : start + EVENTS_A_FRAME]
            last = batch[-1]
            raw = [encode_event(event) for event in batch]
            after = state
            for event in batch:
                after = apply(after, event)
            progress = after.progress
            journal.commit(raw, epoch=progress.epoch, step=progress.step, wall_ns=last.wall, mono_ns=last.mono)
            state = after
            if start % (5 * EVENTS_A_FRAME) == 0:
                journal.mark(FrameKind.STATE_HASH, hash_mark(state), wall_ns=last.wall, mono_ns=last.mono)
    (folder / "journal" / "lock").unlink()
    (folder / "expected.json").write_bytes(as_json(state))


def as_json(state: RunState) -> bytes:
    """The bytes of an `expected.json`."""
    return msgspec.json.format(msgspec.json.encode(expected(state))) + b"\n"


def write_expected(*, allowed: frozenset[str] = frozenset()) -> None:
    """Fold every kept journal again and write the result. No recorded value may change unless it is `allowed`."""
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(HERE.glob("*/expected.json")):
            _write_expected(path, path.parent / "journal", allowed)
        for path in sorted(HERE.glob("real/*.json")):
            _write_expected(path, unpacked(path.with_suffix(".tar.zst"), Path(folder) / path.stem), allowed)


def _write_expected(path: Path, journal: Path, allowed: frozenset[str]) -> None:
    recorded = msgspec.json.decode(path.read_bytes())
    state = replay_records(RunState(), renamed(Reader(journal).records()), strict=True).state
    # Through JSON, as it is recorded.
    now = msgspec.json.decode(as_json(state))
    other = set(changed(recorded["state"], now["state"])) - allowed
    if other:
        raise SystemExit(
            f"{path.relative_to(HERE)} folds to another {', '.join(sorted(other))}: "
            "`apply` is wrong, or say why it is not and run "
            f"`python -m tests.journals.make_golden --changed {' '.join(sorted(other))}`"
        )
    path.write_bytes(as_json(state))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--changed"]:
        write_expected(allowed=frozenset(sys.argv[2:]))
    else:
        make(HERE / tolariad.__version__)
