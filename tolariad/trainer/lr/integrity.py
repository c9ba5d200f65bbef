"""Hold the rates of all optimizers of the process to those that a controller wrote: checks, corrections, violations."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tolariad.core.calc.learning_rate.schedule import LRIntegrityError
from tolariad.trainer.lr import schedulers, source_lines
from tolariad.trainer.lr.guard import GUARD_ATTRIBUTE, UNKNOWN_GROUP, Guard, Tell, Violation
from tolariad.trainer.torch_private.hooks import BEFORE_ANY_STEP, before_step

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tolariad.guards import CircuitBreaker
    from tolariad.trainer.lr.managed import ManagedOptimizer
    from tolariad.trainer.optim.rate_controller import Tell as Told

_log: Final = logging.getLogger(__name__)


class Integrity:
    """The part of UnifiedLRController that finds changes of rates by other code."""

    def __init__(self, circuit_breaker: CircuitBreaker, on_violation: Tell | None, *, enable_guards: bool) -> None:
        self.circuit_breaker = circuit_breaker
        self.on_violation = on_violation
        self.on_rebuild: Told | None = None
        self.enable_guards = enable_guards
        self.violations = 0
        self._every: tuple[ManagedOptimizer, ...] = ()
        self._clean_epoch = True
        self._number = next(_numbers)
        _controllers[self._number] = self
        # One global hook for all controllers: it costs every optimizer of the process a call per step.
        if _before_any_step not in BEFORE_ANY_STEP.values():
            register_optimizer_step_pre_hook(_before_any_step)

    def release(self) -> None:
        """Let go of every optimizer, for good: other code may train the parameters, at rates of its own."""
        for held in self._every:
            held.guard.release()
        self.on_violation = self.on_rebuild = None
        _controllers.pop(self._number, None)
        if not _controllers:
            for number in [number for number, hook in BEFORE_ANY_STEP.items() if hook is _before_any_step]:
                del BEFORE_ANY_STEP[number]

    def verify(self, strict: bool = False, *, where: str = "") -> bool:  # noqa: FBT001, FBT002 - the interface's
        """Return whether every rate is right; correct and report wrong ones. `strict`: raise LRIntegrityError."""
        # Correct every optimizer before raising: the caller may catch the exception and go on.
        found = [one for held in self._every if not held.guard.is_clean() for one in held.guard.heal(where)]
        if found and strict:
            raise LRIntegrityError("; ".join(map(str, found)))
        return not found

    def is_clean(self) -> bool:
        """Return whether every rate is right, without correcting any."""
        return all(held.guard.is_clean() for held in self._every)

    def other_rate(self) -> Violation | None:
        """Return a rate that other code has written since the last update, without correcting it; None without one."""
        held = [one.guard for one in self._every if not one.guard.is_clean()]
        found = (one for guard in held for one in guard.violations())
        return next((one for one in found if None not in (one.expected, one.found) and one.expected != one.found), None)

    def tell_schedulers(self) -> None:
        """Report torch's LR schedulers that were stepped, although no rate may have changed yet."""
        # A scheduler may be stepped while its rate equals ours, in warm-up for example: the user should hear of it now.
        for held in self._every if self.enable_guards else ():
            if what := schedulers.what_stepped(held.guard.optimizer):
                self._tell(Violation(UNKNOWN_GROUP, None, None, what))

    def refuse_if_ours(self, optimizer: Optimizer) -> None:
        """Raise LRIntegrityError if an unregistered optimizer holds a registered parameter, before it steps."""
        # Raise here, in the hook: after the step its changes could not be told from those of the registered optimizer.
        # It would step at rates of its own. Setting them to 0 is not enough: Rprop moves at rate 0.
        if any(_is_around(one.guard.optimizer, optimizer) for one in self._every):
            return  # a part of the registered one, whose step calls it: its groups have the registered rates
        if self._has_any_of(optimizer):
            what = f"a second optimizer ({type(optimizer).__name__}) tried to step on parameters of a registered one"
            violation = Violation(UNKNOWN_GROUP, None, None, what, source_lines.of_caller())
            self._tell(violation)
            raise LRIntegrityError(str(violation))

    def holds(self, held: Optimizer | nn.Module) -> bool:
        """Return whether the optimizer is registered here, or one of the model's parameters is."""
        if isinstance(held, nn.Module):
            return self._has_any_of(held)
        return any(one.guard.optimizer is held for one in self._every)

    def _has_any_of(self, held: Optimizer | nn.Module) -> bool:
        """Return whether a parameter of the optimizer or model is one of a registered optimizer."""
        # By id: `in` would compare tensors by value. Computed each time, because groups come and go.
        if isinstance(held, nn.Module):
            theirs = set(map(id, held.parameters()))
        else:
            theirs = {id(parameter) for group in held.param_groups for parameter in group["params"]}
        return not all(theirs.isdisjoint(map(id, one.guard.parameters)) for one in self._every)

    def drop_frozen_gradients(self) -> None:
        """Drop the gradients of frozen groups. Call it before gradients are measured."""
        for held in self._every:
            if held.guard.frozen:
                held.guard.drop_frozen_gradients()

    def report_to(self, violation: Tell) -> None:
        """Report every foreign change to this from now on."""
        self.on_violation = violation

    def report_rebuilds_to(self, rebuild: Told) -> None:
        """Report every rebuild of an optimizer to this from now on."""
        self.on_rebuild = rebuild

    @contextmanager
    def rebuilds_told_to(self, rebuild: Told) -> Iterator[None]:
        """Report every rebuild to this within the block: it is part of a recorded change of the model."""
        # Given back at the end, also after an exception: a refused change of the model is undone, and training goes on.
        before, self.on_rebuild = self.on_rebuild, rebuild
        try:
            yield
        finally:
            self.on_rebuild = before

    def _tell(self, violation: Violation) -> None:
        # Guards that are switched off correct and say nothing.
        if not self.enable_guards:
            return
        # An open breaker never switches the guard off: the next violation would reach the weights.
        self.violations += 1
        self._clean_epoch = False
        self.circuit_breaker.record_failure()
        if self.on_violation is not None:
            self.on_violation(violation)
        else:
            _log.warning("learning rate: %s", violation)


