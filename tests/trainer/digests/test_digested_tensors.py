"""Every tensor of a run is digested where it is at that moment, whatever became of the model and its optimizers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import xxhash
from torch import nn

from tolariad.trainer.checkpoints.tensors import raw_bytes
from tolariad.trainer.step.parameter_digest import digesting, tensors_of


class Marked(torch.Tensor):
    """A tensor of a program's own class."""


def trained(steps=1):
    """A model with a buffer, its optimizer, and an average of its parameters."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    setup = SimpleNamespace(model=model, average=None)
    setup.owners = [SimpleNamespace(name="host", optimizer=torch.optim.AdamW(model.parameters(), amsgrad=True))]
    for _ in range(steps):
        step(setup)
    return setup


def step(setup):
    setup.model(torch.randn(5, 4, dtype=next(setup.model.parameters()).dtype)).sum().backward()
    for owner in setup.owners:
        owner.optimizer.step()
        owner.optimizer.zero_grad()


def plainly(setup):
    """Every dense tensor of the run by name, as slowly as it is simple: each digest is of a copy of its values."""
    found = dict(setup.model.named_parameters())
    names = {id(parameter): name for name, parameter in found.items()}
    found |= dict(setup.model.named_buffers())
    for owner in setup.owners:
        of = f" ({owner.name})" if len(setup.owners) > 1 else ""
        for group in owner.optimizer.param_groups:
            for one in group["params"]:
                state = owner.optimizer.state.get(one, {})
                found |= {f"{key} of {names.get(id(one), '?')}{of}": state[key] for key in sorted(state, key=str)}
    if setup.average is not None:
        found |= {f"average of {name}": tensor for name, tensor in setup.average.tensors.items()}
    dense = {
        name: one.detach()
        for name, one in found.items()
        if isinstance(one, torch.Tensor) and one.layout is torch.strided and not one.is_quantized and not one.is_meta
    }
    first = {}
    for name, one in dense.items():
        first.setdefault((one.data_ptr(), one.shape, one.stride(), one.dtype) if one.numel() else name, name)
    return {name: xxhash.xxh3_64_intdigest(raw_bytes(dense[name].clone())) for name in first.values()}


def digested(setup):
    found = digesting(tensors_of(setup)).read()
    return dict(zip(found.names, found.tensors, strict=True))


def replace_a_parameter(setup):
    setup.model[0].weight = nn.Parameter(torch.randn(6, 4))


def give_a_parameter_other_memory(setup):
    setup.model[0].weight.data = torch.randn(6, 4)


def replace_a_layer(setup):
    setup.model[2] = nn.Linear(6, 2)
    setup.owners[0].optimizer.add_param_group({"params": list(setup.model[2].parameters())})


def add_a_layer(setup):
    setup.model.append(nn.Linear(3, 3))


def remove_a_layer(setup):
    del setup.model[1]


def change_the_type(setup):
    setup.model.double()


def make_it_complex(setup):
    setup.model.register_buffer("turned", torch.randn(3, dtype=torch.complex64).conj())


def use_half_numbers(setup):
    setup.model.register_buffer("halves", torch.randn(7).bfloat16())


def tie_two(setup):
    setup.model.append(nn.Linear(4, 6))
    setup.model[3].weight = setup.model[0].weight


def share_memory(setup):
    setup.model.register_buffer("shared", setup.model[0].weight.detach())


def lay_out_otherwise(setup):
    setup.model[0].weight.data = torch.randn(4, 6).t()


def view_a_negative(setup):
    setup.model.register_buffer("negative", torch.randn(3, dtype=torch.complex64).conj().imag)


def begin_anew(setup):
    setup.owners[0].optimizer.state.clear()


def restore_in_another_order(setup):
    state = setup.owners[0].optimizer.state
    turned = dict(reversed(state.items()))
    state.clear()
    state.update(turned)


def load_a_state(setup):
    optimizer = setup.owners[0].optimizer
    optimizer.load_state_dict(optimizer.state_dict())


def keep_other_things(setup):
    state = next(iter(setup.owners[0].optimizer.state.values()))
    state |= {"count": 3, "history": [torch.ones(2)], 7: torch.arange(3), "empty": torch.empty(0)}


def drop_a_buffer(setup):
    setup.model[1].running_mean = None


def add_odd_buffers(setup):
    model = setup.model
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.register_buffer("nothing", torch.empty(3, device="meta"))
    model.register_buffer("counted", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))
    model.register_buffer("kept", torch.tensor(5), persistent=False)
    model.register_buffer("marked", torch.randn(4).as_subclass(Marked))


def add_an_optimizer(setup):
    seed = nn.Linear(2, 2)
    setup.model.append(seed)
    setup.owners.append(SimpleNamespace(name="seed", optimizer=torch.optim.SGD(seed.parameters(), momentum=0.9, lr=1)))


def average_the_parameters(setup):
    tensors = {name: one.detach().clone() for name, one in setup.model.named_parameters()}
    setup.average = SimpleNamespace(tensors=tensors)


CHANGES = [
    replace_a_parameter,
    give_a_parameter_other_memory,
    replace_a_layer,
    add_a_layer,
    remove_a_layer,
    change_the_type,
    make_it_complex,
    use_half_numbers,
    tie_two,
    share_memory,
    lay_out_otherwise,
    view_a_negative,
    begin_anew,
    restore_in_another_order,
    load_a_state,
    keep_other_things,
    drop_a_buffer,
    add_odd_buffers,
    add_an_optimizer,
    average_the_parameters,
]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_what_is_digested_is_what_the_run_holds(change):
    """Before the change and after it: the names, their order, and the values."""
    setup = trained()
    before = digested(setup)
    assert before == plainly(setup)
    change(setup)
    after = digested(setup)
    assert list(after.items()) == list(plainly(setup).items())
    unchanged = change in (restore_in_another_order, load_a_state, share_memory)
    assert (list(after.items()) == list(before.items())) == unchanged


def test_the_optimizers_tensors_appear_with_the_first_step():
    """And those of the model are there before it."""
    setup = trained(steps=0)
    assert digested(setup) == plainly(setup)
    count = len(digested(setup))
    step(setup)
    assert digested(setup) == plainly(setup)
    assert len(digested(setup)) == count + 4 * len(list(setup.model.parameters()))


def test_one_bit_of_any_tensor_changes_its_digest_and_no_other():
    """Each is read where the step reads it, and not a copy of it."""
    setup = trained()
    whole = {name: one for name, one in tensors_of(setup).items() if one.numel()}
    before = digested(setup)
    for name, tensor in whole.items():
        raw = tensor.reshape(-1).view(torch.uint8)
        raw[0] ^= 1
        assert {one for one, value in digested(setup).items() if value != before[one]} == {name}
        raw[0] ^= 1
    assert digested(setup) == before
