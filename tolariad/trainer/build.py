"""Build everything that a training run consists of from the resolved configuration, and check it before training.

Promises: the same configuration gives the same parameters. A run that cannot be trained, resumed or checkpointed is
refused here, with a sentence.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final

import torch
from blake3 import blake3
from torch.nn.parameter import is_lazy

from tolariad.core.calc.settings.rules import exact_json, read_resolved, require_task
from tolariad.trainer.architecture import Ledger, as_built
from tolariad.trainer.checkpoints.capture import check_capturable
from tolariad.trainer.checkpoints.optimizer_trial import lost
from tolariad.trainer.data.feed import Feed, TensorFeed
from tolariad.trainer.data.loaders import LoaderFeed, feed_of
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything
from tolariad.trainer.data.share import Share
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.gradients.auxiliary import AuxiliaryLosses
from tolariad.trainer.gradients.owners import SeedGradients
from tolariad.trainer.health.monitor import Monitor
from tolariad.trainer.lr.configured import Horizon, controller_for, horizon
from tolariad.trainer.optim.average import Average
from tolariad.trainer.optim.configured import build_optimizers, implementations
from tolariad.trainer.optim.owners import Owner
from tolariad.trainer.parts.whole import parts_of
from tolariad.trainer.process import determinism
from tolariad.trainer.pruning.pruner import Pruner
from tolariad.trainer.rollback.participants import Participants
from tolariad.trainer.seeds.found import find_slots, garden_of
from tolariad.trainer.setup import ALONE, Place, Setup
from tolariad.trainer.sharded import refuse_spread
from tolariad.trainer.step.closures import by_closure, needs_closure
from tolariad.trainer.step.compiled import compile_forward
from tolariad.trainer.step.measured import reads_late
from tolariad.trainer.step.precision import Scaling, forward_context
from tolariad.trainer.tasks.given import GivenTask, model_of, program_of
from tolariad.trainer.tasks.names import misnamed, uncallable
from tolariad.trainer.tasks.task import FoundTask, find_task
from tolariad.trainer.torch_private.choice import notes as notes_of_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from tolariad.core import messages as m
    from tolariad.core.calc.settings.model import Settings
    from tolariad.trainer.seeds.garden import Garden
    from tolariad.trainer.step.precision import Forward

_log: Final = logging.getLogger(__name__)
_WITHOUT_VALIDATION: Final = "the task has no validation data; epochs end without metrics"
_ONE_PROCESS: Final = (
    "parallel.ranks is {}, but one process trains. `tolariad run` starts as many for a task; a program is started by "
    "`torchrun --nproc-per-node {}` and calls Tolaria(...).run(...) with its model in DistributedDataParallel "
    "(docs/ranks.md). Else remove parallel"
)
_SHARED: Final = (
    "{} ranks share out the training data, which works for tensors and for data that are read by index with a length "
    "known. This data can only be iterated over (docs/ranks.md)"
)
_ONE_UPDATE: Final = (
    "{} one update a step from loss(model, batch), and this task makes its updates itself, by training_step or a "
    "closure (docs/ranks.md)"
)


def build(config: bytes, threads: int | None = None, given: FoundTask | None = None, place: Place = ALONE) -> Setup:
    """Build a run from the bytes of config.resolved.json. Raises SetupRefused, ConfigError, or what the task raises.

    `threads`: torch threads of an earlier start of this run; used if the configuration does not set them. `given`: an
    existing task to use instead of the one that the configuration names. `place`: the process among several that train.
    """
    settings = read_resolved(config)
    rng_seed = _checked_seed(settings, place)
    # The ranks of a daemon share data and machine; those of a program have done that themselves.
    mine = place if given is None else ALONE
    device, grade = _prepared(settings, threads, mine, _own_device(given, place))
    forward = forward_context(settings, device)
    seed_everything(derived_seed(rng_seed, "task"))  # a task may draw while it is imported and created
    found = _found(given, settings)
    model = _model(found.task, settings, device)
    slots = find_slots(found.task, model, settings)
    train, validation = _feeds(found.task, settings, place if settings.parallel.exact else mine)
    owned = build_optimizers(found.task, model, settings)
    owners = [Owner(name, groups.optimizer) for name, groups in owned.items()]
    steps_per_epoch = _steps_per_epoch(train, settings)
    drawn_for = horizon(steps_per_epoch, settings)
    late = reads_late(settings, device) and place.ranks == 1 and not settings.parallel.exact  # others wait for them
    rates = controller_for(owned, settings, drawn_for, found.schedules)
    average = Average(model, settings.ema.decay) if settings.ema.decay is not None else None
    scaling = Scaling(device) if settings.precision == "fp16" else None  # other formats have the range of fp32
    watch = Monitor(model, device, settings.detect, reads_late=late, loss_unit=_loss_unit(found.task))
    ledger = Ledger(found.task, model, owners, rates, average, device=device)
    ledger.notify(watch.backup.modules_changed)
    garden = garden_of(slots, ledger, owners, rates, settings=settings)
    setup = Setup(
        settings=settings,
        rng_seed=rng_seed,
        task=found.task,
        model=model,
        owners=owners,
        host=tuple(owners),
        rates=rates,
        train=train,
        validation=validation,
        device=device,
        moves=not (device.type == "cpu" and isinstance(train, TensorFeed) and train.is_on_host),
        forward=forward,
        environment=determinism.environment(
            model,
            device=device,
            grade=grade,
            precision=settings.precision,
            task_hash=found.source_hash,
            config_hash=_config_hash(settings, drawn_for.total_steps, garden.sources),
            data=_fingerprints(train, validation),
            optimizers=implementations(owned),
        ),
        steps_per_epoch=steps_per_epoch or 0,
        notes=_notes(train, validation, drawn_for, owners),
        average=average,
        scaling=scaling,
        reads_late=late,
        watch=watch,
        ledger=ledger,
        garden=garden,
        seed_gradients=_seed_gradients(found.task, settings, garden, owners, forward=forward, scaling=scaling),
        pruner=Pruner(ledger, owners, rates, average, monitor=watch, garden=garden, prune=settings.prune),
        clip=_clip(found.task),
        training_step=_training_step(found.task, settings, owners),
        participants=_participants(found.task, model),
        place=place,
    )
    _get_ready(setup, grade)
    return setup


def _own_device(given: FoundTask | None, place: Place) -> torch.device | None:
    """Return the device of the model that a program has given to a rank that is not 0: the settings have rank 0's."""
    model = given.task.model(None) if given is not None and place.rank else None
    first = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    return first.device if first is not None else None


