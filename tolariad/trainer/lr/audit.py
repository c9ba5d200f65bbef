"""The audit of updates: at intervals one parameter is followed through its update, and the update is computed again.

It finds changes that no hook sees. Examples are an update without the guard (its hooks were cleared through private
attributes), an update that bypasses the optimizer (`step.__wrapped__`), weights written through `p.data`. A second
optimizer of the same class computes the parameter again, from its value, its gradient, the optimizer's state and the
recorded rate. The results are compared bit for bit. The parameter must also stay unchanged until the next update.

Promises: the audit changes nothing and draws no random number. It copies one parameter of at most a million elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from tolariad.trainer.checkpoints.tensors import same_bits

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tolariad.trainer.setup import Setup

# A larger parameter is never audited: copies of it, its gradient and its state would be seen in the time of a step.
_ELEMENTS_MAX: Final = 1 << 20
# Optimizers in which a parameter's update depends on that parameter only, so that it can be computed again alone.
_KNOWN: Final = ("torch.optim.", "tolariad.trainer.optim")

Tell = Callable[[int, str, str], None]


class _Candidate(NamedTuple):
    """A parameter that can be audited: its name, its optimizer, the index of its group there."""

    name: str
    optimizer: Optimizer
    group: int
    parameter: torch.Tensor


class Audit:
    """Audits parameters on the CPU. It passes over other devices, and optimizers of unknown classes.

    `tell(step, name, what)` is called for each difference. `sampled`: the parameter that is followed now. Without one
    there is nothing to do but before every `every`-th update.
    """

    def __init__(self, setup: Setup, tell: Tell) -> None:
        self._setup = setup
        self._rates = setup.rates
        self.every = setup.settings.audit.every_steps
        self._tell = tell
        self.sampled: _Candidate | None = None
        self._candidates: list[_Candidate] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Take the parameters that there are now as the ones to audit. Call it when the model has changed its shape."""
        names = {id(parameter): name for name, parameter in self._setup.model.named_parameters()}
        self._candidates = [
            _Candidate(names.get(id(parameter), ""), owner.optimizer, index, parameter)
            for owner in self._setup.owners
            if type(owner.optimizer).__module__.startswith(_KNOWN)
            for index, group in enumerate(owner.optimizer.param_groups)
            for parameter in group["params"]
            if parameter.device.type == "cpu" and 0 < parameter.numel() <= _ELEMENTS_MAX
        ]
        # A sample in progress is given up: the change may have replaced or overwritten its parameter.
        self.sampled = None
        # The parameter as it was immediately before the update. None: the guard did not call `_capture`.
        self._twin: torch.nn.Parameter | None = None
        self._state: dict[str, Any] = {}
        # The parameter after the audited update, until the next update begins.
        self._after: torch.Tensor | None = None

    def before_update(self, step: int) -> None:
        """Call before update `step`: check that the last parameter is unchanged; choose the next one if it is time."""
        # The run calls `begin_anew` for its own changes between two updates (masks, growth, a rollback). So other code
        # made a difference that is found here.
        if self.sampled is not None and self._after is not None:
            name, parameter = self.sampled.name, self.sampled.parameter
            if not same_bits(parameter.detach(), self._after):
                self._tell(step, name, "it was changed between two updates")
            self.sampled = self._after = None
        if self._candidates and step % self.every == 0:
            self.sampled = self._chosen(step // self.every)
            # Forget an older twin: only one that is captured in this update proves that the guard ran in it.
            self._twin = None
            self._rates.watch_next_update(self.sampled.optimizer if self.sampled else None, self._capture)

    def pass_over(self) -> None:
        """Call between the two if the coming update is by a closure: its gradients are made within the step."""
        if self.sampled is not None:
            self.sampled = self._after = self._twin = None
            self._rates.watch_next_update(None, self._capture)

    def after_update(self, step: int) -> None:
        """Call after update `step`: compare the update with the computed one."""
        if self.sampled is None or self._after is not None:
            return
        name, parameter = self.sampled.name, self.sampled.parameter
        self._after = parameter.detach().clone()
        if self._twin is None:
            self._tell(step, name, "the guard of the learning rate did not run before this update")
        elif not same_bits(self._again(self.sampled, self._twin), self._after):
            self._tell(step, name, "its update differs from the one that gradient, state and recorded rate give")
        self._twin = None

    def _chosen(self, turn: int) -> _Candidate | None:
        """Return the next parameter, in turn, that has a gradient."""
        # In turn, not at random: a drawn number would change the run's, and a re-run audits the same parameters.
        count = len(self._candidates)
        in_turn = (self._candidates[(turn + offset) % count] for offset in range(count))
        return next((one for one in in_turn if one.parameter.grad is not None), None)

    def _capture(self, row: tuple[float, ...]) -> None:
        """Copy the inputs of the update. Called after every hook, immediately before the update."""
        if self.sampled is None or self.sampled.parameter.grad is None:
            return
        # Copies of everything: the optimizer updates parameter and state in place.
        _, optimizer, index, parameter = self.sampled
        self._rate = row[index]
        self._twin = torch.nn.Parameter(parameter.detach().clone())
        self._twin.grad = parameter.grad.detach().clone()  # type: ignore[union-attr]  # looked at above
        self._state = {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in optimizer.state.get(parameter, {}).items()
        }

    def _again(self, sampled: _Candidate, twin: torch.nn.Parameter) -> torch.Tensor:
        """Apply the update to a copy, with a new optimizer of the same class and options."""
        group = sampled.optimizer.param_groups[sampled.group]
        # Without the group's own rate: the update must follow from the recorded one. Without names: there is one
        # parameter now.
        options = {key: value for key, value in group.items() if key not in ("params", "param_names", "lr")}
        kind: Any = type(sampled.optimizer)
        shadow = kind([twin], lr=self._rate)
        shadow.param_groups[0].update(options)
        if self._state:
            shadow.state[twin] = self._state
        # No guard interferes: the twin is no parameter of a registered optimizer.
        shadow.step()
        # Masks are held after every update, and so they are on the copy.
        if self._setup.pruner.active:
            self._setup.pruner.hold_copy(sampled.name, twin)
        return twin.detach()
