"""The parts of a step, and a clock that divides the time of the step among them.

Promises: every moment between `begin` and `end` belongs to one part; the innermost counts. On an accelerator a part
ends when the work that it started is done.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import torch
from torch.profiler import record_function

OURS: Final = "tolariad"
DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
_STEP: Final = "step"
NAMES: Final = (DATA, FORWARD, BACKWARD, "clipping", OPTIMIZER, "average", OURS)

RANGES: Final = frozenset({*NAMES, _STEP})

T = TypeVar("T")


class Parts:
    """The clock. What is in no part is tolariad's own. `seconds` is the time of each part, by its name.

    After `mark` the parts are ranges in the profiler's trace, and nothing is timed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._within: list[str] = []
        self._ranges: list[record_function] = []
        self._since = 0.0
        self.seconds = dict.fromkeys(NAMES, 0.0)
        self._marks = False

    def mark(self) -> None:
        """Make ranges of the parts from now on."""
        self._marks = True

    def restart(self) -> None:
        """Forget the times so far."""
        self.seconds = dict.fromkeys(NAMES, 0.0)

    def begin(self) -> None:
        """Begin a step."""
        if self._marks:
            self.enter(_STEP)
            return
        self._within = [OURS]
        self._since = self._now()

    def end(self) -> None:
        """End a step."""
        if self._marks:
            self.leave()
            return
        self._charge()

    def enter(self, name: str) -> None:
        """Begin a part, inside of the present one."""
        if self._marks:
            self._ranges.append(record_function(name).__enter__())
            return
        self._charge()
        self._within.append(name)

    def leave(self) -> None:
        """End the present part."""
        if self._marks:
            self._ranges.pop().__exit__(None, None, None)
            return
        self._charge()
        self._within.pop()

    def around(self, name: str, function: Callable[..., T]) -> Callable[..., T]:
        """Return the function as a part."""

        @functools.wraps(function)
        def part(*args: Any, **kwargs: Any) -> T:
            self.enter(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return part

    def _charge(self) -> None:
        now = self._now()
        self.seconds[self._within[-1]] += now - self._since
        self._since = now

    def _now(self) -> float:
        if self._device.type == "cuda" and not self._marks:
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class WithParts:
    """An object whose methods with the given names are replaced. Everything else is the object's."""

    def __init__(self, inner: Any, **replaced: Callable[..., Any]) -> None:
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        """Return what the object has under this name."""
        return getattr(self._inner, name)


@contextmanager
def backward_passes(parts: Parts) -> Iterator[None]:
    """In the block every backward pass is a part. `Tensor.backward` calls the function that is replaced here."""
    real = torch.autograd.backward
    torch.autograd.backward = parts.around(BACKWARD, real)
    try:
        yield
    finally:
        torch.autograd.backward = real


@contextmanager
def updates(parts: Parts, optimizers: list[torch.optim.Optimizer]) -> Iterator[None]:
    """In the block every step of these optimizers is a part, with the rate controller's check before it."""
    handles = []
    for optimizer in optimizers:
        handles.append(optimizer.register_step_pre_hook(lambda *_: parts.enter(OPTIMIZER)))
        handles.append(optimizer.register_step_post_hook(lambda *_: parts.leave()))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
