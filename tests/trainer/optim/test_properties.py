"""For any shapes, dtypes and optimizer: unchanged parts are equal bit for bit."""

from __future__ import annotations

import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.trainer.optim.surgery import OPTIMIZERS, carried
from tolariad.trainer.optim.transform import Kind, kinds_of

SIZES = st.integers(1, 1000)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


@st.composite
def shapes(draw):
    """One to three dimensions of up to 1 000, and at most 20 000 elements."""
    shape: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        left = 20_000 // max(1, torch.Size(shape).numel())
        shape.append(draw(st.integers(1, max(1, min(1000, left)))))
    return tuple(shape)


# The corners of the promise, which forty draws may miss.
@example(grown=(1000, 20), kept=(1000,), growth=[100, 100, 0], dtype=torch.float32, name="adam", steps=2)
@example(grown=(1000,), kept=(1, 1), growth=[1, 0, 0], dtype=torch.float64, name="rmsprop", steps=2)
@example(grown=(1,), kept=(1,), growth=[100, 0, 0], dtype=torch.bfloat16, name="cautious", steps=1)
@settings(max_examples=40)
@given(
    grown=shapes(),
    kept=shapes(),
    growth=st.lists(st.integers(0, 100), min_size=3, max_size=3),
    dtype=DTYPES,
    name=st.sampled_from(list(OPTIMIZERS)),
    steps=st.integers(0, 2),
)
def test_growth_keeps_identities_and_old_blocks_bit_for_bit(grown, kept, growth, dtype, name, steps):
    """One parameter grows by up to 100 along any dimensions at once, one stays. The state of the one that stays, and of
    the old units, has equal bits. New units have first moments of 0 and second moments no larger than the largest old
    one. Scalars stay scalars.
    """
    larger = tuple(size + more for size, more in zip(grown, growth, strict=False))
    if torch.Size(larger).numel() > 200_000:
        larger = (larger[0], *grown[1:])
    old = nn.ParameterList([torch.ones(grown, dtype=dtype), torch.ones(kept, dtype=dtype)])
    new = nn.ParameterList([torch.ones(larger, dtype=dtype), torch.ones(kept, dtype=dtype)])
    optimizer = OPTIMIZERS[name](list(old.parameters()))
    generator = torch.Generator().manual_seed(len(larger) + larger[0])
    for _ in range(steps):
        for p in old:
            p.grad = torch.randn(p.shape, generator=generator).to(dtype)
        optimizer.step()
    # In float16 an optimizer soon holds infinities of its own; those are refused, as a test of their own says.
    held = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assume(all(torch.isfinite(value).all() for value in held))

    moved = carried(optimizer, new, old)

    assert type(moved) is type(optimizer)
    kinds = kinds_of(optimizer)
    block = tuple(slice(0, size) for size in grown)
    for before, after in zip(old, new, strict=True):
        assert set(moved.state.get(after, {})) == set(optimizer.state.get(before, {}))
        for key, value in moved.state.get(after, {}).items():
            was = optimizer.state[before][key]
            if key not in kinds or was is None:
                assert value is was or torch.equal(value, was)
                continue
            assert value.shape == after.shape
            assert value.dtype == was.dtype
            assert value.data_ptr() != was.data_ptr()
            if after.shape == before.shape:
                assert torch.equal(value, was)
                continue
            assert torch.equal(value[block], was)
            rest = value.clone()
            rest[block] = 0
            limit = was.abs().max().item() * 1.01 if kinds[key] is Kind.SECOND else 0.0
            assert rest.abs().max().item() <= limit
