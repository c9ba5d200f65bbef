"""What holds the rates of all optimizers to what the controller wrote: checks, corrections, violations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from torch import nn

from tolariad.core.learning_rate.schedule import LRIntegrityError
from tolariad.trainer.lr import source_lines
from tolariad.trainer.lr.guard import before_foreign_steps
from tolariad.trainer.lr.violation import UNKNOWN_GROUP, Violation

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tolariad.guards import CircuitBreaker
    from tolariad.trainer.lr.managed import ManagedOptimizer
    from tolariad.trainer.optim.rate_controller import Tell as Told

_log: Final = logging.getLogger(__name__)


class Integrity:
    """The part of UnifiedLRController that finds changes of rates by other code."""

    def __init__(
        self, circuit_breaker: CircuitBreaker, on_violation: Callable[[Violation], None] | None, *, enable_guards: bool
    ) -> None:
        self.circuit_breaker = circuit_breaker
        self.on_violation = on_violation
        self.on_rebuild: Told | None = None
        self.enable_guards = enable_guards
        self.violations = 0
        self._every: tuple[ManagedOptimizer, ...] = ()
        self._clean_epoch = True
        before_foreign_steps(self)

    def verify(self, strict: bool = False, *, where: str = "") -> bool:  # noqa: FBT001, FBT002 - the interface's
        """Return whether every rate is right; correct and report wrong ones. `strict`: raise LRIntegrityError."""
        found = [one for held in self._every if not held.guard.is_clean() for one in held.guard.heal(where)]
        if found and strict:
            raise LRIntegrityError("; ".join(map(str, found)))
        return not found

    def is_clean(self) -> bool:
        """Return whether every rate is right, without correcting any."""
        return all(held.guard.is_clean() for held in self._every)

    def refuse_if_ours(self, optimizer: Optimizer) -> None:
        """Raise LRIntegrityError if an unregistered optimizer holds a registered parameter, before it steps."""
        # It would step at rates of its own. Setting them to 0 is not enough: Rprop moves at rate 0.
        ours = {id(parameter) for held in self._every for parameter in held.guard.parameters}
        if any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
            what = f"a second optimizer ({type(optimizer).__name__}) tried to step on parameters of a registered one"
            violation = Violation(UNKNOWN_GROUP, None, None, what, source_lines.of_caller())
            self._tell(violation)
            raise LRIntegrityError(str(violation))

    def holds(self, held: Optimizer | nn.Module) -> bool:
        """Return whether the optimizer is registered here, or a parameter of the model is one of a registered optimizer."""
        if isinstance(held, nn.Module):
            ours = {id(parameter) for one in self._every for parameter in one.guard.parameters}
            return any(id(parameter) in ours for parameter in held.parameters())
        return any(one.guard.optimizer is held for one in self._every)

    def drop_frozen_gradients(self) -> None:
        """Drop the gradients of frozen groups. Call it before gradients are measured."""
        for held in self._every:
            if held.guard.frozen:
                held.guard.drop_frozen_gradients()

    def report_to(self, violation: Callable[[Violation], None], rebuild: Told) -> None:
        """Report every foreign change and every rebuild of an optimizer to these from now on."""
        self.on_violation, self.on_rebuild = violation, rebuild

    def _tell(self, violation: Violation) -> None:
        if not self.enable_guards:
            return
        self.violations += 1
        self._clean_epoch = False
        self.circuit_breaker.record_failure()
        if self.on_violation is not None:
            self.on_violation(violation)
        else:
            _log.warning("learning rate: %s", violation)