def _checked_seed(settings: Settings, place: Place) -> int:
    """Return the run's seed, if the run is for this process. Raises SetupRefused."""
    # With exact sums the number of ranks is that of each start.
    if settings.parallel.ranks != place.ranks and not settings.parallel.exact:
        raise SetupRefused(_ONE_PROCESS.format(settings.parallel.ranks, settings.parallel.ranks))
    if settings.rng_seed is None:
        raise SetupRefused("the resolved configuration has no rng_seed; the daemon draws it when a run begins")
    return settings.rng_seed


def _prepared(
    settings: Settings, threads: int | None, place: Place, own: torch.device | None
) -> tuple[torch.device, determinism.Grade]:
    """Set torch's switches and its number of threads. Return the device and the grade of determinism.

    `own`: the device that the program has chosen for this rank.
    """
    device = own or determinism.chosen_device(settings, *place)
    grade = determinism.chosen_grade(settings, device)
    chosen_threads = settings.torch_threads or threads or determinism.chosen_threads(settings, device, place.ranks)
    determinism.prepare(grade, chosen_threads, device)
    return device, grade


def _of_program(task: Any) -> tuple[Any, ...]:
    """Return the objects of the user's program that train beside model and optimizers."""
    return (program_of(task), *getattr(task, "kept", {}).values())


