"""The stand-in for `self.trainer` of a LightningModule: lengths and positions. Any other name is refused."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.setup import Place

# The processes are those of one machine.
_FIXED: Final[dict[str, Any]] = {
    "node_rank": 0,
    "num_nodes": 1,
    "max_steps": -1,
    "should_stop": False,
    "fast_dev_run": False,
    "sanity_checking": False,
    "testing": False,
    "predicting": False,
    "barebones": False,
    "logger": None,
    "loggers": [],
    "progress_bar_callback": None,
}


def place_among(ranks: int) -> Place:
    """Return the place of this process among so many that train."""
    distributed = sys.modules.get("torch.distributed")
    if ranks == 1 or distributed is None or not distributed.is_initialized():
        return Place(0, ranks)
    return Place(distributed.get_rank(), ranks)


class StandIn:
    """The stand-in for Lightning's Trainer. `current_epoch` counts from 0, `global_step` the updates made.

    `num_training_batches` is the number of batches that this process has in an epoch; infinite if the data has no
    length.
    """

    def __init__(
        self, *, max_epochs: int, accumulate: int, clip: tuple[float | None, str], datamodule: Any, place: Place
    ) -> None:
        self._own = {
            **_FIXED,
            "is_global_zero": place.rank == 0,
            "global_rank": place.rank,
            "local_rank": place.rank,
            "world_size": place.ranks,
            "num_devices": place.ranks,
            "max_epochs": max_epochs,
            "accumulate_grad_batches": accumulate,
            "gradient_clip_val": clip[0],
            "gradient_clip_algorithm": clip[1],
            "datamodule": datamodule,
        }
        self._moving: dict[str, Any] = {
            "current_epoch": 0,
            "global_step": 0,
            "validating": False,
            "num_training_batches": math.inf,
            "optimizers": [],
        }

    def move(self, **values: Any) -> None:
        """Set what changes during a training."""
        self._moving.update(values)

    @property
    def training(self) -> bool:
        """Whether this is no validation."""
        return not self._moving["validating"]

    @property
    def estimated_stepping_batches(self) -> float:
        """The updates of the whole run."""
        batches = self._moving["num_training_batches"]
        if batches == math.inf:
            return math.inf
        return int(-(-batches // self._own["accumulate_grad_batches"]) * self._own["max_epochs"])

    def __getattr__(self, name: str) -> Any:
        """Return a value by name. Raises AttributeError, with what there is."""
        for held in ("_own", "_moving"):
            values = self.__dict__.get(held, {})
            if name in values:
                return values[name]
        known = sorted((*self.__dict__.get("_own", ()), *self.__dict__.get("_moving", ())))
        raise AttributeError(f"self.trainer.{name}: tolariad has no Lightning trainer; there are {', '.join(known)}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what would have no effect, such as should_stop."""
        if not name.startswith("_"):
            raise SetupRefused(f"self.trainer.{name} is set to {value!r}: this has no effect under tolariad; remove it")
        super().__setattr__(name, value)
