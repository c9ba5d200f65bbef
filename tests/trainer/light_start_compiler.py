"""Use the compiler after training began without it, and print everything that a task could notice."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import torch

graphs: list[Any] = []


def counting(graph: Any, _inputs: Any) -> Any:
    graphs.append(graph)
    return graph.forward


def counted(function: Any, *arguments: Any) -> str:
    """Return the result of the compiled function and its number of graphs."""
    graphs.clear()
    found = torch.compile(function, backend=counting)(*arguments)
    return f"{found} of {len(graphs)} graphs"


def use_compiler() -> None:
    """Print the same with and without the stand-in."""
    import torch._dynamo as held

    held_break = held.graph_break
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("found", importlib.util.find_spec("torch._dynamo").origin)  # type: ignore[union-attr]
    utils, rules = held.utils, held.trace_rules
    print("parts", utils.get_optimize_ddp_mode(), rules.clear_lru_cache())

    @torch.compiler.disable
    def left_alone(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def around(x: torch.Tensor) -> torch.Tensor:
        return left_alone(x + 1) - 3

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        held_break()
        return x * 2

    def stepping(x: torch.Tensor) -> torch.Tensor:
        loss = (parameter * x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach() + x

    import torch._dynamo.config as limits

    one = [limits is other for other in (torch._dynamo.config, held.config, torch._dynamo.eval_frame.config)]
    print("one configuration", one, limits is sys.modules["torch._dynamo.config"], limits.__spec__.name)
    print("around", counted(around, torch.ones(2)))
    print("broken", counted(broken, torch.ones(2)))
    print("stepping", [counted(stepping, torch.full((2,), float(number))) for number in range(3)])
    print("weights", parameter.tolist())
    held.config.recompile_limit = 3
    print(
        "limit", torch._dynamo.config.recompile_limit, "names", "reset" in dir(held), held.reset is torch._dynamo.reset
    )
    print(
        "functions",
        utils.get_optimize_ddp_mode is torch._dynamo.utils.get_optimize_ddp_mode,
        rules.clear_lru_cache is torch._dynamo.trace_rules.clear_lru_cache,
        utils.counters is torch._dynamo.utils.counters,
    )
    held.reset()
