"""Two runs whose records are the same part at the first step after which a tensor is another one."""

from __future__ import annotations

import os
import random

import msgspec
import pytest

from journal import Reader
from tests.forensics.differences.written import events_of_a_run, with_step, write
from tolariad.core import messages as m
from tolariad.forensics.differences import digests
from tolariad.forensics.differences.runs import Verdict, compare_runs

NAMES = ("first.weight", "exp_avg of first.weight")


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """The events of a run of 60 steps, with digests after every second one."""
    made = []
    for one in events_of_a_run(tmp_path_factory.mktemp("run") / "journal", steps=60):
        made.append(one)
        if isinstance(one, m.StepCompleted) and one.step % 2 == 0:
            made.append(digest(one.step, (one.step, one.step + 1000), NAMES if one.step % 20 == 0 else ()))
    return made


def digest(step, tensors, names=(), method=m.DigestMethod.XXH3):
    return m.ParametersDigested(step=step, digest=7, tensors=tensors, names=names, method=method, skippable=True)


def flipped(events, steps, **values):
    """Return the events in which the second tensor after these steps is another one."""

    def other(one):
        if not isinstance(one, m.ParametersDigested) or one.step not in steps:
            return one
        return msgspec.structs.replace(one, **{"tensors": (one.tensors[0], 1), **values})

    return list(map(other, events))


@pytest.fixture
def compare(tmp_path):
    """Write two journals and compare them."""

    def compared(one, other):
        folders = write(tmp_path / "a", one), write(tmp_path / "b", other)
        with Reader(folders[0]) as a, Reader(folders[1]) as b:
            return compare_runs(a, b)

    return compared


@pytest.mark.parametrize("window", [8, 2048])
def test_a_flipped_bit_without_a_trace_in_the_losses_is_named(events, compare, monkeypatch, window):
    """Every record is the same. From a random step on the tensor differs."""
    monkeypatch.setattr(digests, "_WINDOW", window)
    monkeypatch.setattr(digests, "_BESIDE", window // 2)
    seed = int(os.environ.get("TOLARIA_SEED", random.randrange(1 << 30)))
    print(f"TOLARIA_SEED={seed}")
    first = 2 * random.Random(seed).randrange(1, 31)
    found = compare(events, flipped(events, range(first, 61)))

    assert found.verdict is Verdict.VALUE
    assert (found.first.place, found.first.field) == (("ParametersDigested", 0, first), f"digest of {NAMES[1]}")
    assert (found.first.a, found.first.b) == (f"{first + 1000:016x}", f"{1:016x}")


def test_the_tensor_is_named_before_the_loss_that_it_leads_to(events, compare):
    """The parameter differs after step 20, the loss at step 31."""
    found = compare(events, with_step(flipped(events, range(20, 61)), 31, loss=0.25))

    assert found.first.place == ("ParametersDigested", 0, 20)


def test_a_loss_that_differs_first_stays_the_first_difference(events, compare):
    """Whatever the tensors are after it."""
    found = compare(events, with_step(flipped(events, range(32, 61)), 31, loss=0.25))

    assert (found.first.place, found.first.field) == (("StepCompleted", 0, 31), "loss")


@pytest.mark.parametrize(
    "values",
    [{"method": m.DigestMethod.MIXED}, {"tensors": (1,)}, {"checkpoint": "c000002"}, {"branch": 1}],
    ids=["on another device", "of fewer tensors", "of a checkpoint", "of another branch"],
)
def test_what_cannot_be_compared_is_no_difference(events, compare, values):
    """Such digests say nothing about each other."""
    assert compare(events, flipped(events, range(61), **values)).verdict is Verdict.SAME


def test_runs_with_digests_of_other_steps_are_the_same(events, compare):
    """One machine is faster, so its digests are rarer."""
    rare = [one for one in events if not (isinstance(one, m.ParametersDigested) and one.step % 4)]

    assert compare(events, rare).verdict is Verdict.SAME
    assert compare(rare, flipped(events, range(8, 61))).first.place[2] == 8
