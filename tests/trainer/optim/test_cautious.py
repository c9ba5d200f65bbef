"""Cautious AdamW: equal to AdamW without caution, the same bits in both ways of computing, and its options."""

from __future__ import annotations

import copy

import pytest
import torch

from tolariad.trainer.optim import CautiousAdamW, cautious, cautious_chunks

SHAPES = ((3, 5), (70,), (1,), (11, 13), (2, 3, 4, 5))
WAYS = {"together": {"foreach": True}, "chunks": {"foreach": False}, "by shape": {"foreach": None}}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 16 elements and a limit of 64, so that small tensors cover all cases."""
    monkeypatch.setattr(cautious_chunks, "CHUNK", 16)
    monkeypatch.setattr(cautious, "FOREACH_BELOW", 64)


def parameters(seed, shapes=SHAPES, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    # A layout that is not contiguous, as channels_last convolutions have it.
    made[-1] = made[-1].to(memory_format=torch.channels_last) if made[-1].dim() == 4 else made[-1]
    return [torch.nn.Parameter(one) for one in made]


def train(optimizer, seed, steps, start=0):
    """Steps with gradients that depend on seed and step; gradients keep their parameters' layout."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(seed + 1000 * step)
        for p in held:
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
        optimizer.step()
    return held


def everything(optimizer):
    """Return all bits of parameters and state, in order."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.detach() for p in held] + [optimizer.state[p][k] for p in held for k in sorted(optimizer.state[p])]


def same_bits(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("way", list(WAYS))
def test_without_caution_it_is_torchs_adamw_bit_for_bit(way, dtype, seed):
    """Parameters and state after 40 steps, two groups, tensors of every layout."""

    def made(kind, **options):
        ps = parameters(seed, dtype=dtype)
        groups = [{"params": ps[:2], "weight_decay": 0.0}, {"params": ps[2:], "lr": 3e-2, "eps": 1e-4}]
        return kind(groups, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, **options)

    torchs = made(torch.optim.AdamW, foreach=False)
    mine = made(CautiousAdamW, caution=False, **WAYS[way])
    train(torchs, seed, 40)
    train(mine, seed, 40)

    assert same_bits(everything(mine), everything(torchs))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "options", [{}, {"live_mean": True}, {"max_scale": 1.2}, {"cautious_weight_decay": True}, {"mask_eps": 0.9}]
)
def test_all_ways_give_the_same_bits(options, seed):
    """Together, in chunks, by shape: the choice affects only the time."""
    ends = []
    for way in WAYS.values():
        optimizer = CautiousAdamW(parameters(seed), lr=1e-2, **way, **options)
        train(optimizer, seed, 25)
        ends.append(everything(optimizer))

    assert same_bits(ends[0], ends[1])
    assert same_bits(ends[0], ends[2])
    plain = CautiousAdamW(parameters(seed), lr=1e-2, caution=False)
    train(plain, seed, 25)
    assert not same_bits(ends[0], everything(plain))


@pytest.mark.sample(4)
@pytest.mark.parametrize("options", [{}, {"live_mean": True}, {"cautious_weight_decay": True}, {"caution": False}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_tensor_without_dimensions_has_the_same_bits_either_way(dtype, options, seed):
    """Alone and in a list with others; without caution the bits are those of torch's AdamW too."""
    # The default vanishes in half precision, and zero over zero is a NaN whose bits are anybody's.
    eps, ends = (1e-4 if dtype is torch.float16 else 1e-8), []
    for shapes in (((),), ((), (1,), (), (7, 9))):
        kinds = [lambda ps, way=way: CautiousAdamW(ps, lr=1e-2, eps=eps, **way, **options) for way in WAYS.values()]
        if options == {"caution": False}:
            kinds.append(
                lambda ps: torch.optim.AdamW(ps, 1e-2, betas=(0.9, 0.95), eps=eps, weight_decay=0.1, foreach=False)
            )
        for kind in kinds:
            optimizer = kind(parameters(seed, shapes, dtype))
            train(optimizer, seed, 25)
            ends.append(everything(optimizer))
        assert all(same_bits(ends[0], other) for other in ends[1:])
        ends.clear()


