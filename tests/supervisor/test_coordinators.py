"""The coordinators: unanimous core, order, deadlines, ids carried out once, and what each level leads to."""

from __future__ import annotations

import asyncio

import pytest

from tolariad.core.vocabulary.rollback import Level
from tolariad.supervisor import DistributedRollbackCoordinator, EmergencyProtocolHandler, FastRollbackCoordinator


class Subsystem:
    """Notes what it is told; fails, refuses or hangs where it is to."""

    def __init__(self, name, log, *, core=True, no="", hang="", fail="", pause=""):
        self.name, self.log, self.core, self.no, self.hang, self.fail = name, log, core, no, hang, fail
        self.pause = pause

    async def _told(self, phase, rollback):
        self.log.append((phase, self.name))
        if phase == self.hang:
            await asyncio.sleep(3600)
        if phase == self.pause:
            await asyncio.sleep(0.05)
        if phase == self.fail:
            raise RuntimeError(f"{self.name} is broken")
        return phase != self.no

    async def prepare(self, rollback, checkpoint_epoch):
        return await self._told("prepare", rollback)

    async def commit(self, rollback):
        return await self._told("commit", rollback)

    async def confirm(self, rollback):
        return await self._told("confirm", rollback)

    async def abort(self, rollback):
        await self._told("abort", rollback)


def trio(log, **faulty):
    """The three of the core in no order, and one that is auxiliary."""
    names = ("tolaria", "tamiyo", "kasmina")
    return [*(Subsystem(name, log, **faulty.get(name, {})) for name in names), Subsystem("nissa", log, core=False)]


def test_all_three_phases_go_through_everybody_in_order():
    """Strategy, seeds, training, then who is only told; each phase after the one before."""
    log = []
    coordinator = FastRollbackCoordinator(participants=trio(log))
    assert asyncio.run(coordinator.initiate_fast_rollback(5, "loss"))

    order = ("tamiyo", "kasmina", "tolaria", "nissa")
    assert log == [(phase, name) for phase in ("prepare", "commit", "confirm") for name in order]
    assert coordinator.last.success
    assert coordinator.last.refused == ()


@pytest.mark.parametrize("how", ["no", "fail", "hang"])
@pytest.mark.parametrize("phase", ["prepare", "commit", "confirm"])
def test_a_core_subsystem_that_refuses_fails_or_hangs_in_any_phase_ends_it_and_the_full_tier_takes_over(phase, how):
    """Everybody is told that it is off; the full tier gets the same id; without a full tier the answer is no."""
    log, full_log = [], []
    full = DistributedRollbackCoordinator(participants=trio(full_log))
    faulty = trio(log, kasmina={how: phase})
    alone, both = FastRollbackCoordinator(participants=faulty), FastRollbackCoordinator(participants=faulty, full=full)

    assert not asyncio.run(alone.initiate_fast_rollback(5, "loss"))
    assert {name for what, name in log if what == "abort"} == {"tamiyo", "kasmina", "tolaria", "nissa"}
    assert alone.last.refused[0] == "kasmina"
    assert asyncio.run(both.initiate_fast_rollback(5, "loss", rollback_id="r7"))
    assert full.last.rollback == "r7"
    assert ("confirm", "tolaria") in full_log


@pytest.mark.parametrize("how", ["no", "fail"])
def test_an_auxiliary_subsystem_is_told_and_cannot_veto(how):
    """Whatever it says or does."""
    log = []
    participants = [*trio(log)[:3], Subsystem("nissa", log, core=False, **{how: "prepare"})]
    assert asyncio.run(FastRollbackCoordinator(participants=participants).initiate_rollback(5, "loss"))


