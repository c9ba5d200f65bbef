"""The requests of the commands to a process that tries something, and its answers. It is imported without torch."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Weights(msgspec.Struct, frozen=True):
    """The checkpoint whose weights the copy gets: its id, its folder, and the hash of its manifest in the journal."""

    id: str
    folder: str
    manifest: str


class Trial(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request. `config`: a resolved configuration. `weights`: None for a model as the task builds it."""

    config: str
    weights: Weights | None = None


class EstimateCosts(Trial, frozen=True, kw_only=True):
    """Run a few real batches, and say what a run costs."""


class Evaluate(Trial, frozen=True, kw_only=True):
    """Evaluate the test data. `averaged`: with the moving average of the weights; None: if the run keeps one."""

    averaged: bool | None = None


AnyTrial: TypeAlias = EstimateCosts | Evaluate


class Refused(msgspec.Struct, frozen=True):
    """Why there is no answer. `traceback`: of the task, or empty."""

    error: str
    traceback: str = ""
    hint: str = ""


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """The means over all samples, by the task's names. One that is not finite is None; its word is in `metrics_state`.

    `data`: `test`, or `validation` if the task has no test data. `weights`: `trained` or `averaged`.
    """

    data: str
    weights: str
    samples: int
    seconds: float
    metrics: dict[str, float | None]
    metrics_state: dict[str, str]
