"""The state that objects of the user's keep in themselves: found by path, compared, and put back in place."""

from __future__ import annotations

import collections
import itertools
import math
import random
import threading
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.trainer.data.samplers import Plain
from tests.trainer.data.stops import through_a_checkpoint
from tolariad.trainer.data import generators
from tolariad.trainer.data.held import held_by
from tolariad.trainer.data.own_state import OF_ORDER, Limits, OwnState
from tolariad.trainer.data.walk import Place, walk


class Object:
    def __init__(self, **held):
        vars(self).update(held)


def state_of(one, limits=OF_ORDER, **more):
    return OwnState(lambda: [Place("one", one)], limits, **more)


def moved_and_back(make, move):
    """Move an object, take its state, and put it back into another one that is made in the same way."""
    one = make()
    state = state_of(one)
    move(one)
    moved = state.moved()
    other = make()
    state_of(other).restore(through_a_checkpoint(moved))
    return one, other, moved


MOVES = {
    "a number": (lambda: Object(n=1), lambda one: setattr(one, "n", 2)),
    "a text": (lambda: Object(n="a"), lambda one: setattr(one, "n", "b")),
    "a type": (lambda: Object(n=1), lambda one: setattr(one, "n", True)),
    "a scalar of NumPy": (lambda: Object(n=np.float32(1)), lambda one: setattr(one, "n", np.float32(2))),
    "a tuple": (lambda: Object(n=(1, ("a",))), lambda one: setattr(one, "n", (2, ("b",)))),
    "nothing yet": (lambda: Object(n=None), lambda one: setattr(one, "n", [1, 2])),
    "a new attribute": (Object, lambda one: setattr(one, "n", 2)),
    "a list": (lambda: Object(n=[1, [2, 3]]), lambda one: one.n[1].append(4)),
    "numbers": (lambda: Object(n=list(range(100))), lambda one: one.n.reverse()),
    "floats": (lambda: Object(n=[1.0] * 100), lambda one: one.n.__setitem__(3, float("nan"))),
    "large numbers": (lambda: Object(n=[2**70] * 100), lambda one: one.n.pop()),
    "a deque": (lambda: Object(n=collections.deque([1, 2], 2)), lambda one: one.n.append(3)),
    "a dict": (lambda: Object(n={"a": [1], 2: None}), lambda one: one.n["a"].append(5)),
    "a counter": (lambda: Object(n=collections.Counter("ab")), lambda one: one.n.update("a")),
    "a set": (lambda: Object(n={1, 2}), lambda one: one.n.add(3)),
    "bytes": (lambda: Object(n=bytearray(b"ab")), lambda one: one.n.append(3)),
    "an array": (lambda: Object(n=np.zeros(3)), lambda one: one.n.fill(2)),
    "an array of another size": (lambda: Object(n=np.zeros(3)), lambda one: setattr(one, "n", np.ones(4))),
    "a tensor": (lambda: Object(n=torch.zeros(3)), lambda one: one.n.fill_(2)),
    "half precision": (lambda: Object(n=torch.zeros(3, dtype=torch.bfloat16)), lambda one: one.n.fill_(2)),
    "a count": (lambda: Object(n=itertools.count(3, 2)), lambda one: next(one.n)),
    "deeper": (lambda: Object(a=[Object(b={"c": Object(n=1)})]), lambda one: setattr(one.a[0].b["c"], "n", 7)),
}


def plain(value):
    """Return what a value is, for a comparison."""
    if isinstance(value, Object):
        return {name: plain(one) for name, one in vars(value).items()}
    if isinstance(value, (list, tuple, collections.deque)):
        return [type(value), *map(plain, value)]
    if isinstance(value, dict):
        return [type(value), *((key, plain(one)) for key, one in value.items())]
    return type(value), str(value)


@pytest.mark.parametrize("kind", MOVES)
def test_what_moved_comes_back(kind):
    """In another process, which made the same object; and only that is stored."""
    make, move = MOVES[kind]
    one, other, moved = moved_and_back(make, move)
    assert plain(other) == plain(one)
    assert len(moved) == 1
    assert state_of(make()).moved() == {}


@pytest.mark.parametrize("kind", [kind for kind in MOVES if kind not in ("a type", "nothing yet")])
def test_a_rollback_in_one_process_puts_it_back_too(kind):
    """The state as it was built, and one from between."""
    make, move = MOVES[kind]
    one = make()
    state = state_of(one)
    before, built = plain(one), state.moved()
    move(one)
    between, moved = plain(one), state.moved()
    state.restore(built)
    assert plain(one) == before
    state.restore(moved)
    assert plain(one) == between


def test_containers_and_arrays_stay_the_same_objects():
    """A hook that holds them too sees what comes back."""
    held = {"list": [1], "dict": {"a": [1]}, "array": np.zeros(2), "tensor": torch.zeros(2), "rng": random.Random(3)}
    one = Object(**held)
    state = state_of(one)
    moved = state.moved()
    one.list.append(2), one.dict["a"].append(2), one.array.fill(1), one.tensor.fill_(1), one.rng.random()
    inner = one.dict["a"]
    state.restore(moved)
    assert all(vars(one)[name] is value for name, value in held.items())
    assert (held["list"], held["dict"], held["array"].sum(), held["tensor"].sum()) == ([1], {"a": [1]}, 0, 0)
    assert one.dict["a"] is inner
    assert held["rng"].random() == random.Random(3).random()


