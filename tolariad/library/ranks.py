"""Whether this process is one of several that train together, and what such a program may do.

Promises: nothing here imports torch.distributed, so a program of one process pays nothing. What several ranks cannot do
yet is refused by name before the run begins.
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from tolariad.core.calc.settings import ranks
from tolariad.core.calc.settings.processes import Parallel
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.setup import ALONE, Place

if TYPE_CHECKING:
    from torch import nn

    from tolariad.core.calc.settings.model import Settings

_log: Final = logging.getLogger(__name__)
_PAGE: Final = "docs/ranks.md"
_EXACT: Final = "docs/exact-sums.md"
_NO_GROUP: Final = (
    "torchrun has started {0} processes (WORLD_SIZE={0}), and this one has no process group: call "
    "torch.distributed.init_process_group() before run(), and wrap the model in DistributedDataParallel. If each "
    f"process trains a run of its own, take WORLD_SIZE out of its environment ({_PAGE})"
)
_TRAIN: Final = (
    f"{{}} ranks train together, and train() makes its forward pass without DistributedDataParallel. Call run() with a "
    f"loop of your own ({_PAGE}), or set parallel: {{{{exact: true, leaves: {{}}}}}} ({_EXACT})"
)
_ONE_STORE: Final = (
    "torchrun will start these processes again after a failure, and lets them meet in the store of the start before: "
    "torch may then read addresses of processes that are gone, and fail or wait. Start torchrun with "
    f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 ({_PAGE})"
)
# Models whose buckets have their final layout.
_fixed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
# For the models that came wrapped, their wrappers, which hold them.
_wrappers: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()


def place_here() -> Place:
    """Return the rank of this process and the number of ranks. Raises SetupRefused if the ranks have not met."""
    if not _have_met():
        if _started_by_torchrun():
            raise SetupRefused(_NO_GROUP.format(os.environ["WORLD_SIZE"]))
        return ALONE
    distributed = sys.modules["torch.distributed"]
    return _on_this_machine(Place(distributed.get_rank(), distributed.get_world_size()))


def _have_met() -> bool:
    """Return whether this process is in a process group of torch's."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _started_by_torchrun() -> bool:
    """Return whether torchrun has started this process, and others."""
    world = os.environ.get("WORLD_SIZE", "")
    return "LOCAL_RANK" in os.environ and world.isdecimal() and int(world) > 1


def _on_this_machine(place: Place) -> Place:
    """Return a place. Raises SetupRefused if its ranks are on several machines."""
    if place.ranks == 1:
        return ALONE
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    if here.isdecimal() and int(here) != place.ranks:
        raise SetupRefused(
            f"{place.ranks} ranks train on several machines, {here} on this one: only ranks on one machine are "
            f"possible yet ({_PAGE})"
        )
    return place


def may_have_recorder() -> bool:
    """Return whether this process may be the one that has the recorder. Asked before the ranks have met."""
    return os.environ.get("LOCAL_RANK", "0") in ("", "0")


def bare(model: Any, place: Place) -> Any:
    """Return the model itself, if it comes wrapped for this group. Raises SetupRefused."""
    wrapper = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if wrapper is None or not isinstance(model, wrapper):
        if place.ranks > 1:
            raise SetupRefused(
                f"{place.ranks} ranks train together, and the model is a {type(model).__name__}: pass the model that "
                f"DistributedDataParallel returns ({_PAGE})"
            )
        return model
    if place.ranks > 1 and model not in _fixed:
        _fix(model)
        _fixed.add(model)
    _wrappers[model.module] = weakref.ref(model)
    return model.module


def wrapper_of(model: nn.Module) -> nn.Module | None:
    """Return the wrapper that a model came in, while the program has it."""
    found = _wrappers.get(model)
    return found() if found is not None else None


