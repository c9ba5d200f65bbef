"""The plans of a campaign, made from a seed. Each can be carried out to its last kill.

A run is held at the end of epoch n until n kills have happened (the task waits there for the campaign's word). So when
kill n + 1 is armed, a whole epoch follows, with its steps, its validation and the checkpoint before it. `can_happen`
says of every point whether it is certain to be reached after the kills before it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

from tests.campaign.variants import MANY_RUNS, Variant, variants_for
from tolariad.failpoints import POINTS

BY_TIME = "by_time"
# Only a run with seeds reaches them: tests/library/test_seed_kills.py.
_OF_SEEDS = ("seed_move", "seed_planted", "seed_removed", "seed_moved")
# Only a run that prunes: tests/trainer/pruning.
_OF_PRUNING = ("prune_order", "prune_cut", "prune_acted", "analysis")
# Only a run whose loss rises: tests/library/test_autopilot.py.
_OF_AUTOPILOT = ("comparison", "compared")
_SPECIAL = (*_OF_SEEDS, *_OF_PRUNING, *_OF_AUTOPILOT)
ALL_POINTS = (*(point for point in POINTS if point not in _SPECIAL), BY_TIME)
IN_DAEMON = ("start", "replay", "commit", "rotation_head", "rotation", "removal")
# How often a point is certain to be passed while a kill there waits, in terms of one epoch of the run's variant.
_SURELY = 3
_ROLLBACK = ("rollback_prepare", "rollback_commit", "rollback_confirm")
# Of few variants only: an order leads to them.
_ORDERED = (*_ROLLBACK, "removal")
_SNAPSHOT = ("snapshot", "snapshot_taken")
_ONCE = ("start", "build", "capture", "manifest", "publish", "rotation_head", "rotation", *_ORDERED, *_SNAPSHOT)
_DEALS_MAX = 200
_PIECES = 4
# Begun and verified: from memory there are no pieces.
_FROM_MEMORY = 2
_VALIDATION_BATCHES = 2


@dataclass(frozen=True)
class Kill:
    """One death: of whoever reaches `point` for the `count`-th time since it was armed, `delay_us` later.

    For `by_time`: so much later, whatever goes on.
    """

    point: str
    count: int
    delay_us: int
    who: str  # "self": the process at the point, "both": the other one too; by time: "daemon", "trainer" or "both"

    @property
    def takes_daemon(self) -> bool:
        """Return whether a new daemon must be started; a trainer never outlives its daemon."""
        return self.who in ("both", "daemon") or self.point in IN_DAEMON

    @property
    def is_past_a_step(self) -> bool:
        """Return whether a step was applied before, so that there is a checkpoint."""
        return self.point in ("step", "validation", "rerun", "restore", *_SNAPSHOT) or (
            self.point in ("gate", "boundary") and self.count > 1
        )


@dataclass(frozen=True)
class Plan:
    """The plan for one run."""

    seed: int
    variant: Variant
    kills: tuple[Kill, ...] = ()
    sync: str = "step"
    pauses: int = 0
    checkpoints: int = 0
    as_user: bool = False


def as_user_every(runs: int) -> int:
    """Return N: one run in N is started, at each start, exactly as a user starts it. The others fork from a template.

    A start without the template imports torch, which takes more time than all else in a run.
    """
    return 5 if runs >= MANY_RUNS else 25


def deal(seed: int, runs: int) -> list[Plan]:
    """Return plans for `runs` runs. Points, variants and ways of starting occur about equally often.

    Each point occurs twice at least: a deal that leaves one out is dealt again.
    """
    draw = random.Random(seed)
    plans = []
    for _ in range(_DEALS_MAX):
        plans = _dealt(draw, seed, runs)
        dealt = Counter(kill.point for plan in plans for kill in plan.kills)
        if all(dealt[point] > 1 for point in ALL_POINTS):
            break
    return plans


def deal_few(seed: int, runs: int) -> list[Plan]:
    """Return plans for a campaign too short to have every point and variant. No run is started as a user does."""
    return [replace(plan, as_user=False) for plan in _dealt(random.Random(seed), seed, runs)]


def _dealt(draw: random.Random, seed: int, runs: int) -> list[Plan]:
    dealt: Counter[str] = Counter()
    possible, variants = variants_for(runs), list[Variant]()
    plans = []
    for number in range(runs):
        variants = variants or draw.sample(possible, len(possible))
        variant, sync, as_user = variants.pop(), draw.choice(("step", "batch")), number % as_user_every(runs) == 0
        size = min(variant.kills, draw.choice((2, 2, 3) if as_user else (2, 3, 3, 4)))
        # Few variants go back, remove what they have, or keep snapshots: their plans have room for the kills that meet
        # it.
        meets = any(variant.goes_back_after(kills) or variant.removes_after(kills) for kills in range(size + 1))
        size = variant.kills if meets or variant.in_memory else size
        kills = _draw_kills(draw, size, variant, sync, dealt)
        # Behind an ordered checkpoint there may be nothing to run again.
        checkpoints = 0 if any(kill.point == "rerun" for kill in kills) else draw.choice((0, 1, 2))
        plans.append(Plan(seed * 1000 + number, variant, kills, sync, draw.choice((0, 1, 2)), checkpoints, as_user))
    return plans


def _draw_kills(draw: random.Random, size: int, variant: Variant, sync: str, dealt: Counter[str]) -> tuple[Kill, ...]:
    """Choose points one after the other, each time among the possible ones that were used least so far."""
    kills: tuple[Kill, ...] = ()
    for left in range(size, 0, -1):
        possible = [point for point in ALL_POINTS if can_happen(point, kills, sync, variant)]
        rank: dict[str, float] = {point: dealt[point] for point in possible}
        if left > 1:
            # Behind the others it is also dealt for what it alone makes possible next.
            rank["validation"] = min(dealt["validation"], dealt["rerun"] + 0.5)
        # Few plans can have these, so they come first there until they have come often enough.
        rare = (*_ORDERED, *_SNAPSHOT)
        rank |= {point: dealt[point] - 10.0 for point in rare if point in rank and dealt[point] < _SURELY}
        if variant.in_memory and left > 1 and min(dealt[point] for point in _SNAPSHOT) < _SURELY and not kills:
            # With this one before them they can.
            rank["step"] = -20.0
        least = min(rank.values())
        point = draw.choice([point for point in possible if rank[point] == least])
        dealt[point] += 1
        kills += (_kill(draw, point, variant),)
    return kills


def can_happen(point: str, before: tuple[Kill, ...], sync: str, variant: Variant) -> bool:
    """Return whether `point` is certain to be reached once after these kills."""
    last = before[-1] if before else None
    match point:
        case "start":
            return last is None or last.takes_daemon
        case "replay":
            return last is not None and last.takes_daemon and any(kill.point != "start" for kill in before)
        case "restore":
            return any(kill.is_past_a_step for kill in before)
        case "rerun":
            return not variant.in_memory and _is_ahead(before, sync)
        case "rollback_prepare" | "rollback_commit" | "rollback_confirm":
            return variant.goes_back_after(len(before))
        case "snapshot" | "snapshot_taken":
            # The daemon has the memory since that trainer's first step, and the next one is told to use it after its
            # own.
            told = last is not None and last.point in ("step", "validation", *_SNAPSHOT)
            return variant.in_memory and told and not last.takes_daemon
        case "removal":
            return variant.removes_after(len(before))
        case _:
            return True


def _is_ahead(before: tuple[Kill, ...], sync: str) -> bool:
    """Return whether steps after the newest checkpoint are durable: those of an epoch whose validation had begun.

    What a dead trainer has reported is taken in by a living daemon; a daemon that died too has it on disk with `step`.
    """
    if not before:
        return False
    last = before[-1]
    if last.point == "validation":
        return last.who == "self" or sync == "step"
    # Deaths that let nothing go on.
    return last.point in ("start", "replay", "build", "restore", "rerun") and _is_ahead(before[:-1], sync)


def _kill(draw: random.Random, point: str, variant: Variant) -> Kill:
    if point == BY_TIME:
        who = draw.choice(("daemon", "trainer", "both"))
        return Kill(point, 0, draw.randrange(1_000_000), who)
    if variant.in_memory and point in ("step", *_SNAPSHOT):
        return Kill(point, 1 if point in _SNAPSHOT else draw.randint(2, variant.steps), draw.randrange(300), "self")
    who = "self" if point in IN_DAEMON else draw.choice(("self", "self", "both"))
    return Kill(point, draw.randint(1, _passes(point, variant)), draw.randrange(300), who)


def _passes(point: str, variant: Variant) -> int:
    """Return how often the point is certain to be passed."""
    if point in _ONCE:
        return 1
    return {
        "replay": 2,
        "restore": _FROM_MEMORY if variant.in_memory else _PIECES,
        "checkpoint_file": _PIECES,
        "validation": _VALIDATION_BATCHES,
        # The last of an epoch may not be durable, so it may be run anew rather than again.
        "rerun": variant.steps - 1,
        # Every note that is written meanwhile is one.
        "commit": 12,
    }.get(point, variant.steps)
