"""The optimizer of a seed: the configured one, or one of the host's kind; and the schedule of its learning rate.

Promises: an optimizer that cannot be made for a seed is refused before training. The schedule begins with the seed's
germination, and follows from the recorded move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from msgspec.structs import replace

from tolariad.core.calc.learning_rate.group import Group
from tolariad.core.calc.learning_rate.seed_warmup import seed_schedule
from tolariad.core.calc.settings.rules import optimizer_arguments
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.optim.configured import CLASSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tolariad.core.calc.settings.seeds import SeedSettings
    from tolariad.trainer.lr import UnifiedLRController

# Written by the rate controller, by torch's schedulers or by the user as a label; not arguments of an optimizer.
_NOT_AN_OPTION: Final = ("params", "param_names", "lr", "initial_lr", "name")
# Of a trial parameter.
_ELEMENTS: Final = 64


class SeedOptimizers:
    """Makes the optimizers of the seeds of one run."""

    def __init__(self, settings: SeedSettings, host: torch.optim.Optimizer, rates: UnifiedLRController) -> None:
        """`host`: the host's first optimizer."""
        self._settings, self._host, self._rates = settings, host, rates

    def make(self, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return an optimizer for these parameters. The rate controller sets its rate. Raises SetupRefused."""
        if not parameters:
            raise SetupRefused("the seed has no parameter to train")
        options = self._settings.optimizer
        kind: Any
        if options is not None:
            kind, given = CLASSES[options.name], optimizer_arguments(options)
        else:
            group = self._host.param_groups[0]
            kind = type(self._host)
            given = {key: value for key, value in group.items() if key not in _NOT_AN_OPTION}
        try:
            made: torch.optim.Optimizer = kind([{"params": list(parameters), **given}], lr=self._first.schedule.base_lr)
        except (TypeError, ValueError, RuntimeError) as error:
            which = "seeds.optimizer" if options is not None else f"an optimizer of the host's kind, {kind.__name__},"
            more = "" if options is not None else "; set seeds.optimizer"
            raise SetupRefused(f"{which} cannot be made for a seed: {error}{more}") from error
        if options is None:
            # Options that a class takes as arguments only, or that were changed since.
            made.param_groups[0].update(given)
        return made

    def group(self, name: str, start: int, warmup_steps: int | None) -> Group:
        """Return the parameter group of a seed that germinates after step `start`, with its schedule.

        `warmup_steps` None: an older version let the seed germinate. Its rate is then the host's curve, with `seeds.lr`
        as base rate if that is set.
        """
        host, own = self._first.schedule, self._settings.lr
        if warmup_steps is None:
            return Group(name, host if own is None else replace(host, base_lr=own))
        return Group(name, seed_schedule(host, start, warmup_steps, own))

    def check(self) -> None:
        """Make an optimizer for a trial parameter. Raises SetupRefused."""
        if self._settings.optimizer is not None and self._settings.optimizer.groups:
            raise SetupRefused("seeds.optimizer.groups: a seed has one parameter group; remove the key")
        self.make([torch.nn.Parameter(torch.zeros(1))])

    def state_copies(self) -> int:
        """Return how many tensors of the size of a parameter the optimizer of a seed keeps for it."""
        parameter = torch.nn.Parameter(torch.zeros(_ELEMENTS))
        parameter.grad = torch.zeros(_ELEMENTS)
        optimizer = self.make([parameter])
        optimizer.step()
        held = optimizer.state.get(parameter, {}).values()
        return sum(isinstance(one, torch.Tensor) and one.numel() == _ELEMENTS for one in held)

    @property
    def _first(self) -> Group:
        return self._rates.groups[0]
