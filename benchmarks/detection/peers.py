"""Remedies that the autopilot is compared with, as loops of our own after their papers. Each sees a step before its
update, may change the gradients, and says whether the update is made.

* Recording: makes every update, as a plain loop.
* SixSigma, as the skip-step optimizers of OLMo-core: it skips a step from the 64th on whose loss or norm is high. High
  is more than six standard deviations above the mean of the last 128. These hold the values of skipped steps too.
* ZClip (Kumar et al., 2025, arXiv 2504.02507): mean and variance of the norm are moving averages (0.97), begun with the
  first 25 norms. A norm with a z-score above 2.5 is clipped to mean + 2.5^2 / z deviations. The clipped norm enters the
  averages. The usual clip at 1.0 beside it is off: its scale is that of language models.
* AdaGC (Wang et al., 2025, arXiv 2502.11034): each tensor's gradient is clipped to 1.05 of a moving average (0.98).
  It averages the tensor's own clipped norms. In the first 100 steps all gradients are clipped together at 1.0, and the
  least norm is kept.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final, Protocol

from torch import nn

from benchmarks.detection.training import Training


class Peer(Protocol):
    """A remedy. `acts`: how often it changed a step."""

    acts: int

    def allows(self, training: Training, loss: float, norm: float) -> bool:
        """Return whether the update is made; change the gradients before it."""


class Recording:
    """A plain loop."""

    def __init__(self) -> None:
        self.acts = 0

    def allows(self, training: Training, loss: float, norm: float) -> bool:
        return True


class SixSigma:
    """Skip what is six sigmas above the last 128."""

    _WINDOW: Final = 128

    def __init__(self) -> None:
        self.acts = 0
        self._losses: deque[float] = deque(maxlen=self._WINDOW)
        self._norms: deque[float] = deque(maxlen=self._WINDOW)

    def allows(self, training: Training, loss: float, norm: float) -> bool:
        is_made = len(self._losses) < self._WINDOW // 2 or all(map(self._usual, (loss, norm), self._both()))
        self._losses.append(loss)
        self._norms.append(norm)
        self.acts += not is_made
        return is_made

    def _both(self) -> tuple[deque[float], deque[float]]:
        return self._losses, self._norms

    @staticmethod
    def _usual(value: float, known: deque[float]) -> bool:
        finite = [one for one in known if math.isfinite(one)]
        # A value that is not a number makes every comparison false, as in the original.
        if len(finite) < len(known) or len(finite) < 2:
            return False
        return value - statistics.fmean(finite) <= 6.0 * statistics.stdev(finite)


class ZClip:
    """Clip the norm by its z-score."""

    _ALPHA, _LIMIT, _WARM = 0.97, 2.5, 25

    def __init__(self) -> None:
        self.acts = 0
        self._first: list[float] = []
        self._mean = self._variance = 0.0

    def allows(self, training: Training, loss: float, norm: float) -> bool:
        if len(self._first) < self._WARM:
            self._first.append(norm)
            if len(self._first) == self._WARM:
                self._mean, self._variance = statistics.fmean(self._first), statistics.pvariance(self._first)
            return True
        spread = math.sqrt(self._variance) if self._variance == self._variance else math.nan
        score = (norm - self._mean) / (spread + 1e-6)
        kept = norm
        if score > self._LIMIT:
            kept = self._mean + self._LIMIT**2 * spread / score
            scale = kept / (norm + 1e-6)
            for one in training.model.parameters():
                if one.grad is not None:
                    one.grad.mul_(scale)
            self.acts += 1
        self._mean = self._ALPHA * self._mean + (1.0 - self._ALPHA) * kept
        self._variance = self._ALPHA * self._variance + (1.0 - self._ALPHA) * (kept - self._mean) ** 2
        return True


class AdaGC:
    """Clip each tensor by its own past."""

    _BETA, _RELATIVE, _ABSOLUTE, _WARM = 0.98, 1.05, 1.0, 100

    def __init__(self) -> None:
        self.acts = 0
        self._steps = 0
        self._known: dict[str, float] = {}

    def allows(self, training: Training, loss: float, norm: float) -> bool:
        self._steps += 1
        named = [(name, one.grad) for name, one in training.model.named_parameters() if one.grad is not None]
        if self._steps <= self._WARM:
            scale = min(self._ABSOLUTE / norm, 1.0) if norm > 0.0 else 1.0
            for name, gradient in named:
                gradient.mul_(scale)
                size = float(gradient.norm())
                self._known[name] = min(self._known.get(name, math.inf), size)
            return True
        has_acted = False
        for name, gradient in named:
            size, known = float(gradient.norm()), self._known.get(name, 0.0)
            scale = min(self._RELATIVE * known / size, 1.0) if known > 0.0 and size > 0.0 else 1.0
            if scale < 1.0:
                gradient.mul_(scale)
            has_acted |= scale < 0.5
            self._known[name] = self._BETA * known + (1.0 - self._BETA) * scale * size
        # It clips some tensor in nearly every step; only a halving is counted.
        self.acts += has_acted
        return True


PEERS = {"6 sigma": SixSigma, "ZClip": ZClip, "AdaGC": AdaGC}


def norm_of(training: Training) -> float:
    """Return the norm over all gradients."""
    found = [one.grad for one in training.model.parameters() if one.grad is not None]
    return float(nn.utils.get_total_norm(found, foreach=True))
