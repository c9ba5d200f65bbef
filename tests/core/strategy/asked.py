"""A simulated run with a strategy: its trainer keeps the strategy's state and hyper-parameters, the tests answer."""

from __future__ import annotations

from msgspec.structs import replace

from tests.core.rated import RatedTrainer, RatedWorld
from tests.core.simulate import find, tick_until
from tolariad.core import messages as m
from tolariad.core import state as st

SLOTS = (m.SlotFound("first", 1), m.SlotFound("second", 2))


class StrategyTrainer(RatedTrainer):
    """`kept` and `hyper` are parts of its state: each checkpoint holds them, `pieces` by the checkpoint's name."""

    def __init__(self, *given, pieces, slots, **more):
        super().__init__(*given, **more)
        self.kept, self.hyper, self.pieces = b"", {}, pieces
        self.todo[0] = replace(self.todo[0], slots=slots, blueprints=("bottleneck",) if slots else ())

    def carry_out(self, order):
        match order:
            case m.KeepStrategyState(epoch=epoch):
                if (self.done_epoch, self.batch) != (epoch, 0):
                    return f"it is of epoch {epoch}, training is in epoch {self.done_epoch + 1}"
                self.kept = order.state
            case m.SetHyperparameters(values=values):
                if "nesterov" in values:
                    return "AdamW has no hyper-parameter 'nesterov'"
                self.hyper = {**self.hyper, **values}
            case _:
                return super().carry_out(order)
        self.applied += 1
        return ""

    def repeat(self, order):
        match order:
            case m.KeepStrategyState():
                self.kept = order.state
            case m.SetHyperparameters():
                self.hyper = {**self.hyper, **order.values}
            case _:
                super().repeat(order)

    def _begin(self, order):
        if order.checkpoint is not None:
            self.kept, self.hyper = self.pieces.get(order.checkpoint.id, (b"", {}))
        super()._begin(order)

    def _roll_back(self, to):
        self.kept, self.hyper = self.pieces[to.id]
        super()._roll_back(to)

    def _written(self, id_):
        self.pieces[id_] = (self.kept, self.hyper)
        return super()._written(id_)


class StrategyWorld(RatedWorld):
    """Keeps the questions that nobody has answered yet, and what the trainer is sent."""

    def __init__(self, seed, *, strategy="default", slots=(), **policy):
        self.pieces, self.slots = {}, slots
        self.questions, self.votes, self.sent = [], [], []
        super().__init__(seed, strategy=strategy, **policy)

    def new_trainer(self, incarnation):
        given = incarnation, self.environment, self.accuracy, self.broken
        own = {"pieces": self.pieces, "slots": self.slots}
        return StrategyTrainer(*given, saved=self.saved, owing=self.owing, **own)

    def _do(self, effect):
        if isinstance(effect, m.AskStrategy):
            self.questions.append(effect)
        elif isinstance(effect, m.AskVote):
            self.votes.append(effect)
        else:
            self.sent.append(effect)
            super()._do(effect)

    def restart_daemon(self, *given):
        # Questions die with the daemon that would have asked them.
        self.questions, self.votes = [], []
        super().restart_daemon(*given)

    def until_asked(self, epoch=1):
        """Train until the strategy is asked after this epoch; earlier questions get an empty answer."""

        def is_asked():
            asked = self.state.boundary.asked
            if asked is not None and asked.epoch < epoch and not self.due:
                self.answer()
            return isinstance(asked, st.OpenQuestion) and asked.epoch == epoch

        return tick_until(self, is_asked, f"asked after epoch {epoch}")

    def answer(self, *commands, state=None, **more):
        """Answer the open question."""
        held = self.state.strategy.kept if state is None else state
        generation = self.state.boundary.asked.generation
        self.give(m.StrategyReply(generation=generation, commands=commands, state=held, **more))
        return self

    def vote(self, vote=m.Vote.AGREED, why=""):
        """Vote as the newest request asks."""
        asked = self.votes.pop()
        self.give(m.VoteGiven(rollback=asked.rollback, checkpoint=asked.checkpoint, vote=vote, why=why))

    def continued(self):
        """Return the epochs after which the trainer was told to go on, in order."""
        return [effect.epoch for effect in self.sent if isinstance(effect, m.Continue)]

    def finish(self):
        """To the run's end; every question and vote gets the usual answer."""
        for _ in range(900):
            if self.exit is not None:
                return self
            if self.state.boundary.asked is not None and not self.due:
                self.answer()
            if self.votes:
                self.vote()
            self.tick()
        return self


def command(order, id_="", kind="COMMAND_OPTIMIZER", **more):
    """Return a command as the daemon translates it."""
    return m.StrategyCommand(kind=kind, id=id_, order=order, **more)


def refusals(world):
    """Return the reasons of the commands that were refused, in order."""
    return [event.why for event in find(world, m.CommandRefused)]