GENERATORS = {
    "Python": lambda: random.Random(3),
    "torch": lambda: torch.Generator().manual_seed(4),
    "NumPy": lambda: np.random.default_rng(1),
    "legacy": lambda: np.random.RandomState(2),
    "bits": lambda: np.random.PCG64(4),
    **{
        kind.__name__: (lambda kind=kind: np.random.Generator(kind(3)))
        for kind in (np.random.MT19937, np.random.Philox, np.random.SFC64, np.random.PCG64DXSM)
    },
    "legacy over PCG64": lambda: np.random.RandomState(np.random.PCG64(3)),
}


def drawn(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator).tolist()
    return (
        generator.random_raw(3).tolist() if isinstance(generator, np.random.BitGenerator) else [generator.random()] * 3
    )


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_of_any_kind_is_saved_made_again_and_seeded(kind):
    """Always, also if it has not moved: a script may have made it without a seed."""
    generator = GENERATORS[kind]()
    assert generators.is_generator(generator)
    drawn(generator)
    state = through_a_checkpoint(generators.state_of(generator))
    expected = drawn(generator)
    assert drawn(generators.made_of(state)) == expected
    assert generators.restore(generator, state)
    assert drawn(generator) == expected
    seeds = []
    for number in (7, 2**62 + 1, 7):
        generators.seed(generator, number)
        seeds.append(drawn(generator))
    assert seeds[0] == seeds[2] != seeds[1]
    others = [other for other, make in GENERATORS.items() if other != kind and "PCG64" not in other + kind]
    assert not any(generators.restore(GENERATORS[other](), state) for other in others)


def test_a_generator_that_spawned_children_spawns_the_next_ones():
    """Each child has another seed, and only their number says which."""
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    one.spawn(2)
    generators.restore(other, through_a_checkpoint(generators.state_of(one)))
    assert other.spawn(1)[0].random() == one.spawn(1)[0].random()


def test_the_process_wide_generators_and_the_systems_are_none():
    """They are saved elsewhere, or have no state."""
    for one in (torch.default_generator, random._inst, np.random.mtrand._rand, random.SystemRandom(), 5):
        assert not generators.is_generator(one)


@dataclass(slots=True)
class Slotted:
    rng: object
    empty: object


def test_generators_are_found_wherever_a_data_set_holds_them():
    """Attributes, slots, containers, closures, defaults, partial functions, methods, classes, modules."""

    class Private:
        __slots__ = ("__rng",)

        def __init__(self, rng):
            self.__rng = rng

    class OfClass:
        rng = random.Random(1)

        def __call__(self, value):
            return value + MODULE.rng.random() + nested(value)

    rngs = random.Random(2), random.Random(3)

    def nested(value, rng=rngs[0], *, other=rngs[1]):
        return value + rng.random() + other.random()

    inner = random.Random(4)
    held = Object(
        a=[Slotted(random.Random(5), None), {"b": (Private(random.Random(6)),)}],
        b=lambda value: value + inner.random(),
        c=OfClass(),
        d=OfClass().__call__,
        lock=threading.Lock(),
        module=nn.Linear(1, 1),
    )
    held.self = held
    found = {id(one) for one in held_by(held)}
    expected = [OfClass.rng, MODULE.rng, *rngs, inner]
    assert {id(one) for one in expected} < found
    assert len(found) == len(expected) + 2


MODULE = types.ModuleType("a_module_of_the_users")
MODULE.rng = random.Random(8)


def test_a_walk_is_bounded_and_calls_nothing_of_the_users():
    """Long containers are entered at their first entries; properties are not read."""

    class Tempting:
        @property
        def value(self):
            raise AssertionError

        def __getattr__(self, name):
            raise AssertionError(name)

        def __len__(self):
            raise AssertionError

    items = [Object(n=number) for number in range(1000)]
    assert len(list(walk([Place("one", items)]))) < 20
    assert len(list(walk([Place("one", [[Object()] * 50 for _ in range(60)])], limit=30))) == 30
    assert len(list(walk([Place("one", Tempting())]))) > 0
    state_of(Tempting()).moved()


def test_an_object_that_cannot_be_looked_at_is_left_out():
    """A proxy outside of its place raises whatever it is asked; so may a mapping or a value that is compared."""

    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError

        def __getattribute__(self, name):
            raise RuntimeError

    class Rude(dict):
        def __len__(self):
            raise RuntimeError

        def items(self):
            raise RuntimeError

    class Incomparable(float):
        def __eq__(self, other):
            raise RuntimeError

        __hash__ = None

    one = Object(proxy=Proxy(), rude=Rude(a=1), number=Incomparable(2.0), rng=random.Random(3), last=[1])
    state = state_of(one)
    first = one.rng.random()
    one.last.append(2)
    state.restore({})
    assert (one.rng.random(), one.last) == (first, [1])
    assert [one.rng] == list(held_by(one))


