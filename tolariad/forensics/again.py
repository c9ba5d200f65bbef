"""Make past steps again: from which checkpoint, what it will cost, and what came out.

A journal that ends after the wanted step is a run that was killed there. Its restart goes back to the nearest
checkpoint, makes the steps after it again by the same loop and script as any restart, and compares each with the
journal. So seeds, masks, compactions, growth of the program's own and answers of a strategy are repeated as there.

Promises: everything is decided from the journal's own events. Nothing of an order that had not acted acts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from journal.reader import Reader
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.messages.vocabulary import decode_event, encode_event
from tolariad.core.state.run_state import RunState, capture, fold
from tolariad.forensics.moment import seq_at, state_at
from tolariad.forensics.positions import JournalPosition, PositionKind

# Keys that have no effect on a step, but on the world outside of the copy.
OUTSIDE: Final = (
    "follow=[]",
    "notify.command=null",
    "notify.webhook=null",
    "telemetry.bus_url=null",
    "telemetry.otlp_endpoint=null",
    "metrics.listen=null",
    "trainer.spare=off",
    "journal.allow_filesystem=true",
)


class NotAgain(Exception):
    """The steps cannot be made again. The message says why and what to do."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is reached again: from `checkpoint` (None: from the run's beginning), over `steps` steps.

    `seq`: the event up to which the journal is copied. `more`: the events after it, which end the copy. `seconds`: how
    long these steps took the run. `recorded`: the run's own checkpoint of this step, if it had one.
    `checkpoints`: the steps of those that are there.
    """

    step: int
    branch: int
    seq: int
    checkpoint: str
    from_step: int
    steps: int
    seconds: float
    more: tuple[bytes, ...]
    capture: bytes
    config: str
    manifest: str
    recorded: st.CatalogueEntry | None
    checkpoints: tuple[int, ...]


def plan_for(
    reader: Reader, run_dir: Path, step: int, branch: int | None = None, *, begin_at_most: int | None = None
) -> Plan:
    """Return how to reach the state after `step`, from the newest checkpoint at or before step `begin_at_most`.

    Raises NotAgain, NotReached, NoSuchStep, JournalError, ReplayError.
    """
    most = step if begin_at_most is None else min(step, begin_at_most)
    seq = seq_at(reader, JournalPosition(PositionKind.STEP, step, branch))
    state = state_at(reader, seq).state
    if q.is_program(state):
        raise NotAgain(
            "a program trained this run, by `Tolaria.train` or in a loop of its own. Only it can make its steps again: "
            "start it with a copy of the run's folder"
        )
    if state.progress.step != step:
        raise NotAgain(f"event {seq} is not the record of step {step}, so the journal cannot be cut there")
    later = _committed_later(reader, state)
    known = {one.id: one for one in (*state.checkpoints.catalogue, *later) if one.is_target}
    there = [
        one
        for one in known.values()
        if one.step <= most and (run_dir / "checkpoints" / one.id / "manifest.json").is_file()
    ]
    if not there:
        raise NotAgain(
            f"no checkpoint from before step {most + 1} is left. `tolaria checkpoints RUN` lists those that are there; "
            "`checkpoint.keep` and `keep_days` say how many stay"
        )
    origin = max(there, key=lambda one: (one.step, one.committed_seq))
    committed = [later[origin]] if origin in later else []
    more = (*_digested(reader, state), *committed, *_closing(state, step))
    return Plan(
        step=step,
        branch=state.progress.branch,
        seq=seq,
        checkpoint=origin.id,
        from_step=origin.step,
        steps=step - origin.step,
        seconds=_seconds(reader, state, origin),
        more=tuple(map(encode_event, more)),
        capture=capture(fold(state, more)),
        config=state.run.config,
        manifest=origin.manifest,
        recorded=_at_step(reader, state, run_dir),
        checkpoints=tuple(one.step for one in known.values()),
    )


def _digested(reader: Reader, state: RunState) -> list[m.Event]:
    """Return the digests of the state after this step, which are recorded after the step itself."""
    for entry in reader.seek(seq=state.seq + 1):
        event = decode_event(entry.event)
        if isinstance(event, m.ParametersDigested) and not event.checkpoint:
            return [msgspec.structs.replace(event, cause=0, root=0)] if event.step == state.progress.step else []
        if isinstance(event, m.StepCompleted):
            break
    return []


def _committed_later(reader: Reader, state: RunState) -> dict[st.CatalogueEntry, m.CheckpointCommitted]:
    """Return the checkpoints of this branch that were begun by then and committed after it, each with its event.

    A checkpoint is written while training goes on, so the newest one is committed some steps later.
    """
    found = {}
    for one in state_at(reader).state.checkpoints.catalogue:
        is_of_then = one.begun_seq <= state.seq < one.committed_seq and one.step <= state.progress.step
        if is_of_then and one.branch == state.progress.branch:
            event = decode_event(next(iter(reader.seek(seq=one.committed_seq))).event)
            if isinstance(event, m.CheckpointCommitted):
                found[one] = event
    return found


def _at_step(reader: Reader, state: RunState, run_dir: Path) -> st.CatalogueEntry | None:
    """Return the run's own checkpoint of this step and branch if it is still there. It may be committed later."""
    place = state.progress.step, state.progress.branch
    catalogue = state_at(reader).state.checkpoints.catalogue
    found = (one for one in catalogue if (one.step, one.branch) == place and not one.rejected)
    return next((one for one in found if (run_dir / "checkpoints" / one.id / "manifest.json").is_file()), None)


