"""The numbers that a task gives beside the loss of a step, by name: collected while the step is made, reported with it.

Promises: a number on the host is read at once, and one on a device together with the others, without waiting for it.
Numbers of a step that is skipped, or made again in a re-run, are not reported.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final

import torch

from tolariad.core.calc.bounds import METRICS_MAX, NAME_CHARACTERS_MAX, TOKENS, token_count
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.measured import Given, Transfer

_NAN: Final = math.nan
_Tensor: Final = torch.Tensor


class StepMetrics:
    """The metrics of the current step, and the names that the run has.

    `is_empty`: the step has none so far. `is_pending`: some are on a device, or of micro-batches. `new`: names that the
    run does not have yet.
    """

    def __init__(self) -> None:
        # The place of each name in the row of a step.
        self._slots: dict[str, int] = {}
        self.new: list[str] = []
        self._row: list[float] = []
        self._on_device: dict[int, torch.Tensor] = {}
        self._parts: dict[int, list[float | torch.Tensor]] = {}
        self._sent: list[tuple[tuple[int, ...], Transfer]] = []
        self.is_empty = True
        self.is_pending = False

    def begin(self, names: Sequence[str]) -> None:
        """Take over the names that the run has, in its order."""
        self._slots, self.new = {name: index for index, name in enumerate(names)}, []
        self.drop()

    def log(self, values: Mapping[Any, Any], parts: int = 1, *, but: str | None = None) -> None:
        """Take numbers, or tensors with one element, of the current step. The last one of a name counts.

        * `parts`: the number of micro-batches in a step, if the values are those of one of them; the mean over them
          counts.
        * `but`: the values are what a task returned: leave out this name, and every value that is no number, such as
          `logits`.

        Raises SetupRefused.
        """
        slot_of, row, is_whole, others = self._slots.get, self._row, parts == 1, 0
        for name, value in values.items():
            slot = slot_of(name)
            # These few lines are for nearly all numbers of nearly all steps. Training has emptied the caches, so that
            # every further call would cost a microsecond.
            if is_whole and slot is not None and name != but:
                kind = type(value)
                if kind is float:
                    row[slot] = value
                    continue
                if kind is _Tensor and value.is_cpu and value.numel() == 1 and type(read := value.item()) is float:
                    row[slot] = read
                    continue
            number = _read(value) if name != but else None
            if number is not None:
                self._take(self._slot_of(name) if slot is None else slot, number, is_whole=is_whole)
            elif but is None:
                raise SetupRefused(_no_number(name, value))
            else:
                others += 1
        if len(values) > others:
            self.is_empty = False

    def _take(self, slot: int, number: float | torch.Tensor, *, is_whole: bool) -> None:
        """Take a number that is not of the step alone, or not on the host, or the first of its name."""
        if not is_whole:
            # The next forward pass may write to the same memory of a device.
            kept = number.clone() if isinstance(number, torch.Tensor) else number
            self._parts.setdefault(slot, []).append(kept)
            self.is_pending = True
        elif isinstance(number, torch.Tensor):
            self._on_device[slot] = number
            self.is_pending = True
        else:
            self._row[slot] = number

    def send(self) -> None:
        """Start the transfer of the numbers on a device, before the update can change a tensor in place."""
        parts, self._parts = self._parts, {}
        for slot, values in parts.items():
            # Of a count the sum is that of the step, of anything else the mean.
            whole = 1 if slot == self._slots.get(TOKENS) else len(values)
            mean: float | torch.Tensor = sum(values) / whole
            if isinstance(mean, torch.Tensor):
                self._on_device[slot] = mean
            else:
                self._row[slot] = mean
        if self._on_device:
            slots, tensors = zip(*self._on_device.items(), strict=True)
            self._sent.append((slots, Transfer(_stacked(tensors))))
            self._on_device = {}
        self.is_pending = False

    def row(self) -> tuple[float, ...]:
        """Return the metrics of the step in the order of the run's names, and begin with the next step.

        NaN: the step does not have it. Waits for those on a device.
        """
        if self.is_pending or self._sent:
            return self.taken().read()
        found = tuple(self._row)
        self._row, self.is_empty = [_NAN] * len(found), True
        return found

    def so_far(self) -> dict[str, float]:
        """Return the metrics of the step by name, as they are now. Waits for those on a device."""
        if self.is_pending:
            self.send()
        row = Given(list(self._row), self._sent).read()
        return {name: value for name, value in zip(self._slots, row, strict=True) if not math.isnan(value)}

    def tokens(self) -> int:
        """Return how many tokens the step has so far, as the journal will count them. Waits for those on a device."""
        return token_count(self.so_far().get(TOKENS, 0.0))

    def taken(self) -> Given:
        """Return the metrics of the step, of which some may be in flight, and begin with the next step."""
        if self.is_pending:
            self.send()
        given = Given(self._row, self._sent)
        self.drop()
        return given

    def drop(self) -> None:
        """Forget the numbers of the current step."""
        self._row, self._sent, self.is_empty = [_NAN] * len(self._slots), [], True
        if self.is_pending:
            self._on_device, self._parts, self.is_pending = {}, {}, False

    def unreported(self) -> tuple[str, ...]:
        """Return the names that the run does not have yet, each once."""
        new, self.new = tuple(self.new), []
        return new

    def _slot_of(self, name: Any) -> int:
        """Give a new name its place. Raises SetupRefused."""
        _require_name(name)
        if len(self._slots) >= METRICS_MAX:
            raise SetupRefused(
                f"the metric {name!r} is one too many: a run has at most {METRICS_MAX} names of step metrics. Give "
                f"values of one kind one name, without a number in it. It has {', '.join(list(self._slots)[:5])}, ..."
            )
        slot = self._slots[name] = len(self._slots)
        self.new.append(name)
        self._row.append(_NAN)
        return slot


def on_host(values: Mapping[Any, Any], *, but: str | None = None) -> dict[str, float]:
    """Return numbers, or tensors with one element, as numbers of the host: as `log` takes them. Raises SetupRefused."""
    found = {}
    for name, value in values.items():
        if name == but:
            continue
        if (number := _read(value)) is not None:
            _require_name(name)
            found[name] = float(number)
        elif but is None:
            raise SetupRefused(_no_number(name, value))
    return found


def _require_name(name: Any) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise SetupRefused(
            f"{name!r} is no name of a metric: that is a text of 1 to {NAME_CHARACTERS_MAX} printable characters"
        )


def _read(value: Any) -> float | torch.Tensor | None:
    """Return a number of the host, or a tensor of a device without a graph. None: it is neither."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return float(value.item()) if value.is_cpu else value.detach().reshape(())
        return None
    if getattr(value, "size", None) == 1 and callable(getattr(value, "item", None)):
        value = value.item()
    if isinstance(value, Real):
        with contextlib.suppress(OverflowError):
            return float(value)
    return None


def _no_number(name: str, value: Any) -> str:
    is_tensor = isinstance(value, torch.Tensor)
    what = f"a tensor of shape {tuple(value.shape)}" if is_tensor else f"a {type(value).__name__}"
    return f"the metric {name!r} is {what}; a metric is a number, or a tensor with one element"


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the values as one tensor, in as few calls as possible: each is a launch on the device."""
    first = tensors[0]
    if all(one.dtype is first.dtype and one.device == first.device for one in tensors):
        return torch.stack(list(tensors))
    return torch.stack([one.to(first.device, torch.float64) for one in tensors])
