"""Orders of masks, releases and compactions for runs of the tasks in tests/trainer/tasks/pruned.py."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from msgspec.structs import replace

from tests.trainer.tasks import pruned
from tolariad.core import messages as m
from tolariad.trainer.pruning.plan import joined, plan_of
from tolariad.trainer.pruning.verify import find_groups

TASK = f"{Path(__file__).parents[1] / 'tasks' / 'pruned.py'}"
STEPS = 10  # of an epoch, at five samples a batch
EPOCHS = 3
FIRST, SECOND = {"first": (2, 5, 11), "last": (0, 7)}, {"first": (0, 12), "last": (3,)}
AFTER = {"first": (1,), "last": (4, 8)}
GRACE, WINDOW = 1, 4


@functools.cache
def body(kind, *gone):
    """Return a model from which these choices are gone, its groups, and an example. Each choice is hashable."""
    from tolariad.trainer.pruning.removal import remove

    torch.manual_seed(0)
    model = kind().eval()
    example = (torch.randn(5, 6),)
    for one in gone:
        chosen = [dict(part) for part in one]
        plans = [plan_of(model, find_groups(model, example).groups, part, example) for part in chosen]
        remove(model, joined(plans, model).gone)
    return model, find_groups(model, example).groups, example


@functools.cache
def plan(kind, *gone):
    """Return the plan of the last of these choices, in a model from which the others are gone."""
    model, groups, example = body(kind, *gone[:-1])
    return plan_of(model, groups, dict(gone[-1]), example)


def fixed(chosen):
    """Return a choice as a hashable value."""
    return tuple(sorted(chosen.items()))


def masks(cycle, chosen, *, kind=pruned.Body, gone=(), cause=0):
    """Return the order to mask these units. `gone`: choices that earlier compactions have removed, each a list."""
    made = plan(kind, *(tuple(fixed(one) for one in part) for part in gone), fixed(chosen))
    return m.MaskUnits(
        cycle=cycle,
        units=made.units,
        plan=made.text,
        sha256=made.masks.sha256,
        grace_steps=GRACE,
        window_steps=WINDOW,
        cause=cause,
    )


def fixed_masks():
    """Return an order whose units cannot be removed."""
    made = replace(plan(pruned.Body, fixed(FIRST)), fixed={"first": "it is so"})
    return replace(masks(1, FIRST, cause=101), plan=made.text)


def release(cycle, *, cause=0):
    """Return the order to lift the masks of a cycle."""
    return m.ReleaseMasks(cycle=cycle, cause=cause)


def compaction(cycle, *choices, kind=pruned.Body, gone=(), cause=0, recorded=True):
    """Return the order to remove all of these choices. `recorded`: as one of a script."""
    before = tuple(tuple(fixed(one) for one in part) for part in gone)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind()
        plans = [plan(kind, *before, fixed(one)) for one in choices]
        if before:
            from tolariad.trainer.pruning.removal import remove

            for at, part in enumerate(before):
                remove(model, joined([plan(kind, *before[:at], one) for one in part], model).gone)
        whole = joined(plans, model)
    return m.CompactModel(cycle=cycle, units=whole.units, removal=whole.text if recorded else "", cause=cause)


# Before which update which order acts: masks, more masks, a release of these, more again, a compaction, masks after it.
LIFE = (
    (4, lambda kind, cause: masks(1, FIRST, kind=kind, cause=cause)),
    (8, lambda kind, cause: masks(2, SECOND, kind=kind, cause=cause)),
    (12, lambda kind, cause: release(2, cause=cause)),
    (14, lambda kind, cause: masks(3, SECOND, kind=kind, cause=cause)),
    (20, lambda kind, cause: compaction(3, FIRST, SECOND, kind=kind, cause=cause)),
    (24, lambda kind, cause: masks(4, AFTER, kind=kind, gone=[[FIRST, SECOND]], cause=cause)),
)


def scripted(life=LIFE, kind=pruned.Body):
    """Return the orders of a script: each acts before its update."""
    return tuple(
        m.ScriptOrder(before, 0, number, make(kind, 100 + number)) for number, (before, make) in enumerate(life, 1)
    )
