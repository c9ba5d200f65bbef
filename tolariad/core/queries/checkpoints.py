"""When a checkpoint is due, which ones stay, and which are removed.

Invariants: the first, the best, the newest promoted and the last good ones are never removed, so a start always finds
one. A removal that has begun is completed in the end, and its checkpoint is never used again. No jump of the wall clock
makes all checkpoints of a run old at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.pruning.phase import PruningPhase, is_cycle_due
from tolariad.core.queries.health import health_status
from tolariad.core.queries.pruning import phase_of

_DAY_NS: Final = 86_400_000_000_000
# Lower than the catalogue's own limit, so that the catalogue never forgets a checkpoint whose files exist.
CHECKPOINTS_MAX: Final = 900
REMOVALS_AT_ONCE: Final = 16
# The gap between two checkpoints is at most so many times as long as one takes: that is a hundredth of the time.
_GAP_IN_COSTS: Final = 100.0
# The share of `keep_days` that one gap between two checkpoints counts for at most.
_GAP_SHARE: Final = 1 / 7


class Begins(
    st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasBoundary, st.HasHealth, st.HasSnapshots, st.HasPruning, Protocol
):
    """The slices that an order for a checkpoint is made from."""


def checkpoint_begun(
    state: Begins, reason: m.CheckpointReason, *, copy_of: st.KeptSnapshot | None = None
) -> tuple[m.CheckpointBegun, m.TakeCheckpoint]:
    """Return the event that begins a checkpoint, and the order for it. `copy_of`: the snapshot that is written."""
    begun = m.CheckpointBegun(
        id=state.checkpoints.next_id,
        reason=reason,
        branch=state.progress.branch,
        epoch_finished=state.progress.epoch_finished,
        orders=state.boundary.acted,
    )
    if copy_of is not None:
        begun = replace(begun, orders=copy_of.orders, copy_of=copy_of.id, script_seq=copy_of.begun_seq)
    order = m.TakeCheckpoint(
        id=begun.id,
        reason=reason,
        branch=begun.branch,
        health=health_status(state),
        promoted=state.checkpoints.newest_promoted,
        snapshot=None if copy_of is None else copy_of.ref,
    )
    # Masks and compactions outlive `prune.enabled: false` at a later start.
    if state.run.policy.prune is not None or state.pruning.cycles:
        files = state.pruning.files
        newest = files[-1].file if files else ""
        order = replace(order, pruning_phase=phase_of(state), pruned=state.pruning.share, importance=newest)
    return begun, order


def copy_in_memory(state: Begins, step: int) -> st.KeptSnapshot | None:
    """Return the newest snapshot of the present branch at or before `step`, or None."""
    held = (one for one in reversed(state.snapshots.kept) if one.branch == state.progress.branch)
    return next((one for one in held if one.step <= step), None)


class DueBy(st.HasRun, st.HasProgress, st.HasCheckpoints, st.HasHealth, st.HasPruning, Protocol):
    """The slices that decide it: the policy, the time of the last checkpoint, the disk, conservative mode, pruning."""


def interval_is_over(state: DueBy, mono: int) -> bool:
    """Return whether the interval since the last checkpoint, in time or in steps, is over and none is being written."""
    if state.disk.low is not None or state.checkpoints.open:
        return False
    policy, factor = state.run.policy, state.stability.checkpoint_factor
    elapsed_s = (mono - state.checkpoints.clock_mono) / 1e9
    if elapsed_s >= policy.checkpoint_interval_s * factor:
        return True
    return bool(policy.checkpoint_every_steps) and elapsed_s >= gap_s(state) and _steps_are_over(state, factor)


def _steps_are_over(state: DueBy, factor: float) -> bool:
    """Return whether a multiple of the interval in steps was passed since the newest checkpoint."""
    every = max(1, int(state.run.policy.checkpoint_every_steps * factor))
    newest = state.checkpoints.newest
    return state.progress.step // every > (newest.step // every if newest is not None else 0)


def gap_s(state: DueBy) -> float:
    """Return the least seconds between two checkpoints: the configured ones, but less if a checkpoint is cheap."""
    cost_s = state.checkpoints.seconds
    most = state.run.policy.checkpoint_gap_s
    return min(most, cost_s * _GAP_IN_COSTS) if cost_s > 0 else most


def due_after_epoch(state: DueBy, epoch: int, mono: int) -> bool:
    """Return whether a checkpoint is due after an epoch: every N epochs, but never two within the gap (`gap_s`).

    Conservative mode halves N. While the model is being pruned one is due for each cycle as well. The last epoch's
    checkpoint is taken when training has ended.
    """
    policy = state.run.policy
    elapsed_s = (mono - state.checkpoints.clock_mono) / 1e9
    if state.disk.low is not None:
        return False
    every = max(1, int(policy.checkpoint_every_epochs * state.stability.checkpoint_factor))
    on_epoch = (epoch % every == 0 or _prunes_after(state, epoch)) and elapsed_s >= gap_s(state)
    return on_epoch or interval_is_over(state, mono)


def _prunes_after(state: DueBy, epoch: int) -> bool:
    """Return whether a cycle of pruning needs a checkpoint of its own. Cycles that only analyse take any."""
    plan = state.run.policy.prune
    if plan is None:
        return False
    phase = phase_of(state, epoch)
    return phase is PruningPhase.ACTIVE_PRUNING and is_cycle_due(plan, epoch, phase)


# -- which stay --------------------------------------------------------------------------------------------------------


class Removal(msgspec.Struct, frozen=True):
    """A checkpoint to remove."""

    entry: st.CatalogueEntry
    why: str


def pinned_checkpoints(held: st.Checkpoints, keep_last: int, wanted: Iterable[str] = ()) -> dict[str, str]:
    """Return the ids that are never removed, each with the reason. `wanted`: what `wanted_checkpoints` returns."""
    usable = [entry for entry in held.catalogue if entry.is_target]
    pins = {entry.id: "the way back" for entry in held.catalogue if entry.pinned}
    pins |= {entry.id: "being gone back to" for entry in usable if entry.id in wanted}
    pins |= {entry.id: "last good" for entry in usable[-max(1, keep_last) :]}
    # If the newest ones have another shape than what a start builds, keep those that it can begin from as well.
    pins |= {entry.id: "last good" for entry in [e for e in usable if not e.unfit_context][-max(1, keep_last) :]}
    pins |= {entry.id: "promoted" for entry in [e for e in usable if e.promoted][-1:]}
    pins |= {entry.id: "start" for entry in usable if entry.reason is m.CheckpointReason.START}
    if any(entry.id == held.best for entry in usable):
        pins[held.best] = "best"
    return pins


def unpinned(held: st.Checkpoints) -> st.Checkpoints:
    """Return the catalogue as it is without the autopilot's pins."""
    return replace(held, catalogue=tuple(replace(one, pinned=False) for one in held.catalogue))


