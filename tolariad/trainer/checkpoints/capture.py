"""Capture a run's state at a boundary, as named tensors and msgpack.

Promises: a capture draws nothing and changes nothing. A value that cannot be captured is refused by its path before
training. Equal states give equal pieces; ids and times are in the manifest only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from blake3 import blake3
from msgspec.structs import asdict

from tolariad.storage.manifest import (
    AVERAGE_PIECE,
    MASKS_PIECE,
    MODEL_PIECE,
    OF_AVERAGE,
    OF_MODEL,
    SEEDS_PIECE,
    STATE_PIECE,
)
from tolariad.trainer.architecture.ledger import state_of
from tolariad.trainer.checkpoints.attributes import attributes_of, without_parameters, wrapped_by
from tolariad.trainer.checkpoints.snapshot import Position, Snapshot
from tolariad.trainer.checkpoints.tensors import check_tensor, overlap, without_duplicates
from tolariad.trainer.checkpoints.tree import NotCapturable, encode_tree
from tolariad.trainer.data.randomness import rng_states
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.torch_private import modules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from tolariad.trainer.data.feed import Feed
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.rollback.participants import Participants
    from tolariad.trainer.seeds.garden import Garden
    from tolariad.trainer.setup import Setup

RANK: Final = 0
MODEL_FILE: Final = MODEL_PIECE
AVERAGE_FILE: Final = AVERAGE_PIECE
SEEDS_FILE: Final = SEEDS_PIECE
MASKS_FILE: Final = MASKS_PIECE
OPTIMIZER_FILE: Final = f"optimizer-{RANK:05d}.safetensors"
STATE_TENSORS_FILE: Final = f"state-{RANK:05d}.safetensors"
STATE_FILE: Final = STATE_PIECE
# Before the names of the tensors of the second owner and of those after it; the first one's have none.
OF_OWNER: Final = "owner."


def capture(setup: Setup, position: Position) -> Snapshot:
    """Return the whole state of a run, with its live tensors. Raises NotCapturable with the path of the value."""
    garden = setup.garden
    every_tensor, aliases = without_duplicates(live_tensors(setup.model))
    model_tensors, of_seeds = _split(every_tensor, garden)
    optimizer, *others = setup.host
    optimizer_state, optimizer_tensors = encode_tree(optimizer_tree(setup.model, optimizer.optimizer), "optimizer")
    owners, more = _encoded(setup.model, others)
    optimizer_tensors |= more
    seeds, seed_tensors = _encoded(setup.model, garden.owned_by_seeds())
    check_apart(
        optimizer_tensors | seed_tensors, {f"{OF_MODEL}{name}": tensor for name, tensor in every_tensor.items()}
    )
    rest = {
        "position": asdict(position),
        "model": {**model_tree(setup.model), "buffers": buffer_tree(setup.model, setup.environment.model_hash)},
        "optimizer": optimizer_state,
        **({"first_owner": optimizer.name, "owners": owners} if owners else {}),
        # Without a GPU the entry is absent: such checkpoints are the same as those of older versions.
        "rng": {**rng_states(), **({"device": setup.device.index or 0} if setup.device.type == "cuda" else {})},
        "data": setup.train.state(),
        "task": task_state(setup.task),
        "orders": setup.acted.count,
        "rates": setup.rates.state_dict(),
        "detector": setup.watch.state(),
        "scaling": setup.scaling.state() if setup.scaling is not None else None,
        **({"architecture": state_of(setup.ledger.changes)} if setup.ledger.changes else {}),
        **({"seeds": {"slots": garden.state(), "owners": seeds}} if garden.plots else {}),
        **({"pruning": setup.pruner.state()} if setup.pruner.masked else {}),
        # Absent without a strategy: such checkpoints are the same as those of older versions.
        **({"strategy": setup.strategy.state} if setup.strategy.state else {}),
        **({"participants": states} if (states := setup.participants.states()) else {}),
    }
    state, state_tensors = encode_tree(rest, "state")
    files = {MODEL_FILE: model_tensors, OPTIMIZER_FILE: optimizer_tensors, STATE_TENSORS_FILE: state_tensors}
    seed_tensors |= {f"{OF_MODEL}{name}": tensor for name, tensor in of_seeds.items()}
    if setup.average is not None:
        files[AVERAGE_FILE], of_seeds = _split(setup.average.tensors, garden)
        seed_tensors |= {f"{OF_AVERAGE}{name}": tensor for name, tensor in of_seeds.items()}
    if garden.active:
        files[SEEDS_FILE] = seed_tensors
    if setup.pruner.displaced:
        files[MASKS_FILE] = dict(setup.pruner.displaced)
    return Snapshot(
        position=position,
        tensors=files,
        aliases=aliases,
        transient=transient_buffers(setup.model),
        state=state,
        state_group=STATE_FILE,
    )


def _split(tensors: dict[str, torch.Tensor], garden: Garden) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the tensors of the host, and those of the seeds."""
    if not garden.active:
        return tensors, {}
    of_seeds = {name: tensor for name, tensor in tensors.items() if garden.is_of_seed(name)}
    return {name: tensor for name, tensor in tensors.items() if name not in of_seeds}, of_seeds


