"""The gradients of one optimizer update: forward and backward pass over its micro-batches, loss and gradient norm.

Promises: loss and gradient norm are transferred from the device together, and no function waits for them before they
are read. The gradients are those of the mean over all micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from tolariad.core import messages as m
from tolariad.trainer.data.feed import to_device
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.sharded import SHARDED, is_sharded
from tolariad.trainer.step.measured import InFlight, Measured, measured
from tolariad.trainer.torch_private import lists

if TYPE_CHECKING:
    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.setup import Setup

_ZERO_GRAD: Final = torch.optim.Optimizer.zero_grad


def forward_backward(setup: Setup, batches: Sequence[Any], step: int = 1) -> Measured | InFlight:
    """Compute the gradients of update `step` over its micro-batches `batches`, as the feed yields them.

    The loss is the mean over the micro-batches with equal weights. Raises SetupRefused if a loss, or the norm returned
    by a task that clips, is not a single number.
    """
    if len(batches) == 1:
        return numbers_of(setup, [_backward(setup, batches[0], 1, step)], step)
    return numbers_of(setup, [_backward(setup, batch, len(batches), step) for batch in batches], step)


def numbers_of(setup: Setup, losses: list[torch.Tensor], step: int) -> Measured | InFlight:
    """Return the mean loss and the norm of the gradients of update `step`.

    `losses` are the detached losses of its micro-batches.
    """
    setup.rates.drop_frozen_gradients()
    if setup.pruner.active:  # safety: masked-gradients-out-of-norm
        setup.pruner.zero_gradients()
    overflow = setup.scaling.unscale([one.optimizer for one in setup.host]) if setup.scaling is not None else None
    device = losses[0].device
    norm = norm_of(setup, device, step)
    if setup.garden.active:
        setup.seed_gradients.tend(norm)
    if device.type != "cpu":
        return _to_host(losses, torch.as_tensor(norm), overflow)
    # 0.0 + x, as a sum begins: a loss of -0.0 is recorded as 0.0 with any number of micro-batches.
    loss = 0.0 + losses[0].item() if len(losses) == 1 else sum([loss.item() for loss in losses]) / len(losses)
    return measured(loss, float(norm), 0.0 if overflow is None else float(overflow))


def norm_of(setup: Setup, device: torch.device, step: int) -> torch.Tensor | float:
    """Return the norm over all gradients: the task's if it clips, else measured every `grad_norm.every` steps.

    -1: not measured.
    """
    if setup.clip is not None:
        if setup.garden.active:
            return _told(setup.garden.hide_gradients(partial(setup.clip, setup.model)))
        return _told(setup.clip(setup.model))
    if (step - 1) % setup.settings.grad_norm.every:
        return m.NOT_MEASURED
    gradients = [
        grad
        for owner in setup.host
        for group in owner.optimizer.param_groups
        for p in group["params"]
        if (grad := p.grad) is not None
    ]
    return _host_norm(gradients) if device.type == "cpu" else _device_norm(gradients, device)


def update(setup: Setup, *, skip: bool) -> None:
    """Make the update from the current gradients, or skip it.

    The loss scale of an fp16 run is updated in both cases.
    """
    if not skip:
        for owner in setup.host:
            owner.optimizer.step()
    if setup.garden.active:
        _update_seeds(setup, skip=skip)
    if setup.pruner.active:  # safety: masks-held-after-update
        setup.pruner.hold()
    if setup.scaling is not None:
        setup.scaling.move_on()


def _update_seeds(setup: Setup, *, skip: bool) -> None:
    """Make the updates of all seeds that learn and whose gradients are finite, or skip them."""
    setup.seed_gradients.settle()
    if not skip:
        for owner in setup.garden.learning():
            owner.optimizer.step()
    setup.garden.hold()


def drop_gradients(owners: Sequence[Owner]) -> None:
    """Call `zero_grad(set_to_none=True)` of every optimizer, or do the same as torch without its profiler range.

    If the optimizer or its class has its own `zero_grad`, or torch's was replaced, that one is called.
    """
    for _, optimizer in owners:
        if "zero_grad" in optimizer.__dict__ or type(optimizer).zero_grad is not _ZERO_GRAD:
            optimizer.zero_grad(set_to_none=True)
            continue
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def has_gradients(owners: Sequence[Owner]) -> bool:
    """Return whether a parameter of an optimizer has a gradient."""
    return any(
        p.grad is not None for owner in owners for group in owner.optimizer.param_groups for p in group["params"]
    )


def _backward(setup: Setup, batch: Any, parts: int, step: int) -> torch.Tensor:
    """Add the share of one micro-batch of `parts` to the gradients. Return its loss, detached from the graph."""
    if setup.moves:
        batch = to_device(batch, setup.device)
    with setup.forward():
        returned = setup.task.loss(setup.model, batch)
    if isinstance(returned, dict):
        setup.metrics.log(returned, parts, but="loss")
        returned = returned["loss"] if "loss" in returned else refuse_without_loss(returned)
    loss = scalar(returned)
    if setup.garden.active and (auxiliary := setup.seed_gradients.auxiliary) is not None and loss.requires_grad:
        setup.metrics.log(auxiliary.add_gradients(setup.model, loss, batch, parts, step), parts)
        return _kept(loss, parts)
    return add_gradients(setup, loss, parts, "the loss that loss(model, batch) returns")


def add_gradients(setup: Setup, loss: torch.Tensor, parts: float, what: str) -> torch.Tensor:
    """Add the share of the loss of one micro-batch of `parts` to the gradients. Return it detached from the graph.

    Raises SetupRefused, which begins with `what`, if the loss has no graph.
    """
    backward(setup, loss if parts == 1 else loss / parts, what)
    return _kept(loss, parts)


def _kept(loss: torch.Tensor, parts: float) -> torch.Tensor:
    """Return a loss without its graph, as it will still be after the next forward pass."""
    # A replayed CUDA graph writes each result to the same memory.
    return loss.detach() if parts == 1 or loss.is_cpu else loss.detach().clone()


def backward(setup: Setup, loss: torch.Tensor, what: str, *, retain_graph: bool = False) -> None:
    """Add the gradients of a loss. Raises SetupRefused, which begins with `what`, if the loss has no graph."""
    try:
        if setup.scaling is not None:
            setup.scaling.backward(loss, retain_graph=retain_graph)
        else:
            loss.backward(retain_graph=retain_graph)
    except RuntimeError as error:
        if loss.requires_grad:
            raise
        raise SetupRefused(
            f"{what} has no gradient. Give it as it was computed: not `loss.detach()`, not a new tensor of its value, "
            "not computed under `torch.no_grad()`, and not from frozen parameters alone"
        ) from error


def scalar(loss: Any, where: str = "loss(model, batch) must return") -> torch.Tensor:
    """Return a loss as a 0-dim tensor. Raises SetupRefused, which begins with `where`, if it is no single number."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise SetupRefused(f"{where} a tensor with one element, not {found}")
    return loss if loss.dim() == 0 else loss.reshape(())


