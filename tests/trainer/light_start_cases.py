"""`python -m tests.trainer.light_start_cases SEED COUNT light|torch [USE]`: train drawn cases, print a digest of each.

After them the compiler is used, if there is a fourth argument. A case is an optimizer with drawn options, a dtype,
hooks of every kind, and a closure or none. Parameters are used through views, and hooks write gradients in place.
`light` trains them with the stand-in for the compiler, `torch` with the compiler itself. A case that torch refuses has
the refusal as its digest.
"""

from __future__ import annotations

import hashlib
import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as hooks_of_all

from tests.trainer.light_start_compiler import use_compiler
from tolariad.trainer.torch_private import light_start

KINDS: dict[str, dict[str, list[Any]]] = {
    "SGD": {"momentum": [0.0, 0.9], "nesterov": [False, True], "weight_decay": [0.0, 0.1]},
    "Adam": {"amsgrad": [False, True], "weight_decay": [0.0, 0.1], "fused": [None, True]},
    "AdamW": {"amsgrad": [False, True], "fused": [None, True]},
    "Adagrad": {"lr_decay": [0.0, 0.1]},
    "RMSprop": {"centered": [False, True], "momentum": [0.0, 0.5]},
    "Rprop": {},
    "ASGD": {"weight_decay": [0.0, 0.1]},
    "NAdam": {"decoupled_weight_decay": [False, True]},
    "RAdam": {"weight_decay": [0.0, 0.1]},
    "Adamax": {},
    "Adadelta": {"rho": [0.9, 0.5]},
    "Adafactor": {},
    "LBFGS": {"max_iter": [2]},
    "Muon": {},
}
OF_MOST = {"foreach": [None, False, True], "maximize": [False, True], "differentiable": [False] * 9 + [True]}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
STEPS = 4
# A part of the compiler that is loaded with it.
COMPILER = "torch._dynamo.eval_frame"


class Net(nn.Module):
    """A model with parameters used directly, through views, without dimensions, and twice."""

    def __init__(self, dtype: torch.dtype, *, matrices: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=dtype))
        self.flat = nn.Parameter(torch.randn((3, 4) if matrices else (12,), dtype=dtype))
        self.scale = nn.Parameter(torch.ones((1, 1) if matrices else (), dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs @ self.weight.t() @ self.flat.view(4, 3)
        return (hidden @ self.weight.t() * self.scale.squeeze()).abs().square().mean() + self.scale.squeeze().abs()


def hooks(draw: random.Random, model: Net, optimizer: Any, seen: list[str], until: ExitStack) -> None:
    """Register hooks of every kind; their arguments are part of the digest."""

    def note(name: str) -> Callable[..., None]:
        return lambda *_: seen.append(name)

    def noisy(*_: Any) -> None:
        for one in model.parameters():
            if one.grad is not None:
                one.grad.add_(torch.randn_like(one.grad), alpha=0.01)

    def scaled(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    some: list[Callable[[], Any]] = [
        lambda: optimizer.register_step_pre_hook(noisy),
        lambda: optimizer.register_step_post_hook(note("post")),
        lambda: hooks_of_all.register_optimizer_step_pre_hook(note("global pre")),
        lambda: hooks_of_all.register_optimizer_step_post_hook(note("global post")),
        lambda: model.weight.register_hook(lambda gradient: gradient * 2),
        lambda: model.flat.register_hook(lambda gradient: gradient.mul_(0.5)),
        lambda: model.scale.register_post_accumulate_grad_hook(scaled),
        lambda: optimizer.register_state_dict_post_hook(note("state")),
    ]
    for register in some:
        if draw.random() < 0.4:
            until.callback(register().remove)


def trained(number: int, seed: int) -> str:
    """Return the digest of one case."""
    draw = random.Random(f"{seed} {number}")
    torch.manual_seed(draw.randrange(2**32))
    kind = draw.choice(list(KINDS))
    known = inspect.signature(getattr(torch.optim, kind)).parameters
    options = {
        name: draw.choice(values)
        for name, values in {**KINDS[kind], **OF_MOST}.items()
        if name in known and draw.random() < 0.5
    }
    dtype = draw.choice(DTYPES)
    model = Net(dtype, matrices=kind == "Muon")
    seen: list[str] = []
    ending = "trained"
    with ExitStack() as until:
        try:
            optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **options)
            hooks(draw, model, optimizer, seen, until)
            _train(draw, model, optimizer, dtype, seen, by_closure=kind == "LBFGS" or draw.random() < 0.3)
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            ending = f"{type(error).__name__}: {error}".replace("\n", " ")
    found = hashlib.blake2b("|".join(seen).encode())
    for one in (*model.parameters(), *_state(locals().get("optimizer"))):
        found.update(torch.view_as_real(one.detach()).numpy().tobytes() if one.is_complex() else _bytes(one))
    return f"{kind} {dtype} {options} {found.hexdigest()[:24]} {ending}"


def _train(
    draw: random.Random, model: Net, optimizer: Any, dtype: torch.dtype, seen: list[str], *, by_closure: bool
) -> None:
    set_to_none = draw.random() < 0.5
    for _ in range(STEPS):
        inputs = torch.randn(5, 3).to(dtype)

        def closure(inputs: Tensor = inputs) -> Tensor:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = model(inputs)
            loss.backward()
            return loss.detach()

        if by_closure:
            seen.append(str(optimizer.step(closure)))
        else:
            seen.append(str(closure()))
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, 2, dtype=dtype))]})


def _state(optimizer: Any) -> Iterator[Tensor]:
    for state in optimizer.state.values() if optimizer is not None else ():
        yield from (value for _, value in sorted(state.items()) if isinstance(value, Tensor))


def _bytes(one: Tensor) -> bytes:
    return one.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main(seed: int, count: int, how: str, *use: str) -> None:
    if how == "light":
        light_start.install()
    else:
        __import__("torch._dynamo")
    torch.set_num_threads(1)
    with quiet():
        print("\n".join(trained(number, seed) for number in range(count)))
    assert (COMPILER in sys.modules) == (how == "torch"), "training alone loads no compiler"
    if use:
        use_compiler()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