# In the order of their creation: a program may train the same parameters again, under a new controller. Weak: the
# global hook lives as long as the process, and must not keep the parameters of every run that has ended in memory.
_controllers: Final[WeakValueDictionary[int, Integrity]] = WeakValueDictionary()
_numbers: Final = count()


def controlling(held: Optimizer | nn.Module) -> Integrity | None:
    """Return the newest controller of the rates of this optimizer, or of the model's parameters; or None."""
    newest_first = (one for _, one in sorted(_controllers.items(), key=lambda item: -item[0]))
    return next((controller for controller in newest_first if controller.holds(held)), None)


def _is_around(outer: Optimizer, inner: Optimizer) -> bool:
    """Return whether `outer` has `inner` as an attribute, and both have the same groups, as the same objects."""
    if not any(held is inner for held in vars(outer).values()):
        return False
    return [*map(id, inner.param_groups)] == [*map(id, outer.param_groups)]


def _before_any_step(optimizer: Optimizer, _: Any, __: Any) -> None:
    """Torch's global step pre-hook. It runs before an optimizer's own hooks, for every optimizer."""
    # Use the optimizer's own dict: a wrapper that forwards attributes would return the guard of another optimizer.
    own = optimizer.__dict__
    guard: Guard | None = own.get(GUARD_ATTRIBUTE)
    # A wrapper may take over the dict of the optimizer that it wraps, with the guard in it.
    if guard is None or guard.optimizer is not optimizer:
        # A tuple: a controller may be collected while this walks over them.
        for controller in tuple(_controllers.values()):
            controller.refuse_if_ours(optimizer)
        return
    hooks = before_step(optimizer)
    # In nearly every run the guard's hook and this one are the only hooks, and there is nothing to do.
    if len(hooks) != 1 or len(BEFORE_ANY_STEP) != 1 or guard.hook_id not in hooks or guard.suspects:
        guard.come_last(_before_any_step)