def test_an_id_is_carried_out_once_and_another_one_meanwhile_is_refused():
    """A repeat has the first answer, at once or after; one at a time."""
    log = []

    async def course():
        coordinator = FastRollbackCoordinator(participants=trio(log))
        same = asyncio.gather(*(coordinator.initiate_fast_rollback(5, "loss", rollback_id="a") for _ in range(2)))
        await asyncio.sleep(0)
        other = await coordinator.initiate_fast_rollback(4, "loss", rollback_id="b")
        return await same, other, await coordinator.initiate_fast_rollback(5, "loss", rollback_id="a")

    assert asyncio.run(course()) == ([True, True], False, True)
    assert len([one for one in log if one == ("commit", "tolaria")]) == 1


def test_whoever_gives_up_waiting_does_not_end_it_and_the_next_one_is_not_kept_out():
    """What came of it is known by its id; another one may follow."""
    log = []

    async def course():
        coordinator = FastRollbackCoordinator(participants=trio(log, kasmina={"pause": "commit"}))
        waiting = asyncio.ensure_future(coordinator.initiate_fast_rollback(5, "loss", rollback_id="a"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        kept_out = await coordinator.initiate_fast_rollback(4, "loss", rollback_id="b")
        await asyncio.sleep(0.1)
        return kept_out, coordinator.last.rollback, await coordinator.initiate_fast_rollback(4, "loss", rollback_id="c")

    assert asyncio.run(course()) == (False, "a", True)
    assert len([one for one in log if one == ("commit", "tolaria")]) == 2


@pytest.mark.parametrize("participants", [(), (Subsystem("nissa", [], core=False),)])
def test_with_nobody_of_the_core_nothing_is_said_to_be_done(participants):
    """A True would be a lie."""
    with pytest.raises(RuntimeError, match="no core subsystem"):
        asyncio.run(FastRollbackCoordinator(participants=participants).initiate_fast_rollback(5, "loss"))


def test_one_that_took_too_long_says_so_and_is_done_all_the_same():
    """By the clock that it is given."""
    ticks = iter([0.0, 0.2, 0.4, 0.6])
    coordinator = FastRollbackCoordinator(participants=trio([]), clock=lambda: next(ticks))
    assert asyncio.run(coordinator.initiate_fast_rollback(5, "loss"))
    assert coordinator.last.overran
    assert coordinator.last.commit_s == pytest.approx(0.2)


@pytest.mark.parametrize("severity", ["CRITICAL", "MINOR", "grave"])
def test_a_severity_that_calls_for_no_rollback_is_an_error_that_names_those_that_do(severity):
    """CRITICAL freezes without one."""
    with pytest.raises(ValueError, match="MAJOR or SEVERE"):
        asyncio.run(FastRollbackCoordinator().initiate_rollback(5, "loss", severity))


def test_levels_lead_to_a_record_a_rollback_or_a_freeze_and_only_rise():
    """The freeze comes before anything is awaited; a rollback that fails is one too."""
    log, frozen = [], []
    coordinator = FastRollbackCoordinator(
        participants=trio(log), full=DistributedRollbackCoordinator(participants=trio(log))
    )
    handler = EmergencyProtocolHandler(rollback=coordinator, freeze=lambda: frozen.append(len(log)))
    assert asyncio.run(handler.handle_emergency("MINOR", "slow"))
    assert log == []
    assert asyncio.run(handler.handle_emergency("SEVERE", "loss", 3))
    assert asyncio.run(handler.handle_emergency("MAJOR", "accuracy", 3))
    assert (handler.level, frozen) == (Level.SEVERE, [])
    assert not asyncio.run(handler.handle_emergency("CRITICAL", "smoke"))
    assert not asyncio.run(handler.handle_emergency("SEVERE", "loss", 3))
    assert (handler.level, len(frozen)) == (Level.CRITICAL, 1)
    handler.healthy_epoch()
    assert handler.level is None

    broken = FastRollbackCoordinator(participants=trio(log, tolaria={"no": "prepare"}))
    halting = EmergencyProtocolHandler(rollback=broken, freeze=lambda: frozen.append(-1))
    assert not asyncio.run(halting.handle_emergency("SEVERE", "loss", 3))
    assert (halting.level, frozen[-1]) == (Level.CRITICAL, -1)
