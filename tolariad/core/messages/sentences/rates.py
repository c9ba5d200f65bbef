"""The sentences for learning rates, hyper-parameters, and rebuilds of optimizers."""

from __future__ import annotations

from typing import Any, Final

from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.group import Group
from tolariad.core.calc.text.phrases import because, counted, listed
from tolariad.core.messages.sentences.givers import OrderSentences, OrderWords, Sentences, by


def _violated(e: m.LrViolationDetected) -> str:
    group = f" of {e.group}" if e.group else ""
    if e.what == m.DIGEST_DIFFERS:
        return f"Update {e.step} used other learning rates than those in the journal."
    if e.what.startswith(m.SCHEDULER_STEPPED):
        stepped, place = f"A{e.what[1:]}", f", in {e.where}" if e.where else ""
        do = "Remove it and set `learning_rate.policy` (docs/learning-rate.md)"
        return f"{stepped}{place}. It has no effect: tolariad sets the learning rates. {do}."
    values = "" if e.expected is None or e.found is None else f" (found {e.found:.6g}, reset to {e.expected:.6g})"
    where = f", in {e.where}" if e.where else ""
    return f"Corrected the learning rate{group} before update {e.step}{values}: {e.what}{where}."


def _groups(e: m.LrGroupsRegistered) -> str:
    return f"The learning rates of {counted(len(e.groups), 'group')} are controlled: {listed(map(_group, e.groups))}."


def _regrouped(e: m.LrGroupsChanged) -> str:
    return f"From step {e.applied_before_step} on the groups are {listed(map(_group, e.groups))}."


def _group(group: Group) -> str:
    return f"{group.name} ({group.policy.value}, {group.schedule.base_lr:.6g})"


def _rate_ordered(e: m.OrderGiven) -> str:
    order: Any = e.order
    curve = "" if order.policy is None else f", with policy {order.policy.value},"
    return f"The learning rate of {order.group} becomes {order.value:.6g}{curve} at the next step, ordered{by(e)}"


def _rate_changed(e: m.OrderActed) -> str:
    order: Any = e.order
    rate = f"{order.value:.6g} from step {e.applied_before_step} on (before: {e.outcome_as(m.RateSet).before:.6g})"
    return f"The learning rate of {order.group} is {rate}."


def _plateau(e: m.PlateauReached) -> str:
    rates = f"from {e.before:.6g} to {e.rate:.6g} from step {e.applied_before_step} on"
    return f"The learning rate of {e.group} falls {rates}: {e.metric} stopped improving in epoch {e.epoch}."


_HOST: Final = ("", m.HOST)


def _values(values: dict[str, float]) -> str:
    return listed(f"{name} {value:.6g}" for name, value in sorted(values.items()))


def _of(optimizer: str) -> str:
    return "the host's optimizer" if optimizer in _HOST else f"optimizer {optimizer}"


def _ordered(e: m.OrderGiven) -> str:
    order: Any = e.order
    return f"Hyper-parameters of {_of(order.optimizer)} were ordered ({_values(order.values)}){by(e)}"


def _changed(e: m.OrderActed) -> str:
    order: Any = e.order
    values = _values(order.values) or "the same values"
    return f"From step {e.applied_before_step} on, {_of(order.optimizer)} has {values}."


ORDERS: Final[OrderSentences] = {
    m.SetRate: OrderWords(
        given=_rate_ordered,
        acted=_rate_changed,
        aborted="The learning rate that was ordered for {e.order.group} never acted{why}",
    ),
    m.SetHyperparameters: OrderWords(
        given=_ordered,
        acted=_changed,
        aborted=lambda e: f"No hyper-parameter of {_of(e.order.optimizer)} was set{because(e.why)}",
    ),
}


def _restored(e: m.RatesRestored) -> str:
    if not e.undone:
        return "The learning rates are those of the rollback's target again."
    first, *further = e.undone
    more = f" and {counted(len(further), 'other rate')}" if further else ""
    return f"A rollback undid the learning rate {first.rate:.6g} of {first.group}, set at step {first.step}{more}."


SENTENCES: Final[Sentences] = {
    m.LrGroupsRegistered: _groups,
    m.LrGroupsChanged: _regrouped,
    m.PlateauReached: _plateau,
    m.PlateauUnjudged: lambda e: f"Epoch {e.epoch} had no loss to judge the rates of {listed(e.groups)} by.",
    m.RatesRestored: _restored,
    m.LrViolationDetected: _violated,
    m.AuditDiffered: "The update of {e.parameter} at step {e.step} does not follow from its learning rate: {e.what}.",
    m.OptimizerRebuildPrepared: "A rebuild of the optimizer {e.optimizer} is prepared.",
    m.OptimizerRebuildCommitted: "The optimizer {e.optimizer} was rebuilt in {e.elapsed_ms:.3g} ms.",
    m.OptimizerRebuildAborted: "The rebuild of the optimizer {e.optimizer} was given up{why}",
}