def refuse_without_loss(returned: dict[Any, Any]) -> NoReturn:
    """Raise SetupRefused, with the names that the task returned."""
    raise SetupRefused(
        f"loss(model, batch) returns a dict without `loss`; it has {', '.join(map(str, returned)) or 'no key'}. Give "
        "the value to minimise the name `loss`"
    )


def _told(norm: Any) -> torch.Tensor:
    """Return the norm that the task returned. Raises SetupRefused if it is no number: a spike would go unnoticed."""
    try:
        value = torch.as_tensor(norm)
    except (TypeError, ValueError, RuntimeError):
        value = None
    if value is None or value.numel() != 1 or value.is_complex():
        raise SetupRefused(
            "clip_gradients(model) must return the norm over all gradients before clipping, as clip_grad_norm_ does, "
            f"not {type(norm).__name__ if value is None else f'a {value.dtype} of shape {tuple(value.shape)}'}"
        )
    return value


def _host_norm(gradients: Iterable[torch.Tensor]) -> float:
    """Return the 2-norm over all gradients. On the CPU, one call for each tensor and a sum in Python is fastest."""
    total = 0.0
    norm_of, plain = torch.linalg.vector_norm, torch.Tensor
    for gradient in gradients:
        if type(gradient) is not plain:
            _refuse_sharded(gradient)
        norm = norm_of(_dense(gradient) if gradient.is_sparse else gradient).item()
        total += norm * norm
    return math.sqrt(total)


def _refuse_sharded(gradient: torch.Tensor) -> None:
    """Raise SetupRefused for a gradient of which this process holds a part: its norm would be that of the part."""
    if is_sharded(gradient):
        raise SetupRefused(f"a gradient {SHARDED}")


def _device_norm(gradients: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the same on a device, without waiting for it."""
    if not gradients:
        return torch.zeros((), device=device)
    for gradient in gradients:
        if type(gradient) is not torch.Tensor:
            _refuse_sharded(gradient)
    norms = lists.norm([_dense(gradient) for gradient in gradients])
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device, torch.float32) for norm in norms]))
    return total


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _to_host(losses: list[torch.Tensor], norm: torch.Tensor, overflow: torch.Tensor | None) -> Measured | InFlight:
    """Return the mean loss, the norm and whether gradients overflowed, in one transfer."""
    loss = torch.stack([loss.double() for loss in losses]).mean()
    found = (norm,) if overflow is None else (norm, overflow)
    values = torch.stack([loss, *(beside(loss, one) for one in found)])
    return InFlight(values) if values.device.type == "cuda" else measured(*values.tolist())


def beside(loss: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a number as float64 on the device of `loss`, 0-dim and float64 itself, without waiting for the device."""
    # Fill a number of the host in on the device: copying it there could wait.
    here = value.device.type == "cpu"
    return torch.full_like(loss, float(value)) if here else value.detach().reshape(()).to(loss.device).double()
