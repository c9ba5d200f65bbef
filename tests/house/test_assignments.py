"""An object's attributes are assigned by its own methods. Others ask for a change by name, by calling one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.tree import ROOT, nodes, python_files

ROOMS = ("tolariad/core/", "tolariad/trainer/")
# Attributes of objects that torch, the standard library or ctypes made. They have no method for it.
FOREIGN = {
    *("grad", "training", "forward", "weight", "param_groups"),  # parameters, modules, optimizers
    *("benchmark", "deterministic", "fail_on_recompile_limit_hit", "recompile_limit"),  # torch's settings
    *("prefetch_factor", "_prefetch_factor", "_iterator", "worker_init_fn", "next_iter_state"),  # a DataLoader
    *("argtypes", "__spec__"),
    *("state", "gauss_next", "__dict__"),  # of generators, and of an object of a class that was made
    *("running_mean", "running_var", "num_batches_tracked", "momentum"),  # a BatchNorm
    *("use_cache",),  # the configuration of a transformers model's copy
    *("trainer",),  # a module of Lightning
    *("value",),  # of multiprocessing: a number that processes share
    *("backward",),  # torch.autograd's function, while steps are profiled
}


def own_to(path: Path) -> set[str]:
    """Return the attributes of the file's private classes: all code that can name those classes is in the file."""
    classes = [node for node in nodes(path) if isinstance(node, ast.ClassDef) and node.name.startswith("_")]
    return {target.attr for one in classes for target in stores(ast.walk(one)) if is_self(target)}


def stores(of: Iterator[ast.AST] | tuple[ast.AST, ...]) -> Iterator[ast.Attribute]:
    """Yield every attribute that is assigned, increased or deleted."""
    return (node for node in of if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load))


def is_self(target: ast.Attribute) -> bool:
    """Return whether a method assigns an attribute of its own object, or of its class."""
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def test_attributes_are_assigned_by_their_own_object() -> None:
    """In core and trainer `x.y = ...` appears with `self`, with a private class of the file, or with a foreign object.

    Otherwise give `x` a method, or pass the value when `x` is made.
    """
    found, seen = [], set()
    for path in python_files("tolariad"):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(ROOMS):
            continue
        own = own_to(path)
        for target in stores(nodes(path)):
            seen.add(target.attr)
            if not is_self(target) and target.attr not in own | FOREIGN:
                found.append(f"{name}:{target.lineno}: {ast.unparse(target)}")
    assert found == []
    assert seen >= FOREIGN, f"no longer assigned: {FOREIGN - seen}"