def _seed_gradients(
    task: Any, settings: Settings, garden: Garden, host: Sequence[Owner], *, forward: Forward, scaling: Scaling | None
) -> SeedGradients:
    """Return the handler of the seeds' gradients, with the losses of the task's `seed_losses`, if it has it."""
    losses_of = getattr(task, "seed_losses", None)
    auxiliary = None
    if callable(losses_of):
        auxiliary = AuxiliaryLosses(
            losses_of, garden, forward, scaling, seeds=settings.seeds, rng_seed=settings.rng_seed or 0
        )
    limit = settings.seeds.max_gradient_norm
    # A copy: owners of seeds are added to the list later.
    return SeedGradients(garden, tuple(host), scaling, auxiliary, limit=limit, clips_host=_clip(task) is None)


def _get_ready(setup: Setup, grade: str) -> None:
    """List the parts, check them, compile if wanted, tell the data what is shared, and seed the training."""
    setup.parts.extend(parts_of(setup))
    check_capturable(setup.parts)
    if setup.settings.compile:
        compile_forward(setup.model, strict=grade == "strict")
    training = [setup.model, *(owner.optimizer for owner in setup.owners), *_of_program(setup.task)]
    for feed in filter(None, (setup.train, setup.validation)):
        feed.share(training)
    # Training draws from this seed on, independent of how much the building of model and data drew.
    rank = setup.state_rank
    seed_everything(derived_seed(setup.rng_seed, "training", *((rank,) if rank else ())))


def _found(given: FoundTask | None, settings: Settings) -> FoundTask:
    """Return the task, and say which of its methods have almost right names."""
    found = given or find_task(require_task(settings))
    for name, meant in misnamed(program_of(found.task)):
        _log.warning("The task's method %s is never called. Is %s meant? docs/task.md lists all names.", name, meant)
    for has, called in uncallable(program_of(found.task)):
        raise SetupRefused(f"the task has {has}, but it is called as {called}; docs/task.md lists all methods")
    return found


def _config_hash(settings: Settings, total_steps: int | None, sources: Sequence[m.BlueprintSource]) -> str:
    """Return a hash of the keys that a step may depend on, and of the length that schedules are computed for.

    `sources`: the files of blueprints that the keys name.
    """
    found = blake3(exact_json(settings) + b"%d" % (total_steps or 0))
    for one in sources:
        found.update(one.hash.encode())
    return found.hexdigest()


def _training_step(task: Any, settings: Settings, owners: Sequence[Owner]) -> Callable[..., Any] | None:
    """Return what makes the updates of a step itself: the task's `training_step`, or one for LBFGS; None without it."""
    if getattr(task, "steps_itself", False):
        return None
    found: Any = getattr(task, "training_step", None)
    closures = [one for one in owners if needs_closure(one.optimizer)]
    if not callable(found) and not closures:
        return None
    if settings.parallel.ranks > 1 or settings.parallel.exact:
        who = "exact sums make" if settings.parallel.exact else f"{settings.parallel.ranks} ranks make"
        raise SetupRefused(_ONE_UPDATE.format(who))
    if settings.accumulate > 1:
        who = "training_step(model, batch, run)" if callable(found) else type(closures[0].optimizer).__name__
        raise SetupRefused(
            f"accumulate is {settings.accumulate}, but {who} makes its own updates, each from one loss; set accumulate "
            "to 1"
        )
    if callable(found):
        step: Callable[..., Any] = found
        return step
    if len(owners) > 1:
        raise SetupRefused(
            f"{closures[0].name}: {type(closures[0].optimizer).__name__} evaluates the loss several times in a step, "
            "and there are other optimizers beside it. Write training_step(model, batch, run), and call run.update("
            f"{closures[0].name!r}, closure=...) in it"
        )
    return by_closure(task, closures[0].name)


def _clip(task: Any) -> Callable[[nn.Module], Any] | None:
    """Return the task's `clip_gradients`; None if it has none."""
    found = getattr(task, "clip_gradients", None)
    return found if callable(found) else None


def _fingerprints(*feeds: Feed | None) -> tuple[m.DataPrint, ...]:
    """Return the fingerprints of the data that there is."""
    return tuple(feed.fingerprint() for feed in feeds if feed is not None)


