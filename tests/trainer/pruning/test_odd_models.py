"""A part of a model that graph or trial cannot handle costs the layers that lead to it, and never the others."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

from tests.trainer.pruning.odd import Odd, example
from tests.trainer.pruning.odd_layers import Half, Quantised
from tests.trainer.pruning.odd_ways import KINDS, Careful
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.trial import trial_of
from tolariad.trainer.pruning.units import removed
from tolariad.trainer.pruning.verify import find_groups, zero

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


def inputs_of(model, seed=0):
    """Return an example in the precision of the model's first layer."""
    return example(seed).to(next(model.parameters()).dtype)


def logits_of(output):
    return getattr(output, "logits", output)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_part_that_cannot_be_handled_is_refused_by_name_and_the_rest_can_go(kind, seed):
    """Each refusal has its reason. Layers after the part are found, and every other layer is found or refused.

    Drawn units of what is found, masked and removed, are the same to a model in its own precision, for other inputs.
    """
    torch.manual_seed(seed)
    model = kind().eval()
    found = find_groups(model, (inputs_of(model),))

    groups, reasons = {one.name for one in found.groups}, dict[str, str]()
    for one in found.refused:
        reasons[one.name] = f"{reasons.get(one.name, '')} {one.why}"
    assert "after" in groups
    assert reasons["out"].strip() == "its channels are outputs of the model"
    for name, why in KINDS[kind].items():
        assert why in reasons[name]
        assert name not in groups
    assert_all_said(model, found)
    with torch.no_grad():
        same_in_own_precision(model, found.groups, inputs_of(model, seed + 1), random.Random(seed))


def assert_all_said(model, found):
    """Every layer that has channels is in a group, or refused by its own name or that of a module around it."""
    refused = {one.name for one in found.refused}
    covered = {one.path.rpartition(".")[0] for group in found.groups for one in group.slices}
    layers = {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear | nn.Conv3d)}
    for name, one in layers.items():
        is_inside = any(name.startswith(f"{each}.") for each in refused)
        assert name in covered | refused or is_inside or not getattr(one, "out_features", 1), name


def same_in_own_precision(model, groups, inputs, draw):
    """Assert that drawn units of all groups, masked and removed, are the same to the model."""
    chosen = {
        one.name: draw.sample(range(one.width), draw.randint(1, one.width - 1)) for one in groups if not one.fixed
    }
    gone = removed(groups, chosen)
    for one in model.modules():
        if hasattr(one, "seen"):
            # Not a part of the model; torch does not copy it.
            one.seen[:] = []
    memo = {id(one.lock): one.lock for one in model.modules() if hasattr(one, "lock")}
    masked, small = (copy.deepcopy(without_computed(model), dict(memo)) for _ in range(2))
    zero(dict(masked.named_parameters()), gone.parameters)
    remove(small, gone)
    one, other = (logits_of(each(inputs.clone())) for each in (masked, small))
    # A sum in another order may be rounded to the next number of 8 bits.
    is_coarse = any(isinstance(each, Half | Quantised) for each in model.modules())
    assert torch.allclose(one, other, rtol=1e-3, atol=5e-2 if is_coarse else 1e-4), (one - other).abs().max()


def without_computed(model):
    for one in model.modules():
        for name, value in list(vars(one).items()):
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                setattr(one, name, value.detach())
    return model


# -- models that are drawn ---------------------------------------------------------------------------------------------


class Chain(nn.Module):
    """Drawn parts one after the other, each between two linear layers: `in0`, part, `in1`, part, ... `out`."""

    def __init__(self, kinds, widths):
        super().__init__()
        self.parts = nn.ModuleList(kind() for kind in kinds)
        sizes = [8, *widths]
        self.enter = nn.ModuleList(nn.Linear(a, 8) for a in sizes[:-1])
        self.leave = nn.ModuleList(nn.Linear(3, b) for b in sizes[1:])
        self.out = nn.Linear(sizes[-1], 3)

    def forward(self, x):
        for enter, part, leave in zip(self.enter, self.parts, self.leave, strict=True):
            hidden = logits_of(part(enter(x)))
            hidden = hidden if hidden.dim() == 3 else hidden[:, None].expand(-1, x.shape[1], -1)
            x = leave(hidden.nan_to_num(0.0, 0.0, 0.0)).relu()
        return self.out(x)


def drawn_models_are_analysed(seed, number):
    """Every layer of a drawn model is found or refused by name, and what is found can go."""
    draw = random.Random(seed)
    kinds = [kind for kind in KINDS if kind().before.weight.dtype is torch.float32]
    for _ in range(number):
        chosen = draw.choices(kinds, k=draw.randint(2, 4))
        print(f"seed {seed}: {[kind.__name__ for kind in chosen]}")
        torch.manual_seed(seed)
        model = Chain(chosen, [draw.randint(5, 20) for _ in chosen]).eval()
        found = find_groups(model, (example(),))

        assert_all_said(model, found)
        assert found.groups
        with torch.no_grad():
            same_in_own_precision(model, found.groups, example(seed + 1), draw)


def test_drawn_models_are_analysed_whatever_they_are_made_of(seed):
    """Up to four odd parts in one model."""
    drawn_models_are_analysed(seed, 4)


@pytest.mark.parametrize(
    "drawn",
    [
        227551804,  # a layer goes with one that is refused, and has no name of its own there
        500083,  # a flip within a part whose middle channels change nothing in the trial
        1122,
        500004,  # three units fit a shape that is written into the model, and one does not
    ],
)
def test_models_that_were_drawn_once_and_were_wrong(drawn):
    """They stay right."""
    drawn_models_are_analysed(drawn, 1)


def test_the_weights_of_a_model_that_accepts_no_others_are_its_own():
    """Random ones are tried first; those of the trial are near the model's."""
    model = Careful()
    trial = trial_of(model, (example(),))
    plain = trial_of(Odd(), (example(),))

    assert (trial.model.before.weight / model.before.weight).sub(1.0).abs().max() <= 0.31
    assert trial.model.before.weight.dtype is torch.float64
    assert plain.model.before.weight.std() > 0.2