def _fix(model: Any) -> None:
    """Give the model's buckets their final layout, so that a resume sums in the same order. Raises SetupRefused."""
    from tolariad.trainer.torch_private import ddp

    if model.static_graph:
        raise SetupRefused(
            f"the model has static_graph=True, with which a resumed run has other bits: remove it ({_PAGE})"
        )
    if ddp.has_hook(model):
        raise SetupRefused(
            "the model has a communication hook, which sums gradients in ways of its own: remove register_comm_hook "
            f"({_PAGE})"
        )
    if not model.find_unused_parameters and ddp.fix_buckets(model) is False:
        raise SetupRefused(
            "the model in DistributedDataParallel has made a backward pass before run(), so the layout of its buckets "
            f"depends on that: call run() right after wrapping it ({_PAGE})"
        )


def place_of_train(settings: Settings, model: Any) -> Place:
    """Return the place of this process in a call of `Tolaria.train`. Raises SetupRefused.

    `train` makes the passes itself, of the bare model, so several ranks need exact sums. These send nothing: the ranks
    of torchrun need not have met.
    """
    if settings.parallel.exact and not _have_met() and _started_by_torchrun():
        place = _on_this_machine(Place(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))
    else:
        place = place_here()
    if place.ranks > 1 and not settings.parallel.exact:
        raise SetupRefused(_TRAIN.format(place.ranks, place.ranks))
    wrapper = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if settings.parallel.exact and wrapper is not None and isinstance(model, wrapper):
        raise SetupRefused(
            "train() with exact sums makes the passes itself, without DistributedDataParallel: pass the model that it "
            f"wraps ({_EXACT})"
        )
    return place


def refuse_split(loader: Any) -> None:
    """Raise SetupRefused for a loader whose sampler gives each rank other samples: exact sums share out the batches."""
    distributed = sys.modules.get("torch.utils.data.distributed")
    batches = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), getattr(batches, "sampler", None)):
        if distributed is None or not isinstance(sampler, distributed.DistributedSampler) or sampler.num_replicas == 1:
            continue
        raise SetupRefused(
            "the loader has a DistributedSampler, so its batches depend on the number of ranks. With exact sums "
            "(parallel.exact) give every rank the loader that one process would have: each rank then makes its own "
            f"batches of every step ({_EXACT})"
        )


def for_ranks(settings: Settings, place: Place) -> Settings:
    """Return the settings of a run of this group. Raises SetupRefused for what several ranks cannot do yet."""
    if settings.parallel.ranks not in (1, place.ranks):
        raise SetupRefused(
            f"parallel.ranks is {settings.parallel.ranks}, and {place.ranks} ranks were started: remove the key, or "
            "start as many"
        )
    if found := [name for _, name in ranks.refused_for_ranks(settings)]:
        who = "several ranks" if place.ranks > 1 else "exact sums (parallel.exact)"
        raise SetupRefused(f"{who} cannot do this yet: {', '.join(found)}. Remove it ({_PAGE})")
    parallel, leaves = Parallel(ranks=place.ranks), settings.parallel.leaves
    if settings.parallel.exact and leaves is not None:
        if place.ranks > leaves:
            raise SetupRefused(
                f"{place.ranks} ranks with parallel.leaves: {leaves}: each rank makes at least one micro-batch of a "
                f"step, so start at most {leaves} ({_EXACT})"
            )
        # The number of ranks is that of each start, and no part of the run.
        parallel = Parallel(exact=True, leaves=leaves)
        settings = replace(settings, accumulate=leaves)
    if place.rank == 0 and settings.rollback.fast_path_enabled:
        who = f"{place.ranks} ranks train together" if place.ranks > 1 else "The sums are exact"
        _log.warning(f"{who}: {ranks.ON_DISK}")
    if place.rank == 0 and _meets_again_in_one_store():
        _log.warning(_ONE_STORE)
    return replace(ranks.for_ranks(settings), parallel=parallel)


def group_here() -> str:
    """Return what tells this start of the group from an earlier one: that of torchrun, and where the ranks meet."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return "/".join(os.environ.get(name, "") for name in names)


def _meets_again_in_one_store() -> bool:
    """Return whether torchrun restarts its processes with the store that they had."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    is_shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return is_shared and restarts.isdecimal() and int(restarts) > 0