def retention_plan(
    held: st.Checkpoints, policy: m.Policy, wall: int, wanted: Iterable[str] = ()
) -> tuple[Removal, ...]:
    """Return the checkpoints to remove now, in this order: begun before, too old, more than `keep`, over the quota."""
    pins = pinned_checkpoints(held, policy.keep_last, wanted)
    under_way = {one.id for one in held.removing}
    free = [entry for entry in held.catalogue if entry.id not in pins and entry.id not in under_way]
    going = {entry.id: Removal(entry, "its removal was begun") for entry in free if entry.condemned}
    for entry in free:
        if entry.id not in going and (wall - entry.wall) / _DAY_NS >= policy.keep_days:
            going[entry.id] = Removal(entry, f"it is older than {policy.keep_days:g} days")
    rest = [entry for entry in free if entry.id not in going]
    # Unusable ones go first, abandoned ones before others.
    rest.sort(key=lambda entry: (entry.is_target, not entry.abandoned, entry.committed_seq))
    if policy.keep:
        fixed = [entry.step for entry in held.catalogue if entry.id in pins]
        why = f"there are more than {policy.keep} beside those that must stay"
        going |= {entry.id: Removal(entry, why) for entry in _beyond(rest, policy.keep, fixed)}
        rest = [entry for entry in rest if entry.id not in going]
    count, size = len(held.catalogue) - len(under_way) - len(going), used_bytes(held) - freed_bytes(going.values())
    for entry in rest:
        if size > policy.quota or count > CHECKPOINTS_MAX:
            why = (
                f"the quota is {policy.quota} bytes"
                if size > policy.quota
                else f"there are more than {CHECKPOINTS_MAX}"
            )
            going[entry.id] = Removal(entry, why)
            count, size = count - 1, size - entry.size
    return tuple(going.values())