def _closing(state: RunState, step: int) -> Iterable[m.Event]:
    """Yield the events that end the copy: nothing that waits acts, and the run ends at this step."""
    stamp = state.progress
    why = "the steps are made again up to here"
    for one in state.boundary.waiting:
        yield m.OrderAborted(order=one.order, why=why, cause=one.cause.seq, wall=stamp.last_wall, mono=stamp.last_mono)
    if state.rollbacks.open is not None:
        yield m.RollbackAborted(rollback=state.rollbacks.open.id, why=why, wall=stamp.last_wall, mono=stamp.last_mono)
    if state.run.pause is not None:
        yield m.RunResumed(wall=stamp.last_wall, mono=stamp.last_mono)
    actor = m.Actor(program="tolaria", reason=why)
    yield m.EndOrdered(steps=step, actor=actor, wall=stamp.last_wall, mono=stamp.last_mono)


def _seconds(reader: Reader, state: RunState, origin: st.CatalogueEntry) -> float:
    """Return how long the run took for the steps after the checkpoint, pauses and other work included."""
    begun = next((one.wall_ns for one in reader.seek(seq=origin.begun_seq)), 0)
    return max(0.0, (state.progress.last_wall - begun) / 1e9)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `compared`: the number of steps that were compared with the journal.

    `difference`: the first that differs. `expected`: why steps may differ; "" if they may not. `checkpoint`: the
    id of the last step's, and `manifest` the BLAKE3 of its manifest; "" if the copy did not come so far. `failed`: why
    not.
    """

    compared: int
    difference: m.Difference | None
    expected: str
    checkpoint: str
    manifest: str
    failed: str


def outcome_of(journal: Path, after_seq: int) -> Outcome:
    """Return what a copy's journal says of its re-run. Raises JournalError."""
    compared, difference, expected, checkpoint, manifest, failed = 0, None, "", "", "", ""
    with Reader(journal) as reader:
        for entry in reader.seek(seq=after_seq + 1):
            event = decode_event(entry.event)
            match event:
                case m.RerunFinished():
                    compared, difference, expected = event.compared, event.first_difference, event.expected
                case m.CheckpointCommitted():
                    checkpoint, manifest = event.id, event.manifest
                case m.RunFailed():
                    failed = event.why
                case _:
                    pass
    return Outcome(
        compared=compared,
        difference=difference,
        expected=expected,
        checkpoint=checkpoint,
        manifest=manifest,
        failed=failed,
    )


class Verdict(enum.Enum):
    """What steps that were made again say of the run.

    `reproducible`: every value is the same. `transient`: they differ from the journal, and two re-executions agree, on
    the machine and in the context of the run: the run computed wrongly once. `persistent here`: the same, but this is
    another machine, or another context. `nondeterministic`: two re-executions differ from each other.
    """

    REPRODUCIBLE = "reproducible"
    TRANSIENT = "transient"
    PERSISTENT_HERE = "persistent here"
    NONDETERMINISTIC = "nondeterministic"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one re-execution found. `tensors`: those of the last step's checkpoint that differ from the run's own.

    None: the run has no checkpoint of that step.
    """

    outcome: Outcome
    tensors: tuple[str, ...] | None

    @property
    def is_same(self) -> bool:
        """Return whether nothing differs."""
        return self.outcome.difference is None and not self.tensors


def judged(first: Result, second: Result | None, *, is_same_machine: bool) -> Verdict:
    """Return the verdict. `second`: None if the first re-execution found no difference."""
    if second is None:
        return Verdict.REPRODUCIBLE
    agree = (first.outcome.difference, first.tensors) == (second.outcome.difference, second.tensors)
    if not agree:
        return Verdict.NONDETERMINISTIC
    return Verdict.TRANSIENT if is_same_machine and not first.outcome.expected else Verdict.PERSISTENT_HERE
