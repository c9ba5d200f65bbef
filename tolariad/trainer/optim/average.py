"""An exponential moving average of a model's parameters, kept beside them.

Promises: after every step each average moves towards its parameter by 1 - decay of their distance. A re-run gives the
same bits. The average starts at the initial weights, and training never uses it. Buffers are not averaged: the average
is used with the model's own buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from tolariad.trainer.checkpoints.tensors import copy_into
from tolariad.trainer.torch_private import lists

if TYPE_CHECKING:
    from torch import nn

    from tolariad.trainer.optim.mapping import ParameterMapping


class Average:
    """The averages of all floating-point and complex parameters, including frozen ones. Tied ones are averaged once."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """`decay` is the weight of the past, 0 to below 1."""
        named = _averaged(model)
        self._parameters: list[torch.Tensor] = list(named.values())
        self._averages = [parameter.detach().clone() for parameter in named.values()]
        self._names = tuple(named)
        self._share = 1.0 - decay

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The averages themselves, by qualified name of their parameters."""
        return dict(zip(self._names, self._averages, strict=True))

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the current parameters."""
        lists.lerp_(self._averages, self._parameters, self._share)

    @torch.no_grad()
    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy `values`, which have the names and shapes of `tensors`, into the averages."""
        for name, average in self.tensors.items():
            copy_into(average, values[name])

    def begin_anew(self) -> None:
        """Start again at the current parameters."""
        self.load(dict(zip(self._names, self._parameters, strict=True)))

    @torch.no_grad()
    def follow(self, model: nn.Module, mappings: Sequence[ParameterMapping] = ()) -> None:
        """Follow a change of the model's shape: a parameter that was replaced, or is new, gets an average of its shape.

        A parameter that is the same object keeps its average. One that only grew keeps it for its old units. New units,
        all other parameters, and those named in `mappings` start at their current values.
        """
        held, mapped = self.tensors, {mapping.new_id for mapping in mappings}
        before = {id(p): average for p, average in zip(self._parameters, self._averages, strict=True)}
        named, averages = _averaged(model), []
        for name, parameter in named.items():
            average = before.get(id(parameter))
            averages.append(
                _grown(None if name in mapped else held.get(name), parameter) if average is None else average
            )
        self._parameters, self._averages, self._names = list(named.values()), averages, tuple(named)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """In the block the model computes with the averages. Afterwards the parameters have the same bits as before."""
        pairs = list(zip(self._parameters, self._averages, strict=True))
        _exchange(pairs)
        try:
            yield
        finally:
            # In reverse order: parameters that share memory were exchanged one after the other.
            _exchange(pairs[::-1])


def _averaged(model: nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.is_floating_point() or p.is_complex()}


def _grown(old: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor:
    """The average of a parameter that took the place of one with the average `old`."""
    average = parameter.detach().clone()
    if old is None or old.dim() != average.dim() or any(a > b for a, b in zip(old.shape, average.shape, strict=True)):
        return average
    average[tuple(slice(0, size) for size in old.shape)] = old.to(device=average.device, dtype=average.dtype)
    return average


@torch.no_grad()
def _exchange(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Swap values, not memory, so that other references to a parameter's memory stay valid. Copies one at a time."""
    for one, other in pairs:
        held = one.clone()
        copy_into(one, other)
        copy_into(other, held)
