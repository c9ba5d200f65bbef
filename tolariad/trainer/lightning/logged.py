"""The values that a LightningModule logs: by `self.log` and `self.log_dict`, as numbers or as metrics of torchmetrics.

Promises: a value that is logged outside of the recorded hooks is named in the log once, with what to do instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from numbers import Number
from typing import Any, Final

import torch
from torch import nn

from tolariad.trainer.errors import SetupRefused

_log: Final = logging.getLogger(__name__)
# The name of the loss of a validation, first match first. tolariad's own is `loss`.
LOSSES: Final = ("loss", "val_loss", "val/loss", "valid_loss", "validation_loss")
_REDUCTIONS: Final[dict[Any, Callable[[torch.Tensor], torch.Tensor]]] = {
    "sum": torch.sum,
    "min": torch.min,
    "max": torch.max,
    **{one: one for one in (torch.sum, torch.min, torch.max)},
}
_MEANS: Final = ("mean", torch.mean)


class Log:
    """Takes logged values while the loop is at a place at which they are recorded.

    * `step`: the values of a training step.
    * `batch`: the values of a batch of the validation, as `evaluate` returns them.
    * `whole`: the values that stand for the whole validation.
    """

    def __init__(self) -> None:
        self._place = "the constructor"
        # How many processes train.
        self._ranks = 1
        self.step: dict[str, Any] | None = None
        self.batch: dict[str, Any] | None = None
        self.whole: dict[str, Any] | None = None
        self._metrics: dict[str, Any] = {}
        self._lists: dict[str, tuple[Any, list[torch.Tensor]]] = {}
        self._of_training: dict[str, Any] = {}
        self._said: set[tuple[str, str]] = set()

    def among(self, ranks: int) -> None:
        """Take values in one of so many processes that train."""
        self._ranks = ranks

    def at(self, place: str, kind: str = "") -> dict[str, Any]:
        """Begin to call the hook `place`. Return what it logs; `kind`: step, batch, whole, or "" (nothing)."""
        self._place = place
        values: dict[str, Any] = {}
        for one in ("step", "batch", "whole"):
            setattr(self, one, values if one == kind else None)
        return values

    def __call__(
        self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", batch_size: int | None = None, **options: Any
    ) -> None:
        """Take one value: `LightningModule.log`. The other arguments say where Lightning shows it."""
        if self._ranks > 1 and options.get("sync_dist"):
            raise SetupRefused(
                f"self.log({name!r}, sync_dist=True) is not supported with several ranks: the values of rank 0 are "
                "recorded, whose validation has all data. Leave sync_dist out (docs/ranks.md)"
            )
        is_metric = callable(getattr(value, "compute", None)) and callable(getattr(value, "update", None))
        if not is_metric and not isinstance(value, (Number, torch.Tensor)):
            raise SetupRefused(f"self.log({name!r}, ...) takes a number, a tensor with one element, or a metric")
        if not is_metric and reduce_fx not in _MEANS and (self.step is not None or reduce_fx not in _REDUCTIONS):
            raise SetupRefused(f"self.log({name!r}, reduce_fx={reduce_fx!r}) is not supported; log the mean")
        if isinstance(value, torch.Tensor):
            value = value.detach()
        if self.step is not None:
            self.step[name] = self._of_step(name, value) if is_metric else value
        elif self.batch is not None and is_metric:
            self._metrics[name] = value
        elif self.batch is not None and reduce_fx not in _MEANS:
            self._lists.setdefault(name, (reduce_fx, []))[1].append(torch.as_tensor(value, dtype=torch.float64))
        elif self.batch is not None:
            self.batch[name] = value if batch_size is None else (value * batch_size, batch_size)
        elif self.whole is not None and is_metric:
            self._metrics[name] = value
        elif self.whole is not None:
            self.whole[name] = float(value)
        else:
            self._say_lost(name)

    def _say_lost(self, name: str) -> None:
        """Say it once for each name: the run is worth more than the value."""
        if (self._place, name) not in self._said:
            self._said.add((self._place, name))
            _log.warning(
                "self.log(%r) in %s records nothing; log in training_step, validation_step or on_validation_epoch_end",
                *(name, self._place),
            )

    def _of_step(self, name: str, metric: Any) -> Any:
        """Return a metric's value for this batch."""
        self._of_training[name] = metric
        value = getattr(metric, "_forward_cache", None)
        if value is None:
            raise SetupRefused(
                f"self.log({name!r}, metric): the metric was updated, but has no value of this step; call it, as in "
                "`self.accuracy(predictions, targets)`"
            )
        return value

    def end_validation(self, logged: dict[str, Any]) -> dict[str, float]:
        """Return what stands for the whole validation, beside what its last hook logged; reset its metrics."""
        found = {name: float(metric.compute()) for name, metric in self._metrics.items()}
        for metric in self._metrics.values():
            metric.reset()
        found |= {name: float(_REDUCTIONS[how](torch.stack(values))) for name, (how, values) in self._lists.items()}
        self.begin_validation()
        return found | logged

    def begin_validation(self) -> None:
        """Forget an earlier validation, which may have ended early."""
        self._metrics, self._lists = {}, {}

    def end_epoch(self, module: nn.Module) -> dict[str, float]:
        """Return the metrics that were logged in training, each over the whole epoch, and reset them.

        Without those that a resume in mid-epoch could not go on with: the mean of their steps stands for them.
        """
        found = {
            name: metric.compute() for name, metric in self._of_training.items() if _path(module, metric) is not None
        }
        self._forget()
        return {name: float(one) for name, one in found.items() if torch.as_tensor(one).numel() == 1}

    def _forget(self) -> None:
        for metric in self._of_training.values():
            metric.reset()
        self._of_training = {}

    def state(self, module: nn.Module) -> list[list[Any]]:
        """Return what the metrics of training have taken in of the epoch so far: name, path in the module, values."""
        return [
            [name, path, metric.update_count, dict(metric.metric_state)]
            for name, metric in self._of_training.items()
            if (path := _path(module, metric)) is not None
        ]

    def load_state(self, module: nn.Module, state: list[list[Any]]) -> None:
        """Restore what `state` returned."""
        self._forget()
        for name, path, count, values in state:
            metric: Any = module.get_submodule(path)
            # Without its count torchmetrics warns that there was no update.
            for one, value in {**values, "_update_count": count}.items():
                setattr(metric, one, value)
            self._of_training[name] = metric


def _path(module: nn.Module, metric: Any) -> str | None:
    """Return the name of a metric of torchmetrics that is a part of the module; None if it is none."""
    if not hasattr(metric, "metric_state"):
        return None
    return next((path for path, one in module.named_modules() if one is metric), None)
