"""Updates by a closure: an optimizer such as LBFGS evaluates the loss itself, several times in one step.

Promises: the evaluations are those that the optimizer asks for, no more. The first one gives the numbers of the update.
If it is not finite and the step is to be skipped, the optimizer is left there, before it changes a parameter.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.gradients import (
    backward,
    drop_gradients,
    has_gradients,
    norm_of,
    refuse_without_loss,
    scalar,
)

if TYPE_CHECKING:
    from torch import nn

    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.setup import Setup

Closure = Callable[[], Any]


class LeftUndone(Exception):
    """Raised out of an optimizer's step whose first evaluation was not finite: its update is not to be made."""


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer's `step` cannot be called without a closure."""
    return _requires_closure(type(optimizer).step)


@functools.cache
def _requires_closure(step: Callable[..., Any]) -> bool:
    # Every step asks, and a signature takes as long as a small step's other work.
    try:
        given = inspect.signature(step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return given is not None and given.default is inspect.Parameter.empty


class Evaluations:
    """The closure that an optimizer of the run calls. `count`: how often it was called in this step."""

    def __init__(
        self,
        setup: Setup,
        owner: Owner,
        closure: Closure,
        *,
        step: int,
        first: Callable[[torch.Tensor, torch.Tensor | float], None],
        without_autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """`first` takes loss and gradient norm of the first evaluation; it may raise LeftUndone."""
        self._setup, self._owner, self._closure, self._step, self._first = setup, owner, closure, step, first
        self._others = [one for one in setup.owners if one is not owner]
        self._without_autocast = without_autocast
        self.count = 0

    def __call__(self) -> Any:
        """Evaluate the loss and its gradients. A closure that has no backward pass of its own gets one."""
        setup = self._setup
        drop_gradients((self._owner,))
        # The parameters may have changed since the last evaluation, and autocast keeps copies of them.
        torch.clear_autocast_cache()
        with torch.enable_grad():
            returned = self._closure()
            loss = scalar(returned, "closure() must return")
            if not has_gradients((self._owner,)):
                with self._without_autocast():
                    backward(setup, loss, "the loss that closure() returns")
        drop_gradients(self._others)
        setup.rates.drop_frozen_gradients()
        if setup.pruner.active:
            setup.pruner.zero_gradients()
        self.count += 1
        if self.count == 1:
            self._first(loss.detach(), norm_of(setup, loss.device, self._step))
        elif setup.clip is not None:
            norm_of(setup, loss.device, self._step)
        return returned


def refuse_closure(setup: Setup, what: str) -> None:
    """Raise SetupRefused, which begins with `what`, if this run cannot update by a closure."""
    if setup.scaling is not None:
        raise SetupRefused(
            f"{what}: precision fp16 scales the loss before its backward pass, and a closure makes its own. Use bf16, "
            "or an optimizer without a closure"
        )


def by_closure(task: Any, name: str) -> Callable[..., Any]:
    """Return a `training_step` that calls the task's `loss` as often as the optimizer `name` asks for it."""

    def training_step(model: nn.Module, batch: Any, run: Any) -> None:
        evaluated: list[Any] = []

        def closure() -> Any:
            returned = task.loss(model, batch)
            if not isinstance(returned, dict):
                return returned
            if not evaluated:
                evaluated.append(returned)
                run.take(returned)
            return returned["loss"] if "loss" in returned else refuse_without_loss(returned)

        run.update(name, closure=closure)

    return training_step
