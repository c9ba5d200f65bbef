"""A model that is spread over several processes is refused by name, wherever in it that is."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

from tolariad.trainer.checkpoints.tensors import check_tensor, without_duplicates
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.sharded import refuse_spread
from tolariad.trainer.step.gradients import _device_norm, _host_norm


@pytest.fixture
def mesh():
    """A mesh of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def sharded(mesh, *shape):
    """Return a tensor of random values, of which each process of the mesh has a part."""
    return distribute_tensor(torch.randn(*shape), mesh, [Shard(0)])


def test_a_wrapped_part_of_a_model_is_refused_by_its_name(mesh):
    """The class of the whole model says nothing of it: the part is named, and what to do."""
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))

    with pytest.raises(SetupRefused, match=r"1, a part of the model, is wrapped in DistributedDataParallel.*torchrun"):
        refuse_spread(nn.Sequential(nn.Linear(2, 2), wrapped))


def test_a_model_sharded_by_fsdp_is_refused(mesh):
    """torch gives a module that FSDP2 shards another class; it is found in a submodule."""
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    fully_shard(model[1], mesh=mesh)

    with pytest.raises(SetupRefused, match="1, a part of the model, is wrapped in FSDPModule"):
        refuse_spread(model)


def test_a_sharded_parameter_is_refused_by_its_name(mesh):
    """No class of a module shows it."""
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].weight = nn.Parameter(sharded(mesh, 4, 2))

    with pytest.raises(SetupRefused, match=r"0\.weight is a DTensor"):
        refuse_spread(model)


def test_sharded_tensors_of_one_shape_are_not_taken_for_tied_ones(mesh):
    """A DTensor's own address is 0 for all, so one of two would be lost."""
    one, other = sharded(mesh, 4, 2), sharded(mesh, 4, 2)
    assert isinstance(one, DTensor)
    assert one.data_ptr() == other.data_ptr()

    unique, aliases = without_duplicates({"one": one, "other": other, "tied": one})

    assert list(unique) == ["one", "other"]
    assert aliases == {"tied": "one"}


def test_a_sharded_tensor_and_a_sharded_gradient_are_refused(mesh):
    """A checkpoint would hold a part of it, and the norm would be that of a part."""
    with pytest.raises(ValueError, match="is a DTensor"):
        check_tensor(sharded(mesh, 4, 2))
    for norm in (_host_norm, lambda found: _device_norm(found, torch.device("cpu"))):
        with pytest.raises(SetupRefused, match="a gradient is a DTensor"):
            norm([torch.ones(2), sharded(mesh, 4, 2)])
