"""Rollbacks and emergencies across subsystems of one process: the source documents' coordinators over core's rules.

A run itself rolls back by the kernel's protocol only (`core/rollback`: durable intent, tiers, deadline). Here the run
is one participant (`RunParticipant`), the last core subsystem to commit, beside subsystems with other owners.

Promises: one rollback at a time. An id is carried out once, even if its caller stopped waiting. No subsystem is waited
for longer than its phase allows. The failure of an auxiliary subsystem is logged and changes nothing. Without a core
subsystem no rollback is reported as done.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec

from tolariad.core import phases
from tolariad.core.phases import Limits, Participant
from tolariad.core.vocabulary.rollback import Level, Tier

_log: Final = logging.getLogger(__name__)
_KNOWN_MAX: Final = 1000


class RollbackDone(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rollback: seconds of each phase, the subsystems that refused, whether it exceeded its limit."""

    rollback: str
    success: bool
    prepare_s: float = 0.0
    commit_s: float = 0.0
    confirm_s: float = 0.0
    refused: tuple[str, ...] = ()
    overran: bool = False


class DistributedRollbackCoordinator:
    """The full tier. Every core subsystem prepares, commits in order and is confirmed; or the rollback is aborted."""

    _limits: Limits = phases.FULL

    def __init__(
        self, *, participants: Iterable[Participant] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._participants = phases.in_order(participants)
        self._clock = clock
        self._known: dict[str, RollbackDone] = {}
        self._begun = 0
        self._active: tuple[str, asyncio.Future[RollbackDone]] | None = None

    @property
    def last(self) -> RollbackDone | None:
        """The result of the last rollback, or None."""
        return next(reversed(self._known.values()), None)

    async def initiate_rollback(
        self, checkpoint_epoch: int, reason: str, severity: str = "MAJOR", *, rollback_id: str = ""
    ) -> bool:
        """Roll back to the end of `checkpoint_epoch`. A `rollback_id` that is known returns its result again.

        Returns False if a core subsystem refuses or fails, or another rollback is in flight. Raises ValueError for a
        severity other than MAJOR or SEVERE, and RuntimeError if no core subsystem takes part.
        """
        _tier(severity)
        return (await self._once(checkpoint_epoch, reason, rollback_id)).success

    async def _once(self, checkpoint_epoch: int, reason: str, rollback_id: str) -> RollbackDone:
        if not any(one.core for one in self._participants):
            raise RuntimeError("no core subsystem takes part, so nothing would be rolled back; pass `participants`")
        self._begun += not rollback_id
        id_ = rollback_id or f"{type(self).__name__}-{self._begun}"
        if id_ in self._known:
            return self._known[id_]
        if self._active is not None:
            name, done = self._active
            # A second caller with the same id waits for the same rollback. Cancelling the wait does not cancel it.
            return await asyncio.shield(done) if name == id_ else RollbackDone(rollback=id_, success=False)
        _log.warning("Rollback %s to epoch %d begins: %s", id_, checkpoint_epoch, reason)
        task = asyncio.ensure_future(self._carry_out(id_, checkpoint_epoch))
        self._active = id_, task
        # A callback, not code after the wait below: the waiting caller may be cancelled while the rollback goes on.
        task.add_done_callback(lambda done: self._settle(id_, done))
        return await asyncio.shield(task)

    def _settle(self, id_: str, done: asyncio.Future[RollbackDone]) -> None:
        self._active = None
        if done.cancelled() or done.exception() is not None:
            return
        self._known[id_] = done.result()
        if len(self._known) > _KNOWN_MAX:
            self._known.pop(next(iter(self._known)))

    async def _carry_out(self, id_: str, checkpoint_epoch: int) -> RollbackDone:
        limits, everybody, times = self._limits, self._participants, [self._clock()]
        steps: Sequence[tuple[float, Callable[[Participant], Awaitable[bool]]]] = (
            (limits.prepare_s, lambda one: one.prepare(id_, checkpoint_epoch)),
            (limits.commit_s, lambda one: one.commit(id_)),
            (limits.confirm_s, lambda one: one.confirm(id_)),
        )
        refused: tuple[str, ...] = ()
        for limit_s, ask in steps:
            refused = phases.refused_by(everybody, await self._ask_all(limit_s, ask))
            times.append(self._clock())
            if refused:
                await self._abort(id_)
                break
        taken = [after - before for before, after in itertools.pairwise(times)] + [0.0, 0.0]
        return RollbackDone(
            rollback=id_,
            success=not refused,
            prepare_s=taken[0],
            commit_s=taken[1],
            confirm_s=taken[2],
            refused=refused,
            overran=times[-1] - times[0] > limits.whole_s,
        )

    async def _ask_all(self, limit_s: float, ask: Callable[[Participant], Awaitable[bool]]) -> dict[str, bool]:
        """Ask the participants in order, within the phase's limit. One not asked in time has refused."""
        votes: dict[str, bool] = {}
        try:
            async with asyncio.timeout(limit_s):
                for one in self._participants:
                    votes[one.name] = await _asked(one, ask)
                    if one.core and not votes[one.name]:
                        break
        except TimeoutError:
            _log.error("A phase of the rollback exceeded its limit of %.3g s. Answers so far: %s", limit_s, votes)
        return votes

    async def _abort(self, id_: str) -> None:
        for one in reversed(self._participants):
            try:
                async with asyncio.timeout(self._limits.prepare_s):
                    await one.abort(id_)
            except Exception:  # noqa: BLE001 - the other subsystems must still be told
                _log.exception("%s failed to abort rollback %s", one.name, id_)


async def _asked(one: Participant, ask: Callable[[Participant], Awaitable[bool]]) -> bool:
    try:
        return bool(await ask(one))
    except Exception:  # noqa: BLE001 - any error counts as a refusal
        _log.exception("%s raised an error during a rollback", one.name)
        return False


class FastRollbackCoordinator(DistributedRollbackCoordinator):
    """The fast tier, within 500 ms. If it fails and `full` was given, the full tier tries under the same id."""

    _limits = phases.FAST

    def __init__(
        self,
        *,
        participants: Iterable[Participant] = (),
        clock: Callable[[], float] = time.monotonic,
        full: DistributedRollbackCoordinator | None = None,
    ) -> None:
        super().__init__(participants=participants, clock=clock)
        self._full = full

    async def initiate_fast_rollback(self, checkpoint_epoch: int, reason: str, *, rollback_id: str = "") -> bool:
        """Roll back to the end of `checkpoint_epoch` from memory; if that fails, by the full tier under the same id."""
        done = await self._once(checkpoint_epoch, reason, rollback_id)
        if done.success or self._full is None or not done.refused:
            # No success and no refusal: another rollback is in flight. The full tier must not start beside it.
            return done.success
        why = f"{reason}; the fast tier failed: {', '.join(done.refused)}"
        return await self._full.initiate_rollback(checkpoint_epoch, why, rollback_id=done.rollback)

    async def initiate_rollback(
        self, checkpoint_epoch: int, reason: str, severity: str = "SEVERE", *, rollback_id: str = ""
    ) -> bool:
        """Roll back by the tier of the severity: SEVERE fast, MAJOR full. Raises ValueError for any other."""
        if _tier(severity) is Tier.FULL and self._full is not None:
            return await self._full.initiate_rollback(checkpoint_epoch, reason, severity, rollback_id=rollback_id)
        return await self.initiate_fast_rollback(checkpoint_epoch, reason, rollback_id=rollback_id)


def _tier(severity: str) -> Tier:
    try:
        tier = phases.tier_of(Level(severity.lower()))
    except ValueError:
        tier = None
    if tier is None:
        raise ValueError(
            f"the severity of a rollback must be MAJOR or SEVERE, not {severity!r}: CRITICAL freezes, MINOR is logged"
        )
    return tier


class EmergencyProtocolHandler:
    """Acts on an emergency level. The level only rises, until an epoch ends in good health."""

    def __init__(self, *, rollback: FastRollbackCoordinator, freeze: Callable[[], None]) -> None:
        """`freeze` must stop training at once and without a message: the daemon's writes into the shared page."""
        self._rollback = rollback
        self._freeze = freeze
        self.level: Level | None = None

    async def handle_emergency(self, level: str, reason: str, checkpoint_epoch: int = 0) -> bool:
        """MINOR: log it. MAJOR, SEVERE: roll back, and freeze if that fails. CRITICAL: freeze before anything else.

        Returns True if training may go on.
        """
        found = Level(level.lower())
        if found is Level.CRITICAL:
            self._freeze()
        self.level = phases.graver(self.level, found)
        _log.log(logging.INFO if found is Level.MINOR else logging.ERROR, "emergency %s: %s", found.value, reason)
        if phases.tier_of(found) is None:
            return found is not Level.CRITICAL and self.level is not Level.CRITICAL
        if self.level is Level.CRITICAL:
            return False
        if await self._rollback.initiate_rollback(checkpoint_epoch, reason, found.value):
            return True
        self._freeze()
        self.level = Level.CRITICAL
        return False

    def healthy_epoch(self) -> None:
        """Clear the level: an epoch ended in good health."""
        self.level = None
