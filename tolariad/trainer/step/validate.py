"""Evaluate the validation data: return means over all samples, and change nothing else.

Promises: process-wide generators, training modes and gradients are the same afterwards. `try_evaluate` changes no
buffer of the model either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from tolariad.core.calc.settings.values import DEFAULT_METRIC, read_metric
from tolariad.failpoints import reached
from tolariad.trainer.data.feed import to_device
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything
from tolariad.trainer.data.samples import known_samples, samples_of
from tolariad.trainer.errors import SetupRefused, TaskRaised
from tolariad.trainer.step.updates import checked_metrics

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup

# The machine's faults: the next trainer may not meet them.
_TRANSIENT: Final = (OSError, MemoryError, torch.OutOfMemoryError)
_PLAIN: Final = (int, float, bool, str, type(None))


class Metrics(NamedTuple):
    """Means by name, and the number of samples. `weight`: the greatest count behind a mean, such as that of pixels."""

    means: dict[str, float]
    samples: int
    weight: int = 0


def validate(setup: Setup, beat: Callable[[], None], *, only: tuple[Any, ...] | None = None) -> Metrics:
    """Evaluate a run on its validation data, with the averaged weights if it keeps them. No metrics without data.

    Sums are added up in double precision, in the order of the batches. `beat` is called at first and before each batch.
    If `only` is given, these batches are evaluated, and no data is read.
    """
    if setup.validation is None:
        return Metrics({}, 0)
    beat()
    sums: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}
    samples = 0
    modes = [(module, module.training) for module in setup.model.modules()]
    with setup.average.applied() if setup.average is not None else nullcontext():
        setup.model.eval()
        try:
            with preserved_rng(), torch.no_grad():
                # A validation that draws must give the same result in every epoch and after every restart.
                seed_everything(derived_seed(setup.rng_seed, "validation"))
                with setup.validation.untouched():
                    for batch in setup.validation.epoch(0, 0) if only is None else only:
                        beat()
                        if only is None:
                            reached("validation")
                        with setup.forward():
                            found = setup.task.evaluate(setup.model, to_device(batch, setup.device))
                        most = 1
                        for name, total, count in _sums(found, batch):
                            sums.setdefault(name, []).append(total)
                            counts[name] = counts.get(name, 0) + count
                            most = max(most, count)
                        # Of data whose batches are no tensors the counts tell most.
                        samples += known_samples(batch) or most
                whole = _of_the_whole(setup)
        finally:
            # Restore each module's own mode: a task may keep some of them in eval mode all the time.
            for module, training in modes:
                module.training = training
    means = {name: _total(values) / counts[name] if counts[name] else math.nan for name, values in sums.items()}
    return Metrics(means | whole, samples, max(counts.values(), default=0))


def _of_the_whole(setup: Setup) -> dict[str, float]:
    """Return the results of the task's `on_validation_end`, such as a metric that is no mean over batches."""
    ended = getattr(setup.task, "on_validation_end", None)
    found = ended(setup.model) if callable(ended) else None
    return {
        name: float(value) for name, value in checked_metrics(found, "on_validation_end(model) must return").items()
    }


def try_evaluate(setup: Setup, beat: Callable[[], None] = lambda: None) -> Metrics:
    """Evaluate one batch before the first epoch: a fault is found within seconds. Raises SetupRefused."""
    with unchanged(setup):
        with _blamed("the validation data raise {} when their first batch is read: {}"):
            first = _first_batch(setup, beat)
        with _blamed("evaluate(model, batch) raises {} on the first batch of the validation data: {}"):
            found = validate(setup, beat, only=first)
        _require_metric(setup, found)
        return found


@contextmanager
def unchanged(setup: Setup) -> Iterator[None]:
    """Keep the model's buffers, and plain values such as counters, whatever `evaluate` does in the block.

    The workers of the validation data end with it: they have read items, and what they remember must not reach a real
    validation.
    """
    plain = [
        (module, {name: value for name, value in vars(module).items() if type(value) in _PLAIN})
        for module in setup.model.modules()
    ]
    before = [(buffer, buffer.detach().clone()) for buffer in setup.model.buffers()]
    try:
        yield
    finally:
        if setup.validation is not None:
            setup.validation.end_workers()
        for module, values in plain:
            vars(module).update(values)
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _require_metric(setup: Setup, found: Metrics) -> None:
    """Raise SetupRefused if the metric that epochs are judged by is not among what `evaluate` returned."""
    settings = setup.settings
    asked = settings.keep_best or (DEFAULT_METRIC if settings.stop.patience else "")
    if asked and found.samples and (metric := read_metric(asked)[0]) not in found.means:
        key = "keep_best" if settings.keep_best else "stop.patience"
        there = ", ".join(sorted(found.means)) or "none at all"
        raise SetupRefused(f"{key} needs the validation's {metric}; evaluate(model, batch) returns {there}")


def _first_batch(setup: Setup, beat: Callable[[], None]) -> tuple[Any, ...]:
    """Return the first batch of the validation data, or none."""
    beat()
    if setup.validation is None:
        return ()
    with preserved_rng():
        seed_everything(derived_seed(setup.rng_seed, "validation"))
        with setup.validation.untouched():
            return tuple(islice(setup.validation.epoch(0, 0), 1))


@contextmanager
def _blamed(sentence: str) -> Iterator[None]:
    """Turn what the user's code raises into TaskRaised; `sentence` has places for its type and its text."""
    try:
        yield
    except (SetupRefused, *_TRANSIENT):
        raise
    except Exception as error:
        raise TaskRaised(sentence.format(type(error).__name__, error)) from error


def _total(values: list[Any]) -> float:
    """Return the sum over batches, computed on their device, in one transfer."""
    return float(torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in values]).sum())


def _sums(found: Any, batch: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield name, sum and count of each result of a task's `evaluate`. A mean counts as often as the batch has samples.

    Raises SetupRefused for anything that `evaluate` may not return.
    """
    by_name = isinstance(found, dict)
    for name, value in found.items() if by_name else [("loss", found)]:
        if not isinstance(name, str):
            raise SetupRefused(
                f"evaluate(model, batch) must return a dict by names; {name!r} is a {type(name).__name__}"
            )
        if _is_number(value):
            samples = samples_of(batch)
            yield name, torch.as_tensor(value, dtype=torch.float64).reshape(()) * samples, samples
        elif by_name and _is_sum_and_count(value):
            total, count = value
            # A copy: the next forward pass may write to the same memory.
            kept = total.detach().reshape(()).to(torch.float64, copy=True) if isinstance(total, torch.Tensor) else total
            yield name, kept, int(count)
        else:
            what = _described(value) + (f" for {name!r}" if by_name else "")
            raise SetupRefused(
                f"evaluate(model, batch) returns {what}. It may return a number or a tensor with one element, the mean "
                "over the batch (its name is then `loss`). It may also return a dict of those by name, or a dict of "
                "(sum, count) by name"
            )


def _is_sum_and_count(value: Any) -> bool:
    """Return whether this is a pair of numbers, the second a whole one: (loss, accuracy) would give a wrong mean."""
    if not (isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_number, value))):
        return False
    count = float(value[1])
    return count >= 0 and count.is_integer()


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    if isinstance(value, np.ndarray):
        return value.size == 1 and value.dtype.kind in "biuf"
    return isinstance(value, Real)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
