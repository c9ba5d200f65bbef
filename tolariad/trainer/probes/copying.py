"""Build the copy that something is tried on: the model as the task builds it, or with the weights of a checkpoint.

Promises: the weights are verified before they reach the copy. A model that grew gets the shape that it had in the
checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from tolariad.core.calc.settings.processes import Parallel
from tolariad.core.calc.settings.ranks import with_leaves
from tolariad.core.calc.settings.rules import read_resolved, resolved_json
from tolariad.storage import read_manifest
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.restore import load, restore_weights

if TYPE_CHECKING:
    from tolariad.trainer.probes.messages import Trial
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.tasks.task import FoundTask


class Copy(NamedTuple):
    """The copy. `has_average`: the copy also has the moving average of the weights, from the checkpoint."""

    setup: Setup
    has_average: bool


def built_copy(trial: Trial, given: FoundTask | None = None) -> Copy:
    """Build the copy. Raises SetupRefused, CheckpointUnusable, CheckpointUnfit, or what the task raises.

    `given`: the task, if it is not the one that the configuration names.
    """
    settings = read_resolved(trial.config.encode())
    # The seed of a run is drawn only when the run begins. A trial is one process: it tries what one rank does.
    config = resolved_json(replace(with_leaves(settings), rng_seed=settings.rng_seed or 0, parallel=Parallel()))
    if trial.weights is None:
        return Copy(build(config, given=given), has_average=False)
    folder, manifest = Path(trial.weights.folder), trial.weights.manifest
    # The number of threads changes the bits of sums: the same as in the run.
    setup = build(config, read_manifest(folder, manifest).torch_threads or None, given)
    loaded = load(folder, manifest)
    restore_weights(setup, loaded)
    return Copy(setup, has_average=setup.average is not None and loaded.average is not None)
