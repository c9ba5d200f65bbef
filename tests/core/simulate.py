"""A run without processes, files or clocks: real `decide` and `apply`, a trainer as the real one is, disasters."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from tests.core.facts import daemon_started, environment, run_started
from tests.core.simulated_trainer import ACCURACY, Trainer
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.decision import Answer
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState

OPERATOR = m.Actor(uid=1000, pid=7, program="test")


def rows_of(script: m.Script) -> deque:
    """Return applied and skipped steps as one row."""
    return deque(sorted((*script.skips, *script.steps), key=lambda one: (one.step, isinstance(one, m.ScriptStep))))


class World:
    """State, events so far and the outside; every public method is one thing that can happen.

    `every`: trainers validate after every so many steps, too.
    """

    every = 0

    def __init__(self, seed: int, **policy: object) -> None:
        self.random = random.Random(seed)
        self.environment = environment()
        self.code: tuple[m.CodeFile, ...] = ()
        self.accuracy = dict(ACCURACY)
        self.state = RunState()
        self.events: list[m.Event] = []
        self.trainer: Trainer | None = None
        self.due: deque[m.Input] = deque()
        self.exit: int | None = None
        self.mono = 10**9
        self.answers: list[Answer] = []
        self.goes_back = False
        self.broken: set[str] = set()
        # Of another shape than what the task builds, so for each new trainer.
        self.unfit: set[str] = set()
        self.give(m.Opened(mode=m.StartMode.EXPLICIT, facts=(run_started(**policy), daemon_started())))

    def give(self, given: m.Input) -> Answer | None:
        """One input, as the kernel takes it: numbered, stamped, applied; then its effects."""
        self.mono += 1_000_000
        now = m.Now(self.mono, self.mono)
        decision = decide(self.state, given, now)
        self.state = decision.state
        self.events += decision.events
        for effect in decision.effects:
            self._do(effect)
        if decision.answer is not None:
            self.answers.append(decision.answer)
        return decision.answer

    def _do(self, effect: m.Effect) -> None:
        match effect:
            case m.SpawnTrainer(incarnation=incarnation):
                # A later order replaces an earlier one that waits.
                self.due = deque(one for one in self.due if not isinstance(one, m.TrainerSpawned))
                self.due.append(m.TrainerSpawned(incarnation=incarnation, pid=99, start_ticks=1, boot_id="b0"))
            case m.KillTrainer():
                self._gone(m.DeathReason.KILLED)
            case m.ExitDaemon(code=code):
                self.exit = code
            case m.DeleteCheckpoint() | m.SweepCheckpoints():
                self.due.extend([m.CheckpointRemoved(id=effect.id)] if isinstance(effect, m.DeleteCheckpoint) else [])
            case _ if self.trainer is not None:
                self.trainer.orders.append(effect)
                if isinstance(effect, m.TrainFrom) and (checkpoint := effect.checkpoint) is not None:
                    self.trainer.script, self.trainer.within = self._script(checkpoint)

    def _script(self, checkpoint: m.CheckpointRef) -> tuple[deque, dict[int, dict[str, float]]]:
        """Applied and skipped steps as one row, as the kernel cuts them from the journal."""
        entry = next(one for one in self.state.checkpoints.catalogue if one.id == checkpoint.id)
        script = q.script_from_journal(
            self.events[entry.script_from - 1 :], checkpoint, entry.branch, self.state.rollbacks.branches
        )
        return rows_of(script), script.within

    def _gone(self, reason: m.DeathReason, code: int | None = None) -> None:
        if self.trainer is not None:
            self.due.append(m.TrainerGone(incarnation=self.trainer.incarnation, reason=reason, exit_code=code))
            self.trainer = None

    def new_trainer(self, incarnation: int) -> Trainer:
        """Return the process that was spawned."""
        trainer = Trainer(incarnation, self.environment, self.accuracy, self.broken)
        trainer.todo[0] = replace(trainer.todo[0], code=self.code)
        trainer.every = self.every
        return trainer

    def tick(self) -> None:
        """Do the first thing that is due, else one act of the trainer."""
        if self.due:
            given = self.due.popleft()
            if isinstance(given, m.TrainerSpawned):
                self.trainer = self.new_trainer(given.incarnation)
                self.trainer.unfit = set(self.unfit)
            self.give(given)
        elif self.trainer is not None:
            report = self.trainer.act(self.state)
            if report is not None:
                self.give(m.ReportReceived(incarnation=self.trainer.incarnation, report=report))
            elif self.trainer.exited:
                self._gone(m.DeathReason.EXIT, 0)

    def command(self, command: object) -> Answer | None:
        return self.give(m.CommandReceived(command=command, actor=OPERATOR))

    def break_newest(self) -> None:
        """The newest checkpoint's files are damaged: whoever is to begin there or to go back there finds it."""
        newest = self.state.checkpoints.newest
        if newest is not None and newest.step:
            self.broken.add(newest.id)

    def reshape(self) -> None:
        """The model changes, now or when it is built next: the newest checkpoint does not fit it."""
        newest = self.state.checkpoints.newest
        if newest is not None and newest.step:
            shapes = [self.unfit] if self.trainer is None else [self.unfit, self.trainer.unfit]
            self.random.choice(shapes).add(newest.id)

    def crash_trainer(self) -> None:
        self._gone(m.DeathReason.SIGNAL)

    def signal(self, count: int = 1, name: str = "SIGTERM") -> None:
        self.give(m.SignalReceived(count=count, name=name))

    def restart_daemon(self, mode: m.StartMode = m.StartMode.EXPLICIT) -> None:
        """The daemon dies with its trainer, wherever they are, and is started again."""
        self.trainer = None
        self.due.clear()
        self.exit = None
        self.give(m.Opened(mode=mode, facts=(daemon_started(),)))

    def run(self, ticks: int = 2000) -> None:
        """Until the daemon ends, or nothing more happens."""
        for _ in range(ticks):
            if self.exit is not None:
                return
            self.tick()

    def anything(self) -> None:
        """One drawn thing; mostly the trainer goes on."""
        acts = [
            (60, self.tick),
            (3, lambda: self.command(m.Pause(id=self._id()))),
            (4, lambda: self.command(m.Resume(id=self._id()))),
            (1, lambda: self.command(m.Stop(id=self._id(), mode=self.random.choice(list(m.StopMode))))),
            (2, lambda: self.command(m.Checkpoint(id=self._id()))),
            (1, lambda: self.command(m.Note(text="hm", id=self._id()))),
            (1, self.crash_trainer),
            (1, self.signal),
            (1, lambda: self.signal(2)),
            (1, lambda: self.restart_daemon(self.random.choice(list(m.StartMode)))),
        ]
        if self.goes_back:
            acts += [
                (2, lambda: self.command(m.Rollback(id=self._id(), epoch=self.random.choice([None, 1, 2])))),
                (1, lambda: self.command(m.RaiseEmergency(id=self._id(), level=self.random.choice(list(m.Level))))),
                (1, self.break_newest),
                (1, self.reshape),
            ]
        self.random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()
        if self.exit is not None and self.state.run.phase.value not in ("completed", "failed"):
            self.restart_daemon(m.StartMode.EXPLICIT)

    def _id(self) -> str:
        return self.random.choice(["", "", f"id{self.random.randrange(40)}"])


