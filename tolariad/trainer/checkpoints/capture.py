"""Capture a run's state at a boundary, as named tensors and msgpack: a loop over its parts.

Promises: a capture draws nothing and changes nothing. A value that cannot be captured is refused by its path before
training. Equal states give equal pieces; ids and times are in the manifest only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from tolariad.storage.manifest import OF_MODEL
from tolariad.trainer.checkpoints.files import (
    ENTRIES,
    FILES,
    MODEL_FILE,
    OF_OWNER,
    OPTIMIZER_FILE,
    SEEDS_FILE,
    STATE_FILE,
    STATE_TENSORS_FILE,
    in_order,
)
from tolariad.trainer.checkpoints.optimizers import check_apart
from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
from tolariad.trainer.checkpoints.tree import NotCapturable, encode_tree
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from tolariad.trainer.parts.part import Part
    from tolariad.trainer.setup import Setup


def capture(setup: Setup, position: Position) -> Snapshot:
    """Return the whole state of a run, with its live tensors. Raises NotCapturable with the path of the value."""
    tree: dict[str, Any] = {"position": asdict(position)}
    files: dict[str, dict[str, torch.Tensor]] = {}
    aliases: dict[str, str] = {}
    transient: tuple[str, ...] = ()
    for part in setup.parts:
        held = part.state()
        tree |= held.tree
        for file, tensors in held.tensors.items():
            files[file] = files.get(file, {}) | dict(tensors)
        aliases |= held.aliases
        transient += held.transient
    _check_optimizers(files)
    state, files[STATE_TENSORS_FILE] = encode_tree(in_order(tree, ENTRIES), "state")
    return Snapshot(
        position=position,
        tensors=in_order(files, FILES),
        aliases=aliases,
        transient=transient,
        state=state,
        state_group=STATE_FILE,
    )


def _check_optimizers(files: dict[str, dict[str, torch.Tensor]]) -> None:
    """Raise NotCapturable if the state of an optimizer shares memory with a parameter, or with another state."""
    of_seeds = files.get(SEEDS_FILE, {})
    model = {f"{OF_MODEL}{name}": tensor for name, tensor in files[MODEL_FILE].items()}
    model |= {name: tensor for name, tensor in of_seeds.items() if name.startswith(OF_MODEL)}
    moments = {name: tensor for name, tensor in of_seeds.items() if name.startswith(OF_OWNER)}
    check_apart(files[OPTIMIZER_FILE] | moments, model)


def check_capturable(parts: Iterable[Part]) -> None:
    """Encode everything once before training. Raises SetupRefused with the path of a value that cannot be written."""
    try:
        for part in parts:
            part.check_capturable()
    except NotCapturable as error:
        raise SetupRefused(f"no checkpoint of this run would be possible: {error}") from error
