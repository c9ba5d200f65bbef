"""The random generators of Python, NumPy and torch: read their state, restore it, seed them.

Promises: a state is plain data that a checkpoint can hold. Restoring it changes the generator in place, so everybody
who holds it sees the same stream. `random.SystemRandom` has no state, so it is no generator here.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any, Final, TypeAlias

import numpy as np
import torch

Generator: TypeAlias = "random.Random | torch.Generator | np.random.Generator | np.random.RandomState"
_KINDS: Final = (random.Random, torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
# The process-wide ones are seeded by themselves. torch's, as an object, is another one at each access.
_GLOBAL: Final = (id(random._inst), id(np.random.mtrand._rand))  # noqa: SLF001


def is_generator(value: Any) -> bool:
    """Return whether this is a generator of its own, with a state."""
    if not isinstance(value, _KINDS) or isinstance(value, random.SystemRandom) or id(value) in _GLOBAL:
        return False
    return not (isinstance(value, torch.Generator) and value is torch.default_generator)


def state_of(generator: Any) -> tuple[Any, ...]:
    """Return the state as plain data. The first two entries name the kind of the generator."""
    if isinstance(generator, random.Random):
        version, internal, gauss = generator.getstate()
        return "python", str(version), np.array(internal, dtype=np.uint32), gauss
    if isinstance(generator, torch.Generator):
        return "torch", str(generator.device), generator.get_state().numpy().copy()
    if isinstance(generator, np.random.RandomState):
        held: Any = generator.get_state(legacy=False)
        return "legacy", held["bit_generator"], held
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    kind = "numpy" if isinstance(generator, np.random.Generator) else "bits"
    return kind, type(bits).__name__, bits.state, _spawned(bits)


def restore(generator: Any, state: tuple[Any, ...]) -> bool:
    """Restore a state in place. Return False, and change nothing, if it is of another kind."""
    if state_of(generator)[:2] != state[:2]:
        return False
    match state:
        case "python", version, internal, gauss:
            generator.setstate((int(version), tuple(internal.tolist()), gauss))
        case "torch", _, held:
            generator.set_state(torch.from_numpy(held.copy()))
        case "legacy", _, held:
            generator.set_state(held)
        case _, _, held, spawned:
            bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
            bits.state = held
            if (missing := spawned - _spawned(bits)) > 0:
                seeds: Any = bits.seed_seq
                seeds.spawn(missing)
    return True


def made_of(state: tuple[Any, ...]) -> Any:
    """Return a new generator with this state."""
    match state[0]:
        case "python":
            made: Any = random.Random(0)  # noqa: S311 - a state of the user's follows
        case "torch":
            made = torch.Generator(state[1])
        case "legacy":
            made = np.random.RandomState(getattr(np.random, state[1])(0))
        case kind:
            bits = getattr(np.random, state[1])(0)
            made = np.random.Generator(bits) if kind == "numpy" else bits
    restore(made, state)
    return made


def _spawned(bits: Any) -> int:
    """Return how many children a generator has had: each gets another seed."""
    return getattr(getattr(bits, "seed_seq", None), "n_children_spawned", 0)


def seed(generator: Any, number: int) -> None:
    """Seed a generator with 63 bits. The state of PCG64 is set directly: a new one costs three times as much."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(number)
    elif isinstance(generator, random.Random):
        generator.seed(number)
    elif isinstance(generator, np.random.RandomState):
        _seed_legacy(generator, number)
    else:
        bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
        bits.state = _pcg64(number) if type(bits) is np.random.PCG64 else type(bits)(number).state


def _seed_legacy(generator: np.random.RandomState, number: int) -> None:
    held: Any = generator.get_state(legacy=False)
    if held["bit_generator"] == "MT19937":
        generator.seed(number & 0xFFFF_FFFF)
    else:
        bits = getattr(np.random, held["bit_generator"])(number)
        generator.set_state({**held, **bits.state, "has_gauss": 0, "gauss": 0.0})


def _pcg64(number: int) -> dict[str, Any]:
    drawn = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=32).digest()
    return {
        "bit_generator": "PCG64",
        # Any odd increment is a stream of its own.
        "state": {"state": int.from_bytes(drawn[:16], "little"), "inc": int.from_bytes(drawn[16:], "little") | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
