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
    """Evaluate the test data.

    `averaged`: use the moving average of the weights; None: use it if the run keeps one.
    """

    averaged: bool | None = None


class SweepRates(Trial, frozen=True, kw_only=True):
    """Train with rates that rise from `start` to `end` by the same factor in each of `steps` steps.

    `smoothing`: the weight of the past in the smoothed loss. The sweep stops if that is above `stop_factor` times its
    best; 0: it does not stop for that.
    """

    start: float
    end: float
    steps: int
    smoothing: float = 0.98
    stop_factor: float = 4.0


class ProfileSteps(Trial, frozen=True, kw_only=True):
    """Make `warmup` steps, then `steps` with a clock, then `steps` under torch's profiler.

    `output`: the file for the profiler's trace, compressed if its name ends in .gz.
    """

    warmup: int
    steps: int
    output: str


class ExportState(Trial, frozen=True, kw_only=True):
    """Write a checkpoint's weights for `torch.load(weights_only=True)`, and the optimizer's state if wanted.

    `output`: a file, or a folder if `is_folder`. `averaged`: the moving average of the weights.
    """

    output: str
    is_folder: bool = False
    averaged: bool = False
    with_optimizer: bool = False
    promoted: bool = False


class TakeWeights(Trial, frozen=True, kw_only=True):
    """Read weights from a file of safetensors, or one of torch by `weights_only`; write them as safetensors."""

    file: str
    output: str


class FindRows(Trial, frozen=True, kw_only=True):
    """Find out which items the batches `first` to `last` of an epoch were made of.

    `digest`: the recorded one of these batches; 0 if there is none. `describes`: let the task describe each item.
    """

    epoch: int
    first: int
    last: int
    digest: int = 0
    describes: bool = False


AnyTrial: TypeAlias = EstimateCosts | Evaluate | SweepRates | ProfileSteps | ExportState | TakeWeights | FindRows


class Refused(msgspec.Struct, frozen=True):
    """The reason why there is no answer. `traceback` is that of the task's exception, or ""."""

    error: str
    traceback: str = ""
    hint: str = ""


class ExportedState(msgspec.Struct, frozen=True, kw_only=True):
    """The files written, with what is in each, and their bytes. `optimizers`: names; "" is the only one."""

    files: dict[str, str]
    tensors: int
    size: int
    optimizers: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    compactions: int = 0


class FoundRows(msgspec.Struct, frozen=True, kw_only=True):
    """The indices of the items, in their order, and the task's words for each.

    `is_verified`: the batches were loaded again, and have the recorded digest or another one; None: none was recorded.
    """

    rows: tuple[int | str, ...]
    described: tuple[str, ...] = ()
    is_verified: bool | None = None


class TakenWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The file written: the BLAKE3 of all of it, and its tensors."""

    hash: str
    tensors: int


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


class SweptGroup(msgspec.Struct, frozen=True):
    """A parameter group, its configured rate, and the factor between its rate and the swept one."""

    name: str
    base_lr: float
    factor: float


class SweepPoint(msgspec.Struct, frozen=True):
    """A step: its swept rate, the loss before its update, and the smoothed loss."""

    rate: float
    loss: float
    smoothed: float


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The curve. `points`: all with a finite loss. `swept`: the group whose rate is that of the points.

    `stopped`: `diverged`, `not_finite`, or empty if the sweep came to its end. `steepest`: the rate at which the
    smoothed loss falls fastest; `tenth`: a tenth of the rate at its minimum. Both are None if it never falls.
    """

    points: tuple[SweepPoint, ...]
    swept: str
    groups: tuple[SweptGroup, ...]
    stopped: str
    rng_seed: int
    steepest: float | None
    tenth: float | None


class PartOfStep(msgspec.Struct, frozen=True):
    """A part of a step, and its mean milliseconds in the steps with a clock."""

    name: str
    ms: float


class Operation(msgspec.Struct, frozen=True):
    """An operation under the profiler: calls in a step, and milliseconds of its own in a step, without those it calls.

    `device_ms` is that on the accelerator, 0 without one.
    """

    name: str
    calls: float
    cpu_ms: float
    device_ms: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a step goes.

    * `step_ms`: the mean of the steps that were timed without the profiler; the sum of `parts`.
    * `profiled_ms`: the mean of the steps under the profiler.
    * `operations`: all operations, the most expensive first.
    * `trace_bytes`: the size of the file `trace`.
    """

    device: str
    threads: int
    steps: int
    step_ms: float
    profiled_ms: float
    parts: tuple[PartOfStep, ...]
    operations: tuple[Operation, ...]
    trace: str
    trace_bytes: int