def test_what_is_too_large_is_left_as_it_is():
    """And so is what is no plain value."""
    one = Object(list=[1] * 50, array=np.zeros(100), file=None, objects=[Object(n=1)])
    state = state_of(one, Limits(500, 10, 100))
    one.list.append(2), one.array.fill(1), setattr(one, "file", object()), setattr(one.objects[0], "n", 2)
    moved = state.moved()
    assert set(moved) == {"one.file", "one.objects[0].n"}
    state.restore(moved)
    assert len(one.list) == 51


def test_a_long_list_of_entries_that_cannot_change_is_compared_by_them():
    """Such as the paths and labels of a data set: it is restored too, and copied only if it has changed."""
    one = Object(samples=[(f"{number}.png", number % 10) for number in range(5000)], hard=[0.5] * 5000)
    state = state_of(one, Limits(500, 1000, 1 << 16))
    assert state.moved() == {}
    before = list(one.samples)
    one.samples[7], one.hard[9] = ("other.png", 3), 2.5
    moved = state.moved()
    assert set(moved) == {"one.samples", "one.hard"}
    one.samples.reverse(), one.hard.reverse()
    state.restore(moved)
    assert one.samples == [*before[:7], ("other.png", 3), *before[8:]]
    assert one.hard[9] == 2.5
    state.restore({})
    assert one.samples == before
    one.samples.pop()
    assert set(state.moved()) == {"one.samples"}


def test_what_is_too_large_leaves_room_for_what_follows():
    """Whatever it is: lists in a list, a dict, pairs with a list in them."""
    nested = [[number] * 9 for number in range(500)]
    one = Object(nested=nested, named=dict.fromkeys(range(2000), ""), pairs=[("a", [1])] * 600, texts=["a"] * 99)
    state = state_of(one, Limits(500, 900, 1 << 10))
    one.texts.append("b")
    assert set(state.moved()) == {"one.texts"}


@pytest.mark.parametrize(
    "values",
    [
        ([1] * 100, [True] * 100),
        ([1, True] * 50, [True, 1] * 50),
        ([1.0] * 100, [1] * 100),
        ([math.nan, 1] * 50, [math.nan, 2] * 50),
        ([("a", 1)] * 100, [("a", 1.0)] * 100),
        ([[1, 2]] * 100, [[1, True]] * 100),
    ],
)
def test_values_of_other_types_are_others(values):
    """`==` takes 1 for True and for 1.0; a NaN is equal to itself."""
    first, other = values
    one = Object(held=list(first))
    state = state_of(one)
    one.held[:] = [float("nan") if value != value else value for value in first]
    assert state.moved() == {}
    one.held[:] = other
    assert set(state.moved()) == {"one.held"}
    state.restore({})
    assert list(map(repr, one.held)) == list(map(repr, first))


def test_iterators_and_models_are_noted():
    """Nobody can read how far an iterator is, and training moves a model."""
    state = state_of(Object(it=iter([1]), rng=random.Random(1)))
    assert state.iterators == ["one.it"]
    assert not state.holds_model
    assert state_of(Object(a=[nn.Linear(1, 1)])).holds_model


def test_an_object_that_only_says_its_state_is_asked():
    """It has no attribute that can be read."""

    class Opaque:
        __slots__ = ()
        held = [1]  # noqa: RUF012

        def state_dict(self):
            return {"held": list(type(self).held)}

        def load_state_dict(self, state):
            type(self).held[:] = state["held"]

    Opaque.__module__ = "torch"  # as a class of a library's: the walk does not look into it
    one = Object(opaque=Opaque())
    state = state_of(one)
    Opaque.held.append(2)
    moved = state.moved()
    Opaque.held.clear()
    state.restore(moved)
    assert Opaque.held == [1, 2]


def test_a_loader_is_entered_but_not_its_running_epoch():
    """Its sampler and its generator are below it."""
    loader = DataLoader(Plain(), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    paths = [met.path for met in walk([Place("loader", loader)], [id(loader.dataset)])]
    assert "loader.sampler" in paths
    assert "loader.generator" in paths
    assert not any("_iterator" in path or "dataset" in path for path in paths)


def test_entries_of_a_list_and_a_dict_that_were_plain_are_put_back():
    """A cache that is empty when the script builds it holds tensors later."""

    class Cache:
        def __init__(self):
            self.by_key, self.by_index = {}, [None, None]

    first, again = Cache(), Cache()
    saved, restored = (OwnState(lambda one=one: [Place("data", one)], OF_ORDER) for one in (first, again))
    first.by_key["a.[b"], first.by_index[1] = torch.tensor([1.0]), torch.tensor([2.0])
    restored.restore(saved.moved())
    assert (again.by_key["a.[b"].tolist(), again.by_index[0], again.by_index[1].tolist()) == ([1.0], None, [2.0])