def _encoded(model: nn.Module, owners: Sequence[Owner]) -> tuple[list[tuple[str, bytes]], dict[str, torch.Tensor]]:
    """Return the state of each owner's optimizer as msgpack, by name, and the tensors of all of them."""
    found, tensors = [], dict[str, torch.Tensor]()
    for name, held in owners:
        encoded, more = encode_tree(optimizer_tree(model, held), f"{OF_OWNER}{name}")
        found.append((name, encoded))
        tensors |= more
    return found, tensors


def live_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter and buffer by each of its names, including buffers that state_dict() leaves out."""
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters(remove_duplicate=False)}
    buffers = {name: tensor.detach() for name, tensor in model.named_buffers(remove_duplicate=False)}
    tensors = parameters | buffers
    for name, tensor in tensors.items():
        try:
            check_tensor(tensor)
        except ValueError as error:
            raise NotCapturable(f"model.{name}", str(error)) from error
    return tensors


def transient_buffers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the buffers that state_dict() leaves out."""
    return tuple(
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in modules.transient_names(module)
    )


def model_tree(model: nn.Module) -> dict[str, Any]:
    """Return a model's state besides tensors: frozen parameters, modules in eval mode, extra state of modules."""
    extra = {
        name: module.get_extra_state()
        for name, module in model.named_modules()
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state
    }
    return {
        "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        "in_eval": [name for name, module in model.named_modules() if not module.training],
        "extra": extra,
    }


def buffer_tree(model: nn.Module, built: str) -> dict[str, Any]:
    """Return what distinguishes a model whose buffers changed during training from another model.

    `built` is the hash of the structure that the task created. In the result, `modules` stands for the names of all
    current modules, `held` are the buffers, and `empty` the names of buffers without a tensor.
    """
    names = "\n".join(name for name, _ in model.named_modules(remove_duplicate=False))
    return {
        "built": built,
        "modules": blake3(names.encode()).hexdigest(),
        "held": [name for name, _ in model.named_buffers(remove_duplicate=False)],
        "empty": [
            f"{prefix}.{name}" if prefix else name
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name, buffer in modules.buffers_of(module).items()
            if buffer is None
        ],
    }


def optimizer_tree(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's state_dict, with its kind and the qualified names of its parameters in their order.

    `more` holds entries that a subclass adds to the two that every state_dict has. `attributes` and `wrapped`:
    `checkpoints.attributes`. `shared` names the values of the state that are parameters, in the same memory.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    held = optimizer.state_dict()
    state, shared = without_parameters(held["state"], parameters)
    more = {key: value for key, value in held.items() if key not in ("state", "param_groups")}
    own = attributes_of(optimizer)
    within = {name: optimizer_tree(model, one) for name, one in wrapped_by(optimizer).items()}
    return {
        "kind": type(optimizer).__qualname__,
        "names": [names.get(id(one), "") for one in parameters],
        "state": state,
        "param_groups": list(held["param_groups"]),
        **({"more": more} if more else {}),
        **({"attributes": own} if own else {}),
        **({"wrapped": within} if within else {}),
        **({"shared": shared} if shared else {}),
    }


def check_apart(optimizer: dict[str, torch.Tensor], model: dict[str, torch.Tensor]) -> None:
    """Raise NotCapturable if the optimizer's state shares memory with a parameter or with itself.

    After a restore they would be separate tensors: a change of one would no longer change the other.
    """
    found = overlap(optimizer, model)
    if found is not None:
        one, other = found
        raise NotCapturable(one, f"shares memory with {other}; keep a copy, or keep both in one tensor")


def task_state(task: Any) -> Any:
    """Return the task's own state; None if it has none."""
    state_dict = getattr(task, "state_dict", None)
    return state_dict() if callable(state_dict) else None


def check_capturable(model: nn.Module, owners: Sequence[Owner], task: Any, train: Feed) -> None:
    """Encode everything once before training. Raises SetupRefused with the path of a value that cannot be written."""
    try:
        live_tensors(model)
        encode_tree(model_tree(model), "model")
        for _, optimizer in owners:
            encode_tree(optimizer_tree(model, optimizer), "optimizer")
            _try_a_step(optimizer)
        encode_tree(task_state(task), "task")
        encode_tree(train.state(), "data")
    except NotCapturable as error:
        raise SetupRefused(f"no checkpoint of this run would be possible: {error}") from error


def check_participants(participants: Participants) -> None:
    """Encode the state of each participant of a rollback once before training. Raises SetupRefused as above."""
    for name, state in participants.states().items():
        try:
            encode_tree(state, f"participant {name}")
        except NotCapturable as error:
            raise SetupRefused(f"no checkpoint of this run would be possible: {error}") from error


def _try_a_step(optimizer: torch.optim.Optimizer) -> None:
    """Encode the state of an optimizer of the same class and settings after one step with a parameter of one element.

    Tests cover torch's own classes. Another class may keep anything in its state, which is known only after a step.
    """
    if type(optimizer).__module__.split(".")[0] == "torch":
        return
    probe = torch.nn.Parameter(torch.ones(1, 1))
    probe.grad = torch.zeros(1, 1)
    try:
        options = {
            key: value for key, value in optimizer.param_groups[0].items() if key not in {"params", "param_names"}
        }
        kind: Any = type(optimizer)
        trial = kind([{"params": [probe], **options}])
        trial.step()
    except (TypeError, ValueError, RuntimeError, AssertionError):
        # The constructor takes other arguments. The first checkpoint with a state will show whether it can be written.
        return
    held = encode_tree(without_parameters(trial.state_dict()["state"], [probe])[0], "optimizer")[1]
    check_apart(held, {"its parameter": probe})
