"""The pieces of a checkpoint that a rank other than 0 has of its own: all in which its state differs from rank 0's.

Model, optimizers and everything else that must be equal are rank 0's. Of its own a rank has its random states, its
place in its data, the state of its task and of kept objects, and its buffers: BatchNorm's statistics are of its data.
Promises: the pieces have the same formats as rank 0's, under names with the rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict

from tolariad.storage import CheckpointUnusable
from tolariad.trainer.checkpoints.files import STATE_FILE, STATE_TENSORS_FILE
from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
from tolariad.trainer.checkpoints.tensors import read_tensors
from tolariad.trainer.checkpoints.tree import decode_tree, encode_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup

_OWN: Final = ("rng", "data", "task")
_BUFFERS: Final = "buffers"


def name_of(file: str, rank: int) -> str:
    """Return the name of a rank's file, from that of rank 0's."""
    return file.replace("-00000.", f"-{rank:05d}.")


def own_pieces(setup: Setup, position: Position) -> tuple[tuple[str, bytes], ...]:
    """Return this rank's files, each with its content. Raises NotCapturable with the path of a value.

    With exact sums there are none: the next start may have another number of ranks, and all have rank 0's state.
    """
    if setup.settings.parallel.exact:
        return ()
    tree: dict[str, Any] = {"position": asdict(position)}
    for part in setup.parts:
        if part.name in _OWN:
            tree |= part.state().tree
    tree[_BUFFERS] = {name: buffer.detach() for name, buffer in setup.model.named_buffers()}
    state, tensors = encode_tree(tree, "state")
    snapshot = Snapshot(
        position=position,
        tensors={STATE_TENSORS_FILE: tensors},
        aliases={},
        transient=(),
        state=state,
        state_group=STATE_FILE,
    )
    return tuple((name_of(file.name, setup.place.rank), b"".join(file.chunks)) for file in snapshot.files())


def with_own(loaded: Loaded, rank: int, pieces: Mapping[str, memoryview]) -> Loaded:
    """Return a loaded checkpoint with what `rank` has of its own. Raises CheckpointUnusable."""
    state_file, tensor_file = name_of(STATE_FILE, rank), name_of(STATE_TENSORS_FILE, rank)
    for file in (state_file, tensor_file):
        if file not in pieces:
            raise CheckpointUnusable(file, "is not among the pieces: the checkpoint is of fewer ranks")
    try:
        own = decode_tree(bytes(pieces[state_file]), read_tensors(pieces[tensor_file]))
        position, buffers = Position(**own["position"]), own[_BUFFERS]
        state = {**loaded.state, **{name: own[name] for name in _OWN if name in own}}
        model = {**loaded.model, **{name: stored.tensor for name, stored in buffers.items()}}
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointUnusable(state_file, f"does not hold the state of rank {rank}: {error!r}") from error
    if position != loaded.position:
        raise CheckpointUnusable(state_file, f"is of step {position.step}, and the model of {loaded.position.step}")
    return replace(loaded, state=state, model=model)
