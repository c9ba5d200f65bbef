"""Restore a run's state from a snapshot or a checkpoint's folder, into a run that was built the same way.

Promises: every byte is verified, and every name, shape and dtype compared, before the first value reaches the model. So
an unusable checkpoint leaves the run unchanged. Values are copied into the live tensors, so the next step never changes
what was read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import torch

from tolariad.storage import CheckpointUnfit, CheckpointUnusable, Manifest, held, map_piece, read_manifest
from tolariad.storage.manifest import OF_AVERAGE, OF_MODEL
from tolariad.trainer.checkpoints import files as names
from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.loaded import Loaded
from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
from tolariad.trainer.checkpoints.tensors import read_tensors
from tolariad.trainer.checkpoints.tree import decode_tree
from tolariad.trainer.orders.numbered import count_in_rates
from tolariad.trainer.parts.model import OF_ANOTHER_MODEL
from tolariad.trainer.parts.part import Restoring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tolariad.trainer.setup import Setup

# The names of the parts without which a model does not compute what it did.
_OF_WEIGHTS: Final = frozenset({"model", "average", "task"})


def load(folder: Path, manifest_hash: str, each: Callable[[], None] = lambda: None, rank: int = 0) -> Loaded:
    """Read and verify everything. `each` is called from time to time. Raises CheckpointUnusable.

    Of several ranks' states that of `rank` is returned.
    """
    with held(folder):
        manifest = read_manifest(folder, manifest_hash)
        pieces = {piece.name: map_piece(folder, piece, each) for piece in manifest.pieces}
    groups = {group for group in manifest.sizes if group != names.STATE_FILE and not names.of_another_rank(group)}
    snapshot = Snapshot(
        position=Position(manifest.global_step, manifest.epoch, manifest.batch),
        tensors={group: _tensors(manifest, pieces, group) for group in groups},
        aliases=manifest.aliases,
        transient=manifest.transient,
        state=bytes(pieces.get(names.STATE_FILE, b"")),
        state_group=names.STATE_FILE,
    )
    loaded = replace(taken_apart(snapshot), acted=manifest.acted, manifest=manifest)
    if not rank:
        return loaded
    from tolariad.trainer.ranks.pieces import with_own

    return with_own(loaded, rank, pieces)


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
    return Loaded(
        position=position,
        model=model,
        state=state,
        optimizers=optimizers,
        average=average,
        transient=snapshot.transient,
        tensors=tensors,
    )


def _below(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_fits(setup: Setup, loaded: Loaded) -> None:
    """Compare names, shapes and dtypes with the built run, part by part. Raises CheckpointUnfit.

    The model gets the shape that the state has, if the ledger knows it. Raises SetupRefused if the task cannot repeat a
    change.
    """
    for part in setup.parts:
        part.fit(loaded)


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
            why = f"{name}: it holds {was}, the model had {shape} {dtype} there; {OF_ANOTHER_MODEL}"
            raise CheckpointUnfit(names.MODEL_FILE, why)


def restore(
    setup: Setup,
    loaded: Loaded,
    copy: lanes.Copy | None = None,
    done: Callable[[str], None] = lambda _: None,
    *,
    limit_s: float | None = None,
) -> Position:
    """Copy everything into the built run and return its position. Raises as `check_fits`, before any change.

    `copy` copies into the live tensors of model and optimizer. `done` is called with the name of each participant, and
    after each part with that of its span. `limit_s` is the time limit of the rollback's tier, in seconds; participants
    get a share of it, and ParticipantRefused is raised if one of them raises. At a start it is None.
    """
    marks = [part.mark() for part in setup.parts]
    try:
        check_fits(setup, loaded)
    except CheckpointUnfit:
        for part, mark in zip(setup.parts, marks, strict=True):
            part.go_back(mark)
        raise
    held = Restoring(loaded=loaded, device=setup.device, copy=copy or lanes.copy, done=done, limit_s=limit_s)
    for part in setup.parts:
        part.load(held)
        done(part.span)
    return loaded.position


def restore_weights(setup: Setup, loaded: Loaded) -> None:
    """Copy model, moving average and the task's own state into a built run, and nothing of its training.

    Optimizers, rates, random states and the position in the data stay as they were built. Raises CheckpointUnfit, or
    SetupRefused if the task cannot repeat a change of the model's shape.
    """
    setup.ledger.move_to(loaded.changes)
    parts = [part for part in setup.parts if part.name in _OF_WEIGHTS]
    for part in parts:
        part.fit(loaded)
    held = Restoring(loaded=loaded, device=setup.device)
    for part in parts:
        part.load(held)
    setup.garden.load(loaded.slots, loaded.position.step)
