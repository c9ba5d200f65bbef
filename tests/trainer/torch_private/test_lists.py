"""Operations on many tensors at once give the bits of a call for each, in both ways."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.torch_private.ways import module
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.optim.cautious import CautiousAdamW
from tolariad.trainer.torch_private import lists

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,)]
# The further arguments of each operation: lists of tensors, numbers, lists of numbers.
ARGUMENTS = {
    "add_": [(0.3,), ("numbers",), ("tensors",)],
    "addcdiv_": [("tensors", "tensors", -0.01), ("tensors", "tensors", "numbers")],
    "addcmul_": [("tensors", "tensors", 0.7)],
    "copy_": [("tensors",)],
    "div_": [(1.7,), ("numbers",)],
    "lerp_": [("tensors", 0.1)],
    "mul_": [(0.9,), ("tensors",), ("numbers",)],
    "norm": [(), (2,)],
    "sqrt": [()],
}


def drawn(dtype):
    return [torch.randn(shape, dtype=dtype).abs() + 0.1 for shape in SHAPES]


def test_every_operation_has_arguments_here():
    """None is left out of the comparison."""
    assert ARGUMENTS.keys() == lists.EACH.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", lists.EACH)
def test_both_ways_give_the_same_bits(name, dtype, seed):
    """Tensors of every shape, empty and without dimensions too; the list is changed in place, or a new one returned."""
    private, public = (getattr(module("lists", way), name) for way in ("private", "public"))
    assert private is getattr(torch, f"_foreach_{name}")
    torch.manual_seed(seed)
    for kinds in ARGUMENTS[name]:
        given = [
            drawn(dtype) if kind == "tensors" else [0.1 * n for n in range(1, 7)] if kind == "numbers" else kind
            for kind in kinds
        ]
        mine, theirs = (drawn(dtype),) * 2
        theirs = [one.clone() for one in mine]
        found = private(mine, *given), public(theirs, *given)
        assert all(map(same_bits, mine, theirs)), kinds
        if not name.endswith("_"):
            assert all(map(same_bits, *found)), kinds


def test_copies_from_another_dtype_and_norms_in_another(seed):
    """The two options that callers use."""
    torch.manual_seed(seed)
    halves = [torch.randn(5).half(), torch.randn(2, 2).half()]
    for way in ("private", "public"):
        of_way = module("lists", way)
        targets = [torch.empty(5), torch.empty(2, 2)]
        of_way.copy_(targets, halves, non_blocking=True)
        assert all(torch.equal(target, half.float()) for target, half in zip(targets, halves, strict=True))
        norms = of_way.norm(halves, 2, torch.float32)
        assert [norm.dtype for norm in norms] == [torch.float32] * 2
        assert torch.allclose(norms[0], halves[0].float().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_written_with_them_makes_the_same_updates(dtype, seed, monkeypatch):
    """The optimizer of this package, over tensors of several shapes, also in half precision."""
    ends = []
    for way in ("private", "public"):
        of_way = module("lists", way)
        for name in lists.EACH:
            monkeypatch.setattr(lists, name, getattr(of_way, name))
        torch.manual_seed(seed)
        parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES if shape != (0,)]
        optimizer = CautiousAdamW(parameters, lr=0.01, weight_decay=0.1, foreach=True)
        for _ in range(3):
            for one in parameters:
                one.grad = torch.randn(one.shape).to(dtype)
            optimizer.step()
        ends.append(parameters)
    assert all(same_bits(one.detach(), other.detach()) for one, other in zip(*ends, strict=True))