@pytest.mark.parametrize("shape", [(15,), (16,), (17,), (33,)])
def test_chunks_end_where_the_tensor_ends(shape, seed, monkeypatch):
    """Lengths around that of a chunk give the same bits as one piece."""
    ends = []
    for chunk in (16, 1000):
        monkeypatch.setattr(cautious_chunks, "CHUNK", chunk)
        optimizer = CautiousAdamW(parameters(seed, (shape,)), foreach=False)
        train(optimizer, seed, 10)
        ends.append(everything(optimizer))

    assert same_bits(*ends)


def test_resumed_at_step_37_it_ends_with_the_same_bits(seed):
    """Saved and loaded into a new optimizer: 80 steps give the same bits as without."""
    whole = CautiousAdamW(parameters(seed), lr=1e-2)
    train(whole, seed, 80)
    first = CautiousAdamW(parameters(seed), lr=1e-2)
    held = train(first, seed, 37)
    saved = copy.deepcopy(first.state_dict())
    second = CautiousAdamW([torch.nn.Parameter(p.detach().clone()) for p in held], lr=1.0)
    second.load_state_dict(saved)
    train(second, seed, 43, start=37)

    assert same_bits(everything(second), everything(whole))
    assert {float(second.state[p]["step"]) for p in second.param_groups[0]["params"]} == {80.0}


def test_its_state_is_adams(seed):
    """A run of torch's AdamW continues under ours without caution, and back, bit for bit."""
    whole = torch.optim.AdamW(parameters(seed), lr=1e-2, foreach=False)
    train(whole, seed, 30)
    first = torch.optim.AdamW(parameters(seed), lr=1e-2, foreach=False)
    held = train(first, seed, 10)
    second = CautiousAdamW(held)
    second.load_state_dict(first.state_dict())
    second.param_groups[0]["caution"] = False
    train(second, seed, 10, start=10)
    third = torch.optim.AdamW(held, foreach=False)
    third.load_state_dict(second.state_dict())
    train(third, seed, 10, start=20)

    assert set(second.state[held[0]]) == {"step", "exp_avg", "exp_avg_sq"}
    assert same_bits(everything(third), everything(whole))


def test_agreement_survives_an_underflowing_product():
    """Products of gradients of 1e-30 are 0 in float32; the step is still Adam's, in both ways."""
    for way in WAYS.values():
        p = torch.nn.Parameter(torch.zeros(100))
        optimizer = CautiousAdamW([p], lr=1.0, eps=0.0, weight_decay=0.0, track_kept_fraction=True, **way)
        p.grad = torch.full((100,), 1e-18)
        p.grad[::2] *= -1.0
        optimizer.step()
        assert optimizer.last_kept_fraction == 1.0
        assert torch.allclose(p.detach(), -p.grad.sign(), rtol=1e-3)


def test_the_kept_fraction_is_the_masks_mean():
    """Momentum from three gradients of 1, then a quarter turned round: three quarters are kept.

    None unless asked for.
    """
    p = torch.nn.Parameter(torch.zeros(400))
    optimizer = CautiousAdamW([p], track_kept_fraction=True)
    assert optimizer.last_kept_fraction is None
    for _ in range(3):
        p.grad = torch.ones(400)
        optimizer.step()
    p.grad[:100] = -1.0
    optimizer.step()

    assert optimizer.last_kept_fraction == 0.75
    optimizer.track_kept_fraction = False
    assert optimizer.last_kept_fraction is None


def test_one_row_of_a_thousand_moves_as_adamw_moves_it_with_the_live_mean():
    """The published normaliser multiplies such a step by 1/mask_eps; the mean over live coordinates by 1, a cap by the
    cap.
    """
    moved = {}
    for name, options in {
        "plain": {"caution": False},
        "published": {},
        "live": {"live_mean": True},
        "capped": {"max_scale": 10.0},
    }.items():
        p = torch.nn.Parameter(torch.zeros(1000, 16))
        optimizer = CautiousAdamW([p], lr=1e-3, weight_decay=0.0, **options)
        p.grad = torch.zeros(1000, 16)
        p.grad[5] = 1.0
        optimizer.step()
        moved[name] = p.detach().abs().max().item()

    ratios = {name: round(distance / moved["plain"], 3) for name, distance in moved.items()}
    assert ratios == {"plain": 1.0, "published": 1000.0, "live": 1.0, "capped": 10.0}


