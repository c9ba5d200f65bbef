"""Evaluate a checkpoint on the task's test data, as a run evaluates its validation data.

Promises: on the validation data the result is that of the run after the epoch, bit for bit.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from tolariad.core.calc.text.plain import finite, number_state
from tolariad.trainer.data.loaders import feed_of
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.probes.copying import built_copy
from tolariad.trainer.probes.counter import Counter
from tolariad.trainer.probes.messages import Evaluated
from tolariad.trainer.step.validate import validate

if TYPE_CHECKING:
    from tolariad.trainer.data.feed import Feed
    from tolariad.trainer.probes.messages import Evaluate
    from tolariad.trainer.setup import Setup


def evaluate(trial: Evaluate) -> Evaluated:
    """Return the metrics. Raises what `built_copy` raises, SetupRefused if there is nothing to evaluate on."""
    setup, has_average = built_copy(trial)
    if trial.averaged and not has_average:
        raise SetupRefused(
            "--ema: the checkpoint contains no moving average of the weights, or `ema.decay` is not set; leave --ema "
            "out to test the weights"
        )
    averaged = has_average and trial.averaged is not False
    feed = _test_feed(setup)
    data = "validation" if feed is None else "test"
    setup = replace(setup, validation=feed or setup.validation, average=setup.average if averaged else None)
    if setup.validation is None:
        raise SetupRefused(
            "the task has no data to test on. Give it a method test_data(cfg), which returns data as val_data(cfg) "
            "does. Give a LightningModule a test_step and a test_dataloader, or those of a validation"
        )
    counter, batches = Counter("evaluating batch", setup.validation.batches), count()
    begun = time.perf_counter()
    try:
        found = validate(setup, lambda: counter.show(next(batches)))
    finally:
        counter.end()
    states = {name: number_state(value) or "" for name, value in found.means.items()}
    return Evaluated(
        data=data,
        weights="averaged" if averaged else "trained",
        samples=found.samples,
        seconds=time.perf_counter() - begun,
        metrics={name: finite(value) for name, value in found.means.items()},
        metrics_state={name: state for name, state in states.items() if state != "finite"},
    )


def _test_feed(setup: Setup) -> Feed | None:
    """Return the task's test data, or None if it has none. Raises SetupRefused if they cannot be used."""
    given = getattr(setup.task, "test_data", None)
    if not callable(given):
        return None
    settings, rng_seed = setup.settings, setup.rng_seed
    with preserved_rng():
        seed_everything(derived_seed(rng_seed, "test data"))
        data: Any = given(settings)
        if data is None:
            return None
        try:
            return feed_of(
                data,
                batch_size=settings.batch_size,
                workers=settings.workers,
                rng_seed=derived_seed(rng_seed, "test data"),
                shuffle=False,
            )
        except (SetupRefused, ValueError) as error:
            raise SetupRefused(f"test_data(cfg): {error}") from error
