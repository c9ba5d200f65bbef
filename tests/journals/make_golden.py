"""Writes the golden journal of the present version: run once a release, then never again for that version.

`python -m tests.journals.make_golden` makes `tests/journals/<version>/`: a disturbed run's events over several segments,
with captures, seals and state hashes, and `expected.json` with what they fold to. What they fold to gains a field when
RunState does, so `make docs` writes `expected.json` again; the journal's own bytes are never touched, and `digest`, `seq`
and `phase` must come out as before.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

import tolariad
from journal import FrameKind, Journal, Reader
from tests.core.simulate import World
from tolariad.core.replay import replay_records
from tolariad.core.state import RunState, apply, capture, hash_mark, state_hash
from tolariad.core.vocabulary import encode_event

SEED = 20261121
EVENTS_A_FRAME = 7
HERE = Path(__file__).parent


def expected(state: RunState) -> dict[str, object]:
    """What is compared: the place, the state's hash, the digest of what training did."""
    return {
        "seq": state.seq,
        "state_hash": state_hash(state).hex(),
        "digest": state.progress.digest.hex(),
        "phase": state.run.phase.value,
    }


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


def write_expected() -> None:
    """Fold every golden journal again and write what it comes to; all but the hash must stay as it is."""
    for path in sorted(HERE.glob("*/expected.json")):
        recorded = msgspec.json.decode(path.read_bytes())
        state = replay_records(RunState(), Reader(path.parent / "journal").records(), strict=True).state
        changed = {name for name, value in expected(state).items() if recorded[name] != value}
        if changed - {"state_hash"}:
            raise SystemExit(f"{path.parent.name} folds to another {', '.join(sorted(changed))}: `apply` is wrong")
        path.write_bytes(as_json(state))


if __name__ == "__main__":
    make(HERE / tolariad.__version__)