def test_a_pruned_tensor_trains_like_the_smaller_one_with_the_live_mean(seed):
    """With half the coordinates masked out (no gradient, value 0) or absent, the others move alike in float64."""
    generator = torch.Generator().manual_seed(seed)
    keep = torch.randperm(60, generator=generator)[:30]
    start = torch.randn(30, generator=generator, dtype=torch.float64)
    small = torch.nn.Parameter(start.clone())
    large = torch.nn.Parameter(torch.zeros(60, dtype=torch.float64).index_copy(0, keep, start))
    optimizers = [CautiousAdamW([p], lr=1e-2, live_mean=True) for p in (small, large)]
    for _ in range(20):
        small.grad = torch.randn(30, generator=generator, dtype=torch.float64)
        large.grad = torch.zeros(60, dtype=torch.float64).index_copy(0, keep, small.grad)
        for optimizer in optimizers:
            optimizer.step()

    assert (large.detach()[keep] - small.detach()).abs().max().item() < 1e-14
    assert large.detach().count_nonzero().item() == 30


@pytest.mark.parametrize("caution", [True, False])
def test_cautious_decay_shrinks_only_what_the_momentum_agrees_with(caution):
    """Signs of parameter and momentum equal: decayed; opposite, or no momentum: not."""
    p = torch.nn.Parameter(torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]))
    optimizer = CautiousAdamW([p], lr=1e-9, weight_decay=1e8, cautious_weight_decay=True, caution=caution)
    p.grad = torch.tensor([1.0, -1.0, -1.0, 1.0, 0.0])
    optimizer.step()

    assert p.tolist() == pytest.approx([0.9, -0.9, 1.0, -1.0, 1.0], abs=1e-6)


def test_a_closure_gives_its_loss_and_its_gradients(seed):
    """The closure runs with gradients enabled, and its result is returned."""
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = CautiousAdamW([p], lr=0.1, weight_decay=0.0)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert p.tolist() == pytest.approx([0.9] * 3)
    assert optimizer.step() is None


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"maximize": True}, ValueError, "maximize=True; negate the loss"),
        ({"capturable": True}, ValueError, "capturable=True"),
        ({"differentiable": True}, ValueError, "differentiable=True"),
        ({"compiled": True}, ValueError, "compiled=True; leave it out"),
        ({"betas": (0.9, 1.0)}, ValueError, r"betas\[1\] must be at least 0 and below 1, not 1"),
        ({"lr": float("nan")}, ValueError, "lr must be at least 0"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay must be"),
        ({"mask_eps": 0.0}, ValueError, "mask_eps must be above 0"),
        ({"max_scale": 0.5}, ValueError, "max_scale must be at least 1"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(options, error, words):
    """Refused in the constructor, and for a group added later, which is then not added."""
    with pytest.raises(error, match=words):
        CautiousAdamW([torch.nn.Parameter(torch.zeros(2))], **options)
    optimizer = CautiousAdamW([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(error, match=words):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], **options})
    assert len(optimizer.param_groups) == 1


def test_gradients_and_parameters_it_cannot_do_are_refused():
    """Refused: complex parameters in the constructor, sparse gradients in a step, AMSGrad in a loaded state."""
    with pytest.raises(TypeError, match="real floating-point"):
        CautiousAdamW([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    p = torch.nn.Parameter(torch.zeros(4, 2))
    p.grad = torch.zeros(4, 2).to_sparse()
    with pytest.raises(RuntimeError, match="dense gradients"):
        CautiousAdamW([p]).step()
    with pytest.raises(ValueError, match="amsgrad=True"):
        CautiousAdamW([p]).load_state_dict(torch.optim.AdamW([p], amsgrad=True).state_dict())


def test_a_copy_goes_on_like_the_original(seed):
    """A deep copy has separate groups, state and options."""
    optimizer = CautiousAdamW(parameters(seed), track_kept_fraction=True, max_scale=1.5)
    train(optimizer, seed, 5)
    twin = copy.deepcopy(optimizer)
    train(optimizer, seed, 5, start=5)
    train(twin, seed, 5, start=5)

    assert same_bits(everything(optimizer), everything(twin))
    assert twin.last_kept_fraction == optimizer.last_kept_fraction


def test_a_state_from_when_there_was_a_compiled_way_is_loaded(seed):
    """The option changed rounding only: it is dropped, and the run continues."""
    optimizer = CautiousAdamW(parameters(seed))
    train(optimizer, seed, 3)
    state = optimizer.state_dict()
    state["param_groups"][0]["compiled"] = True
    other = CautiousAdamW(parameters(seed))
    other.load_state_dict(state)
    assert "compiled" not in other.param_groups[0]
    train(other, seed, 3)
