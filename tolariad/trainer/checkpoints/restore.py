"""Restore a run's state from a snapshot or a checkpoint's folder, into a run that was built the same way.

Promises: every byte is verified, and every name, shape and dtype compared, before the first value reaches the model. So
an unusable checkpoint leaves the run unchanged. Values are copied into the live tensors, so the next step never changes
what was read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import torch

from tolariad.storage import CheckpointUnfit, CheckpointUnusable, Manifest, held, map_piece, read_manifest
from tolariad.storage.manifest import OF_AVERAGE, OF_MODEL
from tolariad.trainer.checkpoints import capture as names
from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.attributes import is_of_other_options, put_back, wrapped_by
from tolariad.trainer.checkpoints.capture import live_tensors, optimizer_tree
from tolariad.trainer.checkpoints.loaded import Loaded
from tolariad.trainer.checkpoints.moved import Moved, moved_buffers, put_buffers
from tolariad.trainer.checkpoints.random_states import fitted
from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
from tolariad.trainer.checkpoints.tensors import place_of, raw_bytes, read_tensors, without_duplicates
from tolariad.trainer.checkpoints.tree import Given, Stored, decode_tree, made
from tolariad.trainer.data.randomness import set_rng_states
from tolariad.trainer.orders.numbered import count_in_rates
from tolariad.trainer.pruning.units import PruningRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tolariad.trainer.setup import Setup

    Copy = Callable[[list[tuple[torch.Tensor, torch.Tensor]]], None]

# A start builds the model that the task builds, and makes the changes of the ledger on it.
_OF_ANOTHER_MODEL: Final = (
    "the task has changed since, or one of its hooks changed the model without rates.grow(), which records a change. "
    "`tolaria events RUN -t OptimizerRebuildCommitted` may show when. Only a checkpoint from the same side of that "
    "change fits"
)


def load(folder: Path, manifest_hash: str, each: Callable[[], None] = lambda: None) -> Loaded:
    """Read and verify everything. `each` is called from time to time. Raises CheckpointUnusable."""
    with held(folder):
        manifest = read_manifest(folder, manifest_hash)
        pieces = {piece.name: map_piece(folder, piece, each) for piece in manifest.pieces}
    groups = {group for group in manifest.sizes if group != names.STATE_FILE}
    snapshot = Snapshot(
        position=Position(manifest.global_step, manifest.epoch, manifest.batch),
        tensors={group: _tensors(manifest, pieces, group) for group in groups},
        aliases=manifest.aliases,
        transient=manifest.transient,
        state=bytes(pieces.get(names.STATE_FILE, b"")),
        state_group=names.STATE_FILE,
    )
    return replace(taken_apart(snapshot), acted=manifest.acted, manifest=manifest)


def _tensors(manifest: Manifest, pieces: dict[str, memoryview], group: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one group. Join those that are split over several files."""
    rows: dict[str, list[torch.Tensor]] = {}
    for piece in manifest.group(group):
        try:
            for name, tensor in read_tensors(pieces[piece.name]).items():
                rows.setdefault(name, []).append(tensor)
        except ValueError as error:
            raise CheckpointUnusable(piece.name, str(error)) from error
    shapes = manifest.cut.get(group, {})
    try:
        return {n: torch.cat(r).view(shapes[n]) if n in shapes else r[0] for n, r in rows.items()}
    except RuntimeError as error:
        raise CheckpointUnusable(group, f"its files do not match: {error}") from error


def taken_apart(snapshot: Snapshot) -> Loaded:
    """Decode a snapshot for `restore`. Raises CheckpointUnusable if it does not hold a run's state."""
    tensors = snapshot.tensors
    for group in (names.MODEL_FILE, names.OPTIMIZER_FILE, names.STATE_TENSORS_FILE):
        if group not in tensors:
            raise CheckpointUnusable(group, "is not among the pieces of this checkpoint")
    of_seeds = tensors.get(names.SEEDS_FILE, {})
    model = tensors[names.MODEL_FILE] | _below(OF_MODEL, of_seeds)
    for alias, holder in snapshot.aliases.items():
        if holder not in model:
            raise CheckpointUnusable("manifest.json", f"{alias} is listed as tied to {holder}, which does not exist")
        model[alias] = model[holder]
    try:
        state = decode_tree(snapshot.state, tensors[names.STATE_TENSORS_FILE])
        held = tensors[names.OPTIMIZER_FILE]
        optimizers = {state.get("first_owner", ""): decode_tree(state["optimizer"], held)}
        optimizers |= {name: decode_tree(encoded, held) for name, encoded in state.get("owners", ())}
        seeds = state.get("seeds", {}).get("owners", ())
        optimizers |= {name: decode_tree(encoded, of_seeds) for name, encoded in seeds}
        position = Position(**state["position"])
        if "orders" not in state:
            state["orders"] = count_in_rates(state.get("rates"))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointUnusable(names.STATE_FILE, f"does not hold a run's state: {error!r}") from error
    average = tensors.get(names.AVERAGE_FILE)
    if average is not None:
        average = average | _below(OF_AVERAGE, of_seeds)
    transient = snapshot.transient
    return Loaded(
        position=position,
        model=model,
        state=state,
        optimizers=optimizers,
        average=average,
        transient=transient,
        displaced=tensors.get(names.MASKS_FILE, {}),
    )