class ValidatingWorld(World):
    """Trainers that validate within epochs: twice in each."""

    every = 2


def kinds(world: World) -> list[str]:
    return [type(event).__name__ for event in world.events]


def find(world: World, kind: type) -> list:
    return [event for event in world.events if isinstance(event, kind)]


def tick_until(world: World, is_so: Callable[[], object], what: str) -> World:
    """Let one thing after the other happen until it is so."""
    for _ in range(500):
        if is_so():
            return world
        world.tick()
    raise AssertionError(f"{what}: never; the last were {kinds(world)[-10:]}")


def until(world: World, step: int) -> World:
    """Train until `step` is durable."""
    return tick_until(world, lambda: world.state.progress.step >= step, f"step {step}")


def until_found(world: World, kind: type) -> World:
    """Let one thing after the other happen until one more event of this type is recorded."""
    before = len(find(world, kind))
    return tick_until(world, lambda: len(find(world, kind)) > before, kind.__name__)


def take_checkpoint(world: World) -> None:
    """Order a checkpoint, and wait until it is committed."""
    world.command(m.Checkpoint())
    until_found(world, m.CheckpointCommitted)


def completes(world: World) -> None:
    """Train to the end."""
    world.run()
    assert world.state.run.phase is st.Phase.COMPLETED
