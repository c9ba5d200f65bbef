"""How the daemon exits: 0 if the run is done or an operator stopped it, a signal's code if that ended it before."""

from __future__ import annotations

import pytest

from tests.core.simulate import World, find, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.run import exits
from tolariad.core.decision import Accepted
from tolariad.core.state.run_state import RunState, fold

CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 143, "SIGUSR2": 143}


class Ending(World):
    """Keeps the first exit that is ordered, as the daemon does. Its trainer may be one that always dies."""

    dies = False

    def _do(self, effect):
        before = self.exit
        super()._do(effect)
        self.exit = self.exit if before is None else before

    def tick(self):
        if self.dies and self.trainer is not None and not self.due:
            self.crash_trainer()
        else:
            super().tick()


def ticked(world: World, place: int) -> World:
    """So many things have happened."""
    for _ in range(place):
        world.tick()
    return world


def moments(world: World) -> range:
    """After how many things something else may happen: from the start until the daemon exits, and just after it."""
    count = 0
    while world.exit is None:
        world.tick()
        count += 1
    return range(count + 1)


def calm() -> Ending:
    """A run that nothing disturbs."""
    return Ending(0)


def recovering() -> Ending:
    """A daemon that has found steps after the newest checkpoint, and makes them again."""
    world = until(Ending(0), 7)
    world.restart_daemon()
    return world


def going_back() -> Ending:
    """An operator has ordered a rollback."""
    world = until(Ending(0), 6)
    world.command(m.Rollback(epoch=1))
    return world


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("made", [calm, recovering, going_back])
def test_a_signal_at_any_moment_gives_its_code_unless_the_run_completes(name, made):
    """Also in the last checkpoint, after which the run is complete: then the code is 0."""
    seen = set()
    for place in moments(made()):
        world = ticked(made(), place)
        world.signal(name=name)
        world.run()
        seen.add((world.state.run.phase, world.exit))
        assert [one.signal for one in find(world, m.StopRequested)] in ([], [name])
        assert fold(RunState(), world.events) == world.state
    assert seen == {(st.Phase.STOPPED, CODES[name]), (st.Phase.COMPLETED, 0)}


def test_a_failed_run_exits_as_failed_whatever_ends_the_daemon():
    """A signal, or an order, while the run fails: 70, as without it. One that stops it before is its end."""
    for end in (lambda world: world.signal(), lambda world: world.command(m.Stop())):
        seen = set()
        for place in moments(dying := _dying()):
            world = ticked(_dying(), place)
            end(world)
            world.run()
            seen.add((world.state.run.phase, world.exit))
        assert dying.exit == exits.EXIT_FAILED
        stopped = 143 if end(world) is None else 0
        assert seen == {(st.Phase.STOPPED, stopped), (st.Phase.FAILED, exits.EXIT_FAILED)}


def _dying() -> Ending:
    world = Ending(0)
    world.dies = True
    return world


@pytest.mark.parametrize("then", [[], [1], [1, 2], [2]], ids=str)
def test_an_operators_stop_that_a_signal_hastens_stays_the_operators(then):
    """`tolaria stop`, then signals, at every moment: 0. If the daemon dies, the next start completes the stop."""
    for place in moments(Ending(0))[2:-1]:
        world, dead = (ticked(Ending(0), place) for _ in range(2))
        for one in (world, dead):
            if not isinstance(one.command(m.Stop()), Accepted) or one.state.run.phase is st.Phase.COMPLETED:
                continue
            for count in then:
                one.signal(count)
        dead.restart_daemon()
        for one in (world, dead):
            one.run()
            assert one.exit == 0
        assert dead.state.run.phase in (st.Phase.STOPPED, st.Phase.COMPLETED)
        assert find(dead, m.StopAborted) == []


@pytest.mark.parametrize(
    ("names", "code"), [(("SIGTERM", "SIGINT"), 143), (("SIGINT", "SIGTERM"), 130), (("SIGUSR1", "SIGINT"), 143)]
)
def test_the_first_signal_gives_the_code(names, code):
    """A second one only hastens the stop."""
    world = until(World(0), 3)
    for count, name in enumerate(names, 1):
        world.signal(count, name)
    world.run()

    assert [one.mode for one in find(world, m.StopRequested)] == [m.StopMode.GRACEFUL, m.StopMode.KILL]
    assert world.exit == code


def test_an_operator_who_hastens_a_signals_stop_takes_it_over():
    """SIGTERM, then `tolaria stop --now`."""
    world = until(World(0), 3)
    world.signal()
    assert isinstance(world.command(m.Stop(mode=m.StopMode.NOW)), Accepted)
    world.run()

    assert world.exit == 0


@pytest.mark.parametrize("name", CODES)
def test_a_paused_a_halted_and_a_stopped_run_are_not_done(name):
    """A signal to a daemon that trains nothing. The paused run has a last checkpoint; the stopped one was activated."""
    paused, frozen, stopped = (until(World(0), 3) for _ in range(3))
    paused.command(m.Pause())
    ticked(paused, 10)
    assert paused.state.run.phase is st.Phase.PAUSED
    frozen.command(m.RaiseEmergency(level=m.Level.CRITICAL, reason="smoke"))
    ticked(frozen, 9)
    stopped.command(m.Stop())
    stopped.run()
    assert stopped.exit == 0
    stopped.restart_daemon(m.StartMode.ACTIVATED)
    for world in (paused, frozen, stopped):
        world.signal(name=name)
        world.run()

    phases = [world.state.run.phase for world in (paused, frozen, stopped)]
    assert phases == [st.Phase.STOPPED, st.Phase.FROZEN, st.Phase.STOPPED]
    assert {world.exit for world in (paused, frozen, stopped)} == {CODES[name]}
    assert paused.state.checkpoints.newest.step == paused.state.progress.step
