"""Everything that a training run consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from tolariad.trainer.health.stages import Stages
from tolariad.trainer.orders.numbered import ActedOrders
from tolariad.trainer.process.code import LoadedCode
from tolariad.trainer.rollback.participants import Participants
from tolariad.trainer.step.metrics import StepMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from tolariad.core import messages as m
    from tolariad.core.calc.settings.model import Settings
    from tolariad.trainer.architecture import Ledger
    from tolariad.trainer.data.feed import Feed
    from tolariad.trainer.gradients.owners import SeedGradients
    from tolariad.trainer.health.monitor import Monitor
    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.parts.part import Part
    from tolariad.trainer.pruning.pruner import Pruner
    from tolariad.trainer.seeds.garden import Garden
    from tolariad.trainer.step.precision import Forward, Scaling


class Place(NamedTuple):
    """A process among those that train together: its rank, from 0, and their number."""

    rank: int
    ranks: int


ALONE: Final = Place(0, 1)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Model, optimizer, data and helpers of one run. `steps_per_epoch` is 0 if the data has no length.

    * `moves`: whether a training batch may have to be moved to the device.
    * `acted`: the boundary orders that the state contains.
    * `owners`: the host's owners, then those of seeds. The list is changed in place: a seed's owner comes and goes with
      it.
    * `host`: the owners in the model that the task built. Norm, loss and detector see these only.
    * `garden`: the slots for seeds.
    * `pruner`: the masks.
    * `parts`: the state, part by part (`parts.whole`).
    * `place`: the rank of this process, if several train together.
    """

    settings: Settings
    rng_seed: int
    task: Any
    model: nn.Module
    owners: list[Owner]
    host: tuple[Owner, ...]
    rates: UnifiedLRController
    train: Feed
    validation: Feed | None
    device: torch.device
    moves: bool = True
    forward: Forward
    environment: m.Environment
    steps_per_epoch: int
    notes: tuple[str, ...]
    average: Average | None = None
    scaling: Scaling | None = None
    reads_late: bool = False
    watch: Monitor
    ledger: Ledger
    garden: Garden
    seed_gradients: SeedGradients
    pruner: Pruner
    clip: Callable[[nn.Module], Any] | None = None
    training_step: Callable[..., Any] | None = None
    acted: ActedOrders = field(default_factory=ActedOrders)
    participants: Participants = field(default_factory=Participants)
    metrics: StepMetrics = field(default_factory=StepMetrics)
    parts: list[Part] = field(default_factory=list)
    stages: Stages = field(default_factory=Stages)
    code: LoadedCode = field(default_factory=LoadedCode)
    place: Place = ALONE

    @property
    def standing(self) -> m.Standing:
        """The rates of a restored state, for the kernel, and how many boundary orders the state contains."""
        return replace(self.rates.standing, orders=self.acted.count)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first owner's optimizer: the only one, if the task names no parts."""
        return self.host[0].optimizer

    @property
    def state_rank(self) -> int:
        """The rank whose state this process has: with exact sums 0, so that another number of ranks can go on."""
        return 0 if self.settings.parallel.exact else self.place.rank

    @property
    def parameters(self) -> int:
        """The number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())
