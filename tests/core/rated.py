"""The simulated run with learning rates: a trainer that draws, scales and lowers them as the real one does."""

from __future__ import annotations

from msgspec.structs import replace

from tests.core import simulated_trainer
from tests.core.simulate import World
from tests.core.simulated_trainer import Trainer
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.learning_rate.curve import rates_digest
from tolariad.core.calc.learning_rate.group import Group, after_epoch, ordered, rate_of, with_order
from tolariad.core.calc.learning_rate.schedule import LRPolicy, PlateauRule, Schedule

GROUPS = (
    Group("body", Schedule(policy=LRPolicy.HOST_COSINE, base_lr=0.1, min_lr=1e-4, total_steps=12, warmup_steps=3)),
    Group("head", Schedule(policy=LRPolicy.CONSTANT, base_lr=0.02, total_steps=12)),
    Group(
        "seed",
        Schedule(
            policy=LRPolicy.MORPHO_ADAPTIVE,
            base_lr=0.05,
            total_steps=12,
            plateau=PlateauRule(patience=0, factor=0.5, threshold=0.9),
        ),
    ),
    Group("still", Schedule(policy=LRPolicy.FROZEN, base_lr=0.01, total_steps=12)),
)


def rates_at(groups, step):
    """Return the rates of all groups at update `step`, each computed alone."""
    return tuple(rate_of(group, step) for group in groups)


def steps_before(epoch):
    """How many steps the epochs before `epoch` make."""
    return sum(simulated_trainer.BATCHES[one].count("s") for one in range(1, epoch))


def sum_of_losses(steps):
    """Added one by one, as the fold does."""
    total = 0.0
    for step in steps:
        total += 1.0 / step
    return total


class RatedTrainer(Trainer):
    """`saved` is what its checkpoints hold of the rates; `owing` names those taken before an order was repeated."""

    def __init__(self, *given, saved, owing):
        super().__init__(*given)
        self.tells = False
        self.todo[0] = replace(self.todo[0], groups=GROUPS)
        self.groups, self.applied, self.saved = GROUPS, 0, saved
        self.script_orders = ()
        self.owing = owing

    def _obey(self):
        if self.order is not None:
            self._repeat()
            self._tell()
        super()._obey()

    def _tell(self):
        if self.tells and not self.script and self.done_epoch >= self.order.epoch_finished:
            self.tells = False
            self.todo.append(m.RatesStandingReport(rates=self._standing()))

    def _begin(self, order):
        super()._begin(order)
        if self.order is not order:
            return
        self.tells = order.tell_rates
        if order.checkpoint is not None:
            self.groups, self.applied = self.saved[order.checkpoint.id]
        self.todo[-1] = replace(self.todo[-1], rates=self._standing())
        self._repeat()
        self._tell()

    def _repeat(self):
        for one in self.script_orders:
            due = one.before_step <= self.step + 1 and one.after_epoch <= self.done_epoch
            if due and one.number > self.applied:
                self.repeat(one.order)
                self.applied = one.number

    def _roll_back(self, to):
        self.groups, self.applied = self.saved[to.id]
        self.script_orders, self.tells = (), False
        super()._roll_back(to)
        self.todo[-1] = replace(self.todo[-1], rates=self._standing())

    def _standing(self):
        losses = range(steps_before(self.done_epoch + 1) + 1, self.step + 1) if self.batch else ()
        total = sum_of_losses(losses)
        return m.Standing(groups=self.groups, orders=self.applied, losses=len(losses), loss_sum=total)

    def _change(self, name, change):
        self.groups = tuple(change(group) if group.name == name else group for group in self.groups)

    def repeat(self, order):
        self._change(
            order.group, lambda group: with_order(group, order.value, order.curve, order.policy, order.function)
        )

    def carry_out(self, order):
        before = self.step + 1
        self._change(order.group, lambda group: ordered(group, before, order.value, order.policy, order.function))
        self.applied += 1
        return ""

    def _written(self, id_):
        self.saved[id_] = (self.groups, self.applied)
        if any(one.number > self.applied for one in self.script_orders):
            self.owing.append(id_)
        return replace(super()._written(id_), orders=self.applied)

    def _next_epoch(self):
        super()._next_epoch()
        losses = range(steps_before(self.done_epoch) + 1, self.step + 1)
        if losses:
            mean = sum_of_losses(losses) / len(losses)
            self.groups = tuple(after_epoch(group, self.step, mean) for group in self.groups)
        self._repeat()

    def _train(self, durable):
        report = super()._train(durable)
        if isinstance(report, m.StepReport):
            row = rates_at(self.groups, report.step)
            report = replace(report, lr=row[0], rates=rates_digest(row))
        return report

    def _rerun(self):
        script = self.script
        before = len(script)
        expected = script[0]
        report = super()._rerun()
        if len(script) < before and isinstance(expected, m.ScriptStep):
            assert rates_digest(rates_at(self.groups, self.step)) == expected.rates, (expected, self.groups)
        return report


class RatedWorld(World):
    """A world whose trainers have rates, and whose operator changes them."""

    def __init__(self, seed, **policy):
        self.saved = {}
        self.owing = []
        super().__init__(seed, **policy)

    def new_trainer(self, incarnation):
        given = incarnation, self.environment, self.accuracy, self.broken
        return RatedTrainer(*given, saved=self.saved, owing=self.owing)

    def _do(self, effect):
        super()._do(effect)
        if isinstance(effect, m.TrainFrom) and self.trainer is not None:
            ref = effect.checkpoint
            entry = next((one for one in self.state.checkpoints.catalogue if ref and one.id == ref.id), None)
            branch, lines = entry.branch if entry else 0, self.state.rollbacks.branches
            script = q.script_from_journal(self.events[entry.script_from - 1 if entry else 0 :], ref, branch, lines)
            self.trainer.script_orders = script.orders

    def lr_set(self, group, value, policy=None, **given):
        return self.command(m.LrSet(group=group, value=value, policy=policy, **given))

    def anything(self):
        if self.random.random() < 0.06:
            group = self.random.choice(["body", "head", "seed", "still", "nobody"])
            policies = [None, None, LRPolicy.CONSTANT, LRPolicy.LINEAR, LRPolicy.MORPHO_ADAPTIVE]
            value = self.random.choice([0.2, 0.05, 0.01, 0.003])
            self.lr_set(group, value, self.random.choice(policies), id=self._id())
        else:
            super().anything()
