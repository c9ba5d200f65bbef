"""Unusual passes: what a forward or backward pass may do besides arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.trainer.odd_models.harness import WIDTH, Batch, Odd, squared_error
from tests.trainer.odd_models.parameters import two_layers


class Straight(torch.autograd.Function):
    """Rounds with a straight-through gradient; its backward pass returns its input tensor."""

    @staticmethod
    def forward(_: Any, inputs: Tensor) -> Tensor:
        return (inputs * 4).round() / 4

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Cubed(torch.autograd.Function):
    """A function with a custom backward pass that writes its input."""

    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        context.save_for_backward(inputs.clone())
        context.mark_dirty(inputs)
        return inputs.pow_(3)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (saved,) = context.saved_tensors
        return gradient * 3 * saved**2


class Through(nn.Module):
    """Two layers with a custom function between them."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self._between = kind.apply

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self._between(self.first(inputs)))


class Checkpointed(nn.Module):
    """The inner part, with its dropout, is computed again in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH))
        self._reentrant = reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, self.first(inputs), use_reentrant=self._reentrant))


class InPlace(nn.Module):
    """Writes its activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).add_(0.1)
        hidden[:, 0] *= 2.0
        hidden.relu_()
        return self.last(hidden)


class Packed(nn.Module):
    """Keeps what the backward pass needs as another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.net = two_layers()

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda one: one.double(), lambda one: one.float()):
            return self.net(inputs)


def hooked(register: str, hook: Any) -> Any:
    """A network whose first weight has that hook, registered by that method."""

    def make() -> nn.Module:
        model = two_layers()
        assert isinstance(model, nn.Sequential)
        getattr(model[0].weight, register)(hook)
        return model

    return make


def halve_in_place(gradient: Tensor) -> None:
    """Writes the gradient that autograd passes on."""
    gradient.mul_(0.5)


def halve_accumulated(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def with_full_hook() -> nn.Module:
    model = two_layers()
    assert isinstance(model, nn.Sequential)
    model[2].register_full_backward_hook(lambda _module, inputs, _outputs: tuple(one * 0.5 for one in inputs))
    model[0].register_forward_hook(lambda _module, _inputs, output: output * 1.5)
    return model


def penalty(model: nn.Module, batch: Batch) -> Tensor:
    """The gradient with respect to the inputs is part of the loss."""
    inputs = batch[0].clone().requires_grad_()
    outputs = model(inputs)
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    return functional.mse_loss(outputs, batch[1]) + (gradient.norm(dim=1) - 1).square().mean()


def penalty_on_weights(model: nn.Module, batch: Batch) -> Tensor:
    """The gradient with respect to the parameters is part of the loss."""
    loss = squared_error(model, batch)
    found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + 0.1 * sum((one.square().sum() for one in found), torch.zeros(()))


def two_passes(model: nn.Module, batch: Batch) -> Tensor:
    """An additional loss has its own backward pass, and the graph is kept for the real one."""
    outputs = model(batch[0])
    (0.1 * outputs.square().mean()).backward(retain_graph=True)
    return functional.mse_loss(outputs, batch[1])


def retained(model: nn.Module, batch: Batch) -> Tensor:
    """Gradients of non-leaf tensors are retained and not used."""
    outputs = model(batch[0])
    outputs.retain_grad()
    return functional.mse_loss(outputs, batch[1])


def inner_step(model: nn.Module, batch: Batch) -> Tensor:
    """The loss after a step within the step, as in meta-learning."""
    named = dict(model.named_parameters())
    loss = squared_error(model, batch)
    found = torch.autograd.grad(loss, list(named.values()), create_graph=True)
    moved = {name: one - 0.1 * step for (name, one), step in zip(named.items(), found, strict=True)}
    return functional.mse_loss(torch.func.functional_call(model, moved, (batch[0],)), batch[1])


def samples_apart(model: nn.Module, batch: Batch) -> Tensor:
    """Every sample separately, with vmap."""
    parameters = dict(model.named_parameters())

    def one(inputs: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(torch.func.functional_call(model, parameters, (inputs,)), target)

    losses: Tensor = torch.func.vmap(one)(*batch)
    return losses.square().mean()


def scripted() -> Any:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 1))
    return torch.jit.script(model)


def traced() -> Any:
    return torch.jit.trace(two_layers(), torch.zeros(4, WIDTH))


class Compiled(nn.Module):
    """A part of the model is compiled by its author."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.net = two_layers()
        self._compiled = torch.compile(self.net.forward, backend=backend)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self._compiled(inputs)
        return found


MODELS = (
    Odd("a function whose backward pass hands on its gradient", lambda: Through(Straight)),
    Odd("a function that writes its input", lambda: Through(Cubed)),
    Odd("checkpointed activations", lambda: Checkpointed(reentrant=False)),
    Odd("checkpointed activations, reentrant", lambda: Checkpointed(reentrant=True)),
    Odd("operations in place", InPlace),
    Odd("saved tensors packed by hooks", Packed),
    Odd("a tensor hook", hooked("register_hook", lambda gradient: gradient * 0.5)),
    Odd("a tensor hook that writes in place", hooked("register_hook", halve_in_place)),
    Odd("a hook after accumulation", hooked("register_post_accumulate_grad_hook", halve_accumulated)),
    Odd("hooks of modules", with_full_hook),
    Odd("a gradient penalty", two_layers, penalty),
    Odd("a penalty on the weights' gradient", two_layers, penalty_on_weights),
    Odd("a graph that is kept for a second pass", two_layers, two_passes),
    Odd("gradients kept of what is no leaf", two_layers, retained),
    Odd("a step within the step", two_layers, inner_step),
    Odd("samples apart under vmap", two_layers, samples_apart),
    Odd("a scripted model", scripted),
    Odd("a traced model", traced),
    Odd("a model compiled by its author", lambda: Compiled("eager")),
    Odd("a model compiled ahead of autograd", lambda: Compiled("aot_eager")),
)