def _below(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_fits(setup: Setup, loaded: Loaded) -> Moved:
    """Compare names, shapes and dtypes with the built run. Return the buffers that differ and may do so.

    Raises CheckpointUnfit. Changes nothing.
    """
    moved = _check_model(setup, loaded)
    check_owners(setup, loaded)
    try:
        setup.pruner.check(loaded.pruning)  # safety: masks-of-checkpoint-fit
    except PruningRefused as refused:
        raise CheckpointUnfit(names.STATE_FILE, f"its masks do not fit the model: {refused}") from refused
    return moved


def _check_model(setup: Setup, loaded: Loaded) -> Moved:
    live, moved = live_tensors(setup.model), moved_buffers(setup, loaded)
    otherwise = moved.names
    compared, held = ({n: t for n, t in tensors.items() if n not in otherwise} for tensors in (live, loaded.model))
    check_tensors(names.MODEL_FILE, compared, held)
    _check_shared(compared, held)
    if setup.average is not None and loaded.average is not None:
        check_tensors(names.AVERAGE_FILE, setup.average.tensors, loaded.average)
    return moved


def check_target(setup: Setup, loaded: Loaded) -> None:
    """Do what `check_fits` does for a rollback's target, on either side of a recorded change. Raises CheckpointUnfit.

    If it lies before a change, parameters are compared; the rest is compared when the change has been undone.
    """
    if loaded.changes == setup.ledger.changes:
        check_fits(setup, loaded)
        return
    expected = setup.ledger.parameters_at(loaded.changes)
    if expected is None:
        raise CheckpointUnfit(
            names.STATE_FILE,
            "it is of a model that went through other changes than the one that trains; a new trainer can begin there",
        )
    for name, (shape, dtype) in expected.items():
        held = loaded.model.get(name)
        if held is None or (tuple(held.shape), held.dtype) != (shape, dtype):
            was = "nothing" if held is None else f"{tuple(held.shape)} {held.dtype}"
            why = f"{name}: it holds {was}, the model had {shape} {dtype} there; {_OF_ANOTHER_MODEL}"
            raise CheckpointUnfit(names.MODEL_FILE, why)


def check_owners(setup: Setup, loaded: Loaded) -> None:
    """Raise CheckpointUnfit if the owners differ, or the parameters or groups of one of them."""
    here = tuple(owner.name for owner in setup.host) if len(setup.host) > 1 else ("",)
    here += tuple(owner.name for owner in setup.garden.owned_by_seeds())
    if here != tuple(loaded.optimizers):
        was, now = (", ".join(filter(None, each)) or "one optimizer" for each in (loaded.optimizers, here))
        raise CheckpointUnfit(
            names.OPTIMIZER_FILE, f"it is of a run with other optimizers: it holds {was}, here is {now}"
        )
    for owner, tree in zip(setup.owners, loaded.optimizers.values(), strict=True):
        here_tree = optimizer_tree(setup.model, owner.optimizer)
        sizes, sizes_held = ([len(group["params"]) for group in one["param_groups"]] for one in (here_tree, tree))
        if here_tree["names"] != tree["names"] or sizes != sizes_held:
            why = f"it is of an optimizer with other parameters or groups; {_OF_ANOTHER_MODEL}"
            raise CheckpointUnfit(names.OPTIMIZER_FILE, why)


def check_tensors(file: str, live: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> None:
    """Raise CheckpointUnfit if names, shapes or dtypes differ."""
    for name in sorted(live.keys() ^ held.keys()):
        where = "the model has no such tensor" if name in held else "the checkpoint has no such tensor"
        raise CheckpointUnfit(file, f"{name}: {where}; {_OF_ANOTHER_MODEL}")
    for name, tensor in live.items():
        stored = held[name]
        if (stored.shape, stored.dtype) != (tensor.shape, tensor.dtype):
            was, now = f"{tuple(stored.shape)} {stored.dtype}", f"{tuple(tensor.shape)} {tensor.dtype}"
            raise CheckpointUnfit(file, f"{name}: it holds {was}, the model has {now}; {_OF_ANOTHER_MODEL}")


def _check_shared(live: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> None:
    """Raise CheckpointUnfit if two names are one tensor in the model, but differ in the checkpoint."""
    for alias, holder in without_duplicates(live)[1].items():
        one, other = held[alias], held[holder]
        if one is not other and raw_bytes(one) != raw_bytes(other):
            why = f"{alias} and {holder} are one tensor in the model, but differ in the checkpoint; {_OF_ANOTHER_MODEL}"
            raise CheckpointUnfit(names.MODEL_FILE, why)


def restore(
    setup: Setup,
    loaded: Loaded,
    copy: Copy | None = None,
    done: Callable[[str], None] = lambda _: None,
    *,
    limit_s: float | None = None,
) -> Position:
    """Copy everything into the built run and return its position. Raises CheckpointUnfit before any change.

    The model gets the shape that the state has, if the ledger knows it. Raises SetupRefused if the task cannot repeat a
    change.

    `copy` copies into the live tensors of model and optimizer. `done` is called with the name of each participant, then
    after the model, the optimizer and the rest are restored. `limit_s` is the time limit of the rollback's tier, in
    seconds; participants get a share of it, and ParticipantRefused is raised if one of them raises. At a start it is
    None.
    """
    copy = copy or lanes.copy
    moved = _reshaped(setup, loaded)
    device = setup.device
    setup.participants.restore(loaded.participants, device, limit_s, done)
    # Those of an interrupted step, or of the step before a change that is undone: the next step must not add to them.
    setup.model.zero_grad(set_to_none=True)
    _restore_model(setup, loaded, moved, copy)
    done("model")
    setup.strategy.restored(loaded.state.get("strategy", b""))
    if setup.strategy.state:
        done("strategy")
    scaling = loaded.state.get("scaling")
    if setup.scaling is not None and scaling is not None:
        setup.scaling.load(made(scaling, device))
    trees = dict(zip(setup.owners, loaded.optimizers.values(), strict=True))
    for owner in setup.host:
        restore_optimizer(owner.optimizer, trees[owner], device, copy)
    done("optimizer")
    if setup.garden.active:
        for owner in setup.garden.owned_by_seeds():
            restore_optimizer(owner.optimizer, trees[owner], device, copy)
        done("seeds")
    rates = made(loaded.state.get("rates"), device)
    setup.rates.restored(rates, loaded.position.step, loaded.position.epoch)
    setup.garden.load(loaded.slots, loaded.position.step)
    setup.pruner.load(loaded.pruning, loaded.displaced, loaded.position.step, copy)
    setup.acted.restored(loaded.state["orders"], loaded.acted)
    setup.watch.load_state(loaded.state.get("detector"))
    _restore_task(setup, loaded)
    setup.train.load_state(made(loaded.state["data"], device))
    # Random states last: the calls above may have drawn.
    set_rng_states(fitted(made(loaded.state["rng"], device), device))
    done("rest")
    return loaded.position


def _reshaped(setup: Setup, loaded: Loaded) -> Moved:
    """Give the model the shape of the state. Return the buffers that differ. Raises CheckpointUnfit before a change."""
    before, slots, step = setup.ledger.changes, setup.garden.state(), setup.rates.global_step
    masks = setup.pruner.mark()
    setup.ledger.move_to(loaded.changes)
    try:
        return check_fits(setup, loaded)
    except CheckpointUnfit:
        setup.ledger.move_to(before)
        setup.garden.load(slots, step)
        setup.pruner.go_back(masks)
        raise


def restore_weights(setup: Setup, loaded: Loaded) -> None:
    """Copy model, moving average and the task's own state into a built run, and nothing of its training.

    Optimizers, rates, random states and the position in the data stay as they were built. Raises CheckpointUnfit, or
    SetupRefused if the task cannot repeat a change of the model's shape.
    """
    setup.ledger.move_to(loaded.changes)
    _restore_model(setup, loaded, _check_model(setup, loaded), lanes.copy)
    setup.garden.load(loaded.slots, loaded.position.step)
    _restore_task(setup, loaded)


def _restore_model(setup: Setup, loaded: Loaded, moved: Moved, copy: Copy) -> None:
    put_buffers(setup, loaded, moved)
    live = live_tensors(setup.model)
    copy([(tensor, loaded.model[name]) for name, tensor in live.items() if name not in moved.put])
    if setup.average is not None and loaded.average is not None:
        setup.average.load(loaded.average)
    elif setup.average is not None:
        # The checkpoint has no average: start at its weights.
        setup.average.begin_anew()
    _restore_model_tree(setup.model, made(loaded.state["model"], setup.device))


def _restore_task(setup: Setup, loaded: Loaded) -> None:
    load_task = getattr(setup.task, "load_state_dict", None)
    if callable(load_task) and loaded.state["task"] is not None:
        load_task(made(loaded.state["task"], setup.device))


def _restore_model_tree(model: torch.nn.Module, tree: dict[str, Any]) -> None:
    frozen, in_eval = set(tree["frozen"]), set(tree["in_eval"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, module in model.named_modules():
        module.training = name not in in_eval
        if name in tree["extra"]:
            module.set_extra_state(tree["extra"][name])


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tree: dict[str, Any], device: torch.device, copy: Copy | None = None
) -> None:
    """Restore the optimizer's state in its original dtypes, and in its live tensors if they fit.

    Optimizer.load_state_dict adopts the given tensors and casts them to their parameter's dtype. It is called for the
    sake of subclasses; afterwards the optimizer's own tensors replace the adopted ones.
    """
    if is_of_other_options(optimizer, tree):
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # What it wraps keeps its groups: they may be those of this one, which the rate controller holds.
    within = {name: (one, one.param_groups, list(one.param_groups)) for name, one in wrapped_by(optimizer).items()}
    target = _Target(device)
    state = {}
    for key, stored in tree["state"].items():
        live = optimizer.state.get(parameters[key] if isinstance(key, int) else key)
        state[key] = target.into(live, stored)
    more, groups = (made(tree.get(name, {}), device, target.given) for name in ("more", "param_groups"))
    optimizer.load_state_dict({**more, "state": _castable(state), "param_groups": groups})
    for key, value in state.items():
        optimizer.state[parameters[key] if isinstance(key, int) else key] = value
    (copy or lanes.copy)(target.pairs)
    for key, name, number in made(tree.get("shared", []), device):
        optimizer.state[parameters[key]][name] = parameters[number].detach()
    put_back(optimizer, made(tree.get("attributes", {}), device))
    for name, (one, groups, content) in within.items():
        if name in tree.get("wrapped", {}):
            restore_optimizer(one, tree["wrapped"][name], device, copy)
            for group, restored in zip(content, one.param_groups, strict=True):
                group.update((key, value) for key, value in restored.items() if key != "params")
        groups[:] = content
        one.param_groups = groups


def _castable(value: Any) -> Any:
    """Return `value` in a form that torch can walk through: it takes an array for a list and fails to rebuild it."""
    match value:
        case np.ndarray():
            return value.tolist()
        case dict():
            return {key: _castable(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(map(_castable, value))
        case _:
            return value


class _Target:
    """Maps stored values to the optimizer's own. Afterwards `pairs` lists which tensor is to be copied into which.

    A tensor that was stored for several places stays one tensor; separate ones stay separate, even if the live
    optimizer shares them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken: set[tuple[object, ...]] = set()
        self.given: Given = {}
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def into(self, live: Any, stored: Any) -> Any:
        """Return `live` if it fits and is not used for another stored value; else a new value."""
        if isinstance(stored, Stored):
            return self._tensor(live, stored)
        if isinstance(stored, dict):
            held = live if isinstance(live, dict) else {}
            return type(stored)((key, self.into(held.get(key), item)) for key, item in stored.items())
        return made(stored, self._device, self.given)

    def _tensor(self, live: Any, stored: Stored) -> torch.Tensor:
        if id(stored) not in self.given and stored.fits(live, self._device) and place_of(live) not in self._taken:
            self._taken.add(place_of(live))
            self.pairs.append((live, stored.tensor))
            self.given[id(stored)] = live
        tensor: torch.Tensor = made(stored, self._device, self.given)
        return tensor