def _beyond(rest: Sequence[st.CatalogueEntry], keep: int, fixed: Iterable[int]) -> Iterator[st.CatalogueEntry]:
    """Yield the checkpoints beyond `keep`: unusable ones first, then those with the smallest gap between neighbours.

    So the others stay spread over the run. `fixed`: steps of checkpoints that stay. Those that somebody ordered go
    last. At most as many as are removed at once: choosing takes a look at each.
    """
    left = list(rest)
    for _ in range(min(len(rest) - keep, REMOVALS_AT_ONCE)):
        if left[0].is_target:
            steps = sorted([*fixed, *(entry.step for entry in left)])
            chosen = min(left, key=lambda entry: (entry.reason is m.CheckpointReason.ORDERED, _gap(steps, entry.step)))
        else:
            chosen = left[0]
        left.remove(chosen)
        yield chosen


def _gap(steps: Sequence[int], step: int) -> int:
    """Return the steps between the neighbours of `step` in the sorted `steps`: the gap that its removal leaves."""
    first, last = bisect_left(steps, step), bisect_right(steps, step)
    if last - first > 1:
        return 0
    return (steps[last] if last < len(steps) else step) - (steps[first - 1] if first else 0)


def freed_bytes(removals: Iterable[Removal]) -> int:
    """Return the bytes that these removals free."""
    return sum(one.entry.size for one in removals)


def used_bytes(held: st.Checkpoints) -> int:
    """Return the bytes of all checkpoints that the quota counts: not those being removed, nor the autopilot's pins."""
    under_way = {one.id for one in held.removing}
    return sum(entry.size for entry in held.catalogue if entry.id not in under_way and not entry.pinned)


def witnessed(held: st.Checkpoints, policy: m.Policy, wall: int) -> st.Checkpoints:
    """Return the catalogue with the age of each checkpoint corrected for jumps of the wall clock.

    Between two checkpoints the clock may have jumped, or nothing ran for days. Such a gap counts for a share of
    `keep_days` only. A clock that was set back counts for nothing.
    """
    most = int(max(policy.keep_days * _GAP_SHARE * _DAY_NS, 2 * policy.checkpoint_interval_s * 1e9))
    age, behind, aged = 0, wall, []
    for entry in reversed(held.catalogue):
        age += min(max(0, behind - entry.wall), most)
        behind = entry.wall
        aged.append(replace(entry, wall=wall - age))
    return replace(held, catalogue=tuple(reversed(aged)))


class WantedBy(st.HasCheckpoints, st.HasRollbacks, st.HasHealth, st.HasPruning, Protocol):
    """The slices with everything that may need a checkpoint."""


def wanted_checkpoints(state: WantedBy) -> frozenset[str]:
    """Return the checkpoints that must stay. They are the targets of a rollback under way, or of one that the next
    validation may cause. Others are the one before masks that are being watched, and the one that is being analysed.
    """
    s, catalogue = state.instability, state.checkpoints.catalogue
    sound = [one.id for one in catalogue if one.is_target and one.step <= s.sound_step] if s.fallen else []
    return state.rollbacks.wanted.union(sound[-1:], state.pruning.needed)