def _notes(train: Feed, validation: Feed | None, drawn_for: Horizon, owners: Sequence[Owner]) -> tuple[str, ...]:
    """Return what the user should know of the data, of torch, and of the optimizers."""
    told = (train.note, _WITHOUT_VALIDATION if validation is None else "", drawn_for.note)
    return (*filter(None, told), *notes_of_torch(), *(note for one in owners for note in lost(*one)))


def _loss_unit(task: Any) -> float | None:
    """Return the task's `loss_unit`, or None if it has none.

    It is the rise of a loss that may be negative that justifies a rollback.
    """
    unit = getattr(task, "loss_unit", None)
    if unit is None:
        return None
    if isinstance(unit, bool) or not isinstance(unit, (int, float)) or not 0.0 < unit < math.inf:
        raise SetupRefused(f"the task's loss_unit must be a positive number (how far a loss may rise), not {unit!r}")
    return float(unit)


def _participants(task: Any, model: nn.Module) -> Participants:
    """Register the task's participants of a rollback."""
    given, found = getattr(task, "participants", None), Participants()
    for name, participant in (given(model) if callable(given) else {}).items():
        try:
            found.register(name, participant)
        except ValueError as error:
            raise SetupRefused(f"the task's participants(model): {error}") from error
    return found


def _model(task: Any, settings: Settings, device: torch.device) -> nn.Module:
    """Return the task's model, freshly initialised, on the device."""
    seed_everything(derived_seed(settings.rng_seed or 0, "model"))
    model = task.model(settings)
    if not isinstance(model, torch.nn.Module):
        raise SetupRefused(f"{model_of(task)} must be a torch.nn.Module, not a {type(model).__name__}")
    as_built(model)
    refuse_spread(model)
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(parameter):
            before = f"before {task.CALL}" if isinstance(task, GivenTask) else "in model(cfg)"
            raise SetupRefused(f"{name} gets its shape from the first batch: pass a batch through it {before}")
    return model.to(device).train()


def _feeds(task: Any, settings: Settings, place: Place) -> tuple[Feed, Feed | None]:
    """Return training and validation data. If the task draws while it prepares them, it draws from a separate seed."""
    rng_seed = settings.rng_seed or 0

    def feed(data: Any, seed: int, *, shuffle: bool) -> Feed:
        return feed_of(data, batch_size=settings.batch_size, workers=settings.workers, rng_seed=seed, shuffle=shuffle)

    with preserved_rng():
        seed_everything(derived_seed(rng_seed, "data"))
        try:
            train = feed(task.train_data(settings), rng_seed, shuffle=True)
            if place.ranks > 1:
                _share_out(train, settings, place)
            data = task.val_data(settings) if hasattr(task, "val_data") else None
            seed = derived_seed(rng_seed, "validation data")
            return train, None if data is None else feed(data, seed, shuffle=False)
        except ValueError as error:
            raise SetupRefused(f"the task's data: {error}") from error


def _share_out(train: Feed, settings: Settings, place: Place) -> None:
    """Let this rank read its share of the batches only. Raises SetupRefused.

    With exact sums all ranks go through the whole data anyhow, so data that cannot be shared out are read by all.
    """
    if settings.parallel.exact:
        from tolariad.trainer.ranks.exact.leaf_share import LeafShare

        train.shared_out(LeafShare(*place, settings.accumulate))
    elif not train.shared_out(Share(*place, settings.accumulate)):
        raise SetupRefused(_SHARED.format(place.ranks))


def _steps_per_epoch(train: Feed, settings: Settings) -> int | None:
    """Return the updates of an epoch, including a last smaller one; None if the data has no length."""
    if train.batches is None:
        if isinstance(train, LoaderFeed) and settings.stop.steps is None:
            raise SetupRefused(
                "the sampler of the training data has no length, so nothing says where an epoch ends: give it a "
                "`__len__`, or set stop.steps"
            )
        return None
    if train.batches == 0:
        raise SetupRefused("the task's data yields no batch; is batch_size larger than the data, with drop_last?")
    return -(-train.batches // (settings.accumulate * train.share_of.times))
