"""Slots on a GPU: the host is untouched there too, and nothing waits for the device. Skipped without a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.seeds.hosts import HOSTS, Shifting, assert_same_host, backward, grown, pair
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.seeds import find_blueprint, sanity

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
SPECIAL = [-0.0, 0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1e-40, 3.0]


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("kind", list(HOSTS))
def test_the_host_is_untouched_on_a_gpu(kind, drop):
    """Output, gradients, buffers and draws of both generators."""
    plain, other, slot, x = pair(kind, Stage.TRAINING, Shifting(drop))
    plain, other, x = plain.cuda(), other.cuda(), x.cuda()
    deterministic = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        found = [(backward(model, x), torch.get_rng_state(), torch.cuda.get_rng_state()) for model in (plain, other)]
    finally:
        torch.backends.cudnn.deterministic = deterministic

    assert all(same_bits(one, two) for one, two in zip(*found, strict=True))
    assert_same_host(plain, other)
    assert slot.alpha.is_cuda
    assert slot.seed.scale.grad is not None


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_both_ends_are_exact_on_a_gpu(alpha):
    """Bit for bit, with numbers that are not finite."""
    slot = grown(Stage.BLENDING).cuda()
    slot.set_alpha(alpha)
    h = torch.tensor(SPECIAL, device="cuda")

    assert same_bits(slot(h).detach(), slot.seed(h).detach() if alpha else h)


def test_no_stage_waits_for_the_device():
    """torch's sync guard raises at every wait: changes of stage and alpha, forward and backward passes."""
    slot = grown(Stage.TRAINING).cuda()
    h = torch.randn(4, 6, device="cuda", requires_grad=True)
    slot(h).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for stage in (Stage.GERMINATED, Stage.BLENDING, Stage.SHADOWING):
            slot.enter(stage)
            if stage is Stage.BLENDING:
                slot.set_alpha(0.5)
            slot(h).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert slot.alpha_value == 1.0


@pytest.mark.parametrize("name", ["bottleneck", "conv", "low_rank"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_new_seed_returns_every_bit_on_a_gpu(name, dtype):
    """Built there, and the identity there."""
    torch.manual_seed(2)
    example = torch.zeros(2, 6, 5, 5, dtype=dtype, device="cuda")
    seed = find_blueprint(name).build(example)
    assert sanity(seed, example) == ""
    for h in (torch.randn_like(example), torch.full_like(example, -0.0), -torch.rand_like(example)):
        assert same_bits(seed(h).detach(), h)
