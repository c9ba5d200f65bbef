"""The numbers that a task gives beside the loss of a step, by name: collected while the step is made, reported with it.

Promises: a number on the host is read at once, and one on a device together with the others, without waiting for it.
Numbers of a step that is skipped, or made again in a re-run, are reported to nobody.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final

import torch

from tolariad.core.bounds import NAME_CHARACTERS_MAX
from tolariad.core.steps.words import METRICS_MAX
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.measured import Given, Transfer

_NAN: Final = math.nan


class StepMetrics:
    """The metrics of the current step, and the names that the run has."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._numbers: dict[str, float] = {}
        self._on_device: dict[str, torch.Tensor] = {}
        self._sent: list[Given] = []
        # The values of several micro-batches, whose mean is the metric of the step.
        self._parts: dict[str, list[float | torch.Tensor]] = {}
        self.is_empty = True

    def begin(self, names: Sequence[str]) -> None:
        """Take over the names that the run has, in its order."""
        self._slots = {name: index for index, name in enumerate(names)}

    def log(self, values: Mapping[str, Any], parts: int = 1) -> None:
        """Take numbers, or tensors with one element, of the current step. The last one of a name counts.

        `parts`: they are of one of so many micro-batches, and the mean over these counts. Raises SetupRefused.
        """
        self.is_empty = self.is_empty and not values
        for name, value in values.items():
            if name not in self._slots:
                self._check_name(name)
            number = _read(name, value)
            if parts > 1:
                self._parts.setdefault(name, []).append(number)
            elif isinstance(number, float):
                self._numbers[name] = number
            else:
                self._on_device[name] = number

    def beside_loss(self, returned: Mapping[Any, Any], parts: int = 1) -> Any:
        """Take what a task's `loss` returned by name, but for the loss; return that. Raises SetupRefused."""
        others = dict(returned)
        try:
            loss = others.pop("loss")
        except KeyError:
            raise SetupRefused(
                "loss(model, batch) returns a dict without `loss`; it has "
                f"{', '.join(map(str, returned)) or 'no key'}. Give the value to minimise the name `loss`"
            ) from None
        self.log(others, parts)
        return loss

    def send(self) -> None:
        """Start the transfer of the numbers on a device, before the update can change a tensor in place."""
        if self._parts:
            self._join()
        if self._on_device:
            names, tensors = tuple(self._on_device), list(self._on_device.values())
            self._sent.append(Given({}, names, Transfer(_stacked(tensors))))
            self._on_device = {}

    def taken(self) -> Given:
        """Return the metrics of the step, and begin with the next one."""
        self.send()
        given = Given(self._numbers)
        for sent in self._sent:
            # Two transfers in one step are rare: the second is of a hook. Read the first.
            given = Given(given.read() | self._numbers, sent.late, sent.transfer)
        self.drop()
        return given

    def drop(self) -> None:
        """Forget the numbers of the current step."""
        self._numbers, self._on_device, self._sent, self._parts, self.is_empty = {}, {}, [], {}, True

    def unnamed(self, numbers: Mapping[str, float]) -> tuple[str, ...]:
        """Return the names that the run does not have yet, and take them over."""
        new = tuple([name for name in numbers if name not in self._slots])
        for name in new:
            self._slots[name] = len(self._slots)
        return new

    def row(self, numbers: Mapping[str, float]) -> tuple[float, ...]:
        """Return a value for each name of the run, in its order; NaN for those that the step does not have."""
        row, slots = [_NAN] * len(self._slots), self._slots
        for name, number in numbers.items():
            # One NaN: its bits depend on the processor. Only NaN differs from itself.
            row[slots[name]] = number if number == number else _NAN  # noqa: PLR0124
        return tuple(row)

    def _join(self) -> None:
        """Make one number of those of the micro-batches."""
        parts, self._parts = self._parts, {}
        self.log({name: sum(values) / len(values) for name, values in parts.items()})

    def _check_name(self, name: Any) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
            raise SetupRefused(
                f"{name!r} is no name of a metric: that is a text of 1 to {NAME_CHARACTERS_MAX} printable characters"
            )
        known = self._slots.keys() | self._numbers.keys() | self._on_device.keys() | self._parts.keys()
        if len(known | {name}) > METRICS_MAX:
            raise SetupRefused(
                f"the metric {name!r} is one too many: a run has at most {METRICS_MAX} names of step metrics. Give "
                f"values of one kind one name, without a number in it. It has {', '.join(sorted(known)[:5])}, ..."
            )


def _read(name: str, value: Any) -> float | torch.Tensor:
    """Return a number of the host, or a tensor of a device without a graph. Raises SetupRefused for anything else."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return float(value.item()) if value.is_cpu else value.detach().reshape(())
        what = f"a tensor of shape {tuple(value.shape)}"
    else:
        if getattr(value, "size", None) == 1 and callable(getattr(value, "item", None)):
            value = value.item()
        if isinstance(value, Real):
            with contextlib.suppress(OverflowError):
                return float(value)
        what = f"a {type(value).__name__}"
    raise SetupRefused(f"the metric {name!r} is {what}; a metric is a number, or a tensor with one element")


def _stacked(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the values as one tensor, in as few calls as possible: each is a launch on the device."""
    first = tensors[0]
    if all(one.dtype is first.dtype and one.device == first.device for one in tensors):
        return torch.stack(tensors)
    return torch.stack([one.to(first.device, torch.float64) for one in tensors])
