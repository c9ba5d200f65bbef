"""Several updates in one step: each is a backward pass of its own loss and a step of one optimizer.

Promises: the gradients of an update are those of its loss alone, and only for the parameters of its optimizer. After an
update no gradient is left. If an update is not finite, neither it nor a later update of its step is made, provided that
the step is then skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from tolariad.core import messages as m
from tolariad.core.calc.text.nearest import did_you_mean, nearest
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.closures import Closure, Evaluations, LeftUndone, needs_closure, refuse_closure
from tolariad.trainer.step.gradients import backward, beside, drop_gradients, norm_of, scalar
from tolariad.trainer.step.measured import InFlight, Measured, measured

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.setup import Setup


def _nothing(*_: object) -> None:
    """Do nothing."""


class Updates:
    """The updates of the current step. A task's `training_step` gets it as `run`.

    `before` is called with the optimizer before each of its updates, `after` after it; between them, `evaluated` before
    one by a closure.
    """

    def __init__(
        self,
        setup: Setup,
        before: Callable[[Optimizer], None] = _nothing,
        after: Callable[[], None] = _nothing,
        evaluated: Callable[[], None] = _nothing,
    ) -> None:
        self._setup = setup
        self._before, self._after, self._evaluated = before, after, evaluated
        owners = setup.owners
        self._owned = {owner.name: (owner, [one for one in owners if one is not owner]) for owner in owners}
        self._late = setup.reads_late
        self._step = 0
        self._drops_unhealthy = self.is_dropped = False
        self._names: list[str] = []
        self._losses: list[Any] = []
        self._norms: list[Any] = []
        self._overflow = 0.0
        self.metrics: dict[str, float | Tensor] = {}

    def begin(self, step: int, *, drops_unhealthy: bool = False) -> None:
        """Begin step `step`. `drops_unhealthy`: the step is skipped if one of its numbers is not finite."""
        self._step, self._drops_unhealthy, self.is_dropped = step, drops_unhealthy, False
        self._names, self._losses, self._norms, self._overflow = [], [], [], 0.0

    @property
    def count(self) -> int:
        """How many updates of this step were computed so far."""
        return len(self._losses)

    @property
    def losses(self) -> dict[str, float]:
        """The sum of the losses of each optimizer's updates in this step. Waits for those on a device."""
        found: dict[str, float] = {}
        for name, loss in zip(self._names, self._losses, strict=True):
            found[name] = found.get(name, 0.0) + float(loss)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the optimizers."""
        return tuple(self._owned)

    def update(
        self, name: str, loss: Tensor | None = None, *, closure: Closure | None = None, retain_graph: bool = False
    ) -> None:
        """Run the backward pass of `loss`, then a step of the optimizer `name`. Drop all gradients.

        `loss` is a tensor with one element. `retain_graph` is that of `Tensor.backward`. `closure` is passed to the
        optimizer's step: it returns the loss, and may run its backward pass. Without `loss`, its first evaluation gives
        the numbers of the update. Raises SetupRefused for an unknown name, another kind of loss, or one without a
        gradient.
        """
        if name not in self._owned:
            hint = did_you_mean(nearest(str(name), self._owned))
            raise SetupRefused(f"update({name!r}): the optimizers are {', '.join(self._owned)}{hint}")
        if self._setup.garden.plots:
            raise SetupRefused(
                f"update({name!r}): the model has slots for seeds, and which of several losses a seed is to learn from "
                "is not known. Remove the slots, or call run.step(loss) once for each batch"
            )
        if not self._step:
            raise SetupRefused(f"update({name!r}) was called outside of a step: call it in training_step only")
        if closure is not None:
            refuse_closure(self._setup, f"update({name!r}, closure=...)")
        elif needs_closure(owner := self._owned[name][0].optimizer):
            raise SetupRefused(
                f"update({name!r}): {type(owner).__name__} evaluates the loss several times in a step; give it a "
                "function that computes and returns the loss, as closure="
            )
        if loss is not None or closure is None:
            loss = scalar(loss, f"update({name!r}, loss): the loss must be")
        # The step is going to be skipped: its other updates would be undone.
        if self.is_dropped:
            return
        if loss is not None:
            self._make(name, loss, closure, retain_graph=retain_graph)
        elif closure is not None:
            self._evaluate(name, closure)

    def take(self, returned: Mapping[Any, Any]) -> None:
        """Record the numbers that a task's `loss` returned beside the loss."""
        self._setup.metrics.log(returned, but="loss")

    def log(self, name: str, value: float | Tensor) -> None:
        """Record a number of this step under a name, as those that `training_step` returns."""
        self._setup.metrics.log({name: value})

    def _make(self, name: str, loss: Tensor, closure: Closure | None, *, retain_graph: bool) -> None:
        setup = self._setup
        owner, others = self._owned[name]
        with self._without_autocast():
            backward(setup, loss, f"update({name!r}, loss): the loss", retain_graph=retain_graph)
        drop_gradients(others)
        setup.rates.drop_frozen_gradients()
        if setup.pruner.active:
            setup.pruner.zero_gradients()
        overflow = setup.scaling.unscale([owner.optimizer]) if setup.scaling is not None else None
        self._names.append(name)
        self._measure(loss.detach(), norm_of(setup, loss.device, self._step), overflow)
        if not self.is_dropped:
            self._before(owner.optimizer)
            if closure is None:
                owner.optimizer.step()
            else:
                self._by_closure(owner, closure, _nothing)
            self._hold_masks()
            self._after()
        if setup.scaling is not None:
            setup.scaling.move_on()
        self._forget(owner)

    def _evaluate(self, name: str, closure: Closure) -> None:
        """Let the optimizer make a step whose numbers are those of its closure's first evaluation."""
        owner = self._owned[name][0]

        def measure(loss: Tensor, norm: Tensor | float) -> None:
            self._names.append(name)
            self._measure(loss, norm, None)
            if self.is_dropped:
                raise LeftUndone

        self._before(owner.optimizer)
        try:
            self._by_closure(owner, closure, measure)
            self._hold_masks()
            self._after()
        except LeftUndone:
            pass  # `is_dropped` says so: the whole step is undone
        self._forget(owner)

    def _hold_masks(self) -> None:
        if self._setup.pruner.active:  # safety: masks-held-after-each-update
            self._setup.pruner.hold()

    def _by_closure(self, owner: Owner, closure: Closure, first: Callable[[Tensor, Tensor | float], None]) -> None:
        evaluations = Evaluations(
            self._setup, owner, closure, step=self._step, first=first, without_autocast=self._without_autocast
        )
        self._evaluated()
        owner.optimizer.step(evaluations)
        if not evaluations.count:
            raise SetupRefused(
                f"the optimizer {owner.name} ({type(owner.optimizer).__name__}) does not call the closure that its "
                "step gets; give the loss instead"
            )

    @staticmethod
    def _forget(owner: Owner) -> None:
        """After an update: drop its gradients."""
        drop_gradients((owner,))
        # autocast keeps copies of the parameters in half precision until its block ends: they are old now.
        torch.clear_autocast_cache()

    def _without_autocast(self) -> AbstractContextManager[Any]:
        """Return a context without autocast: `update` is called inside of the one that encloses training_step."""
        if self._setup.settings.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._setup.device.type, enabled=False)

    def _measure(self, loss: Tensor, norm: Tensor | float, overflow: Tensor | None) -> None:
        """Take in the numbers of an update before it is made."""
        if self._late:
            # A copy: a later forward pass may write to the same memory.
            loss = loss.to(torch.float64, copy=True)
            self._losses.append(loss)
            self._norms.append(beside(loss, torch.as_tensor(norm)))
            return
        self._losses.append(loss.item())
        self._norms.append(float(norm))
        self._overflow += 0.0 if overflow is None else float(overflow)
        is_finite = math.isfinite(self._losses[-1]) and math.isfinite(self._norms[-1])
        self.is_dropped = self._overflow > 0.0 or (self._drops_unhealthy and not is_finite)

    def end(self, returned: Any) -> Measured | InFlight:
        """Return the numbers of the step. `returned` holds metrics by name; the loss of the step may be among them.

        If the loss is missing or not finite, the sum of the updates' losses is the loss. The norm is that over the
        gradients of all updates. Raises SetupRefused if there was no update, or for metrics that are no numbers.
        """
        self._step = 0
        self.metrics = checked_metrics(returned)
        self._setup.metrics.log(self.metrics, but="loss")
        if not self._losses:
            raise SetupRefused("training_step(model, batch, run) made no update; call run.update(name, loss) in it")
        given = self.metrics.get("loss")
        if self._late:
            return self._in_flight(given)
        loss = sum(self._losses)
        if given is not None and math.isfinite(loss):
            loss = float(given)
        norm = self._norms[0] if len(self._norms) == 1 else math.hypot(*self._norms)
        return measured(loss, m.NOT_MEASURED if m.NOT_MEASURED in self._norms else norm, self._overflow)

    def _in_flight(self, given: float | Tensor | None) -> InFlight:
        """Return the same from a device, without waiting for it."""
        loss, norms = torch.stack(self._losses).sum(), torch.stack(self._norms)
        if given is not None:
            loss = torch.where(loss.isfinite(), beside(loss, torch.as_tensor(given)), loss)
        norm = torch.where((norms == m.NOT_MEASURED).any(), m.NOT_MEASURED, torch.linalg.vector_norm(norms))
        return InFlight(torch.stack([loss, norm]))


def checked_metrics(returned: Any, where: str = "training_step(model, batch, run) must return") -> dict[str, Any]:
    """Return metrics by name: numbers, and tensors without a graph. Raises SetupRefused, which begins with `where`."""
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise SetupRefused(f"{where} a dict of numbers by name, or None, not a {type(returned).__name__}")
    metrics: dict[str, float | Tensor] = {}
    for name, value in returned.items():
        is_number = isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)
        if not isinstance(name, str) or not is_number or (isinstance(value, torch.Tensor) and value.is_complex()):
            kind = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise SetupRefused(f"{where} a dict of numbers by name; {name!r} is {kind}")
        metrics[name] = value.detach().reshape(()) if isinstance(value, torch.Tensor) else value
    return metrics
