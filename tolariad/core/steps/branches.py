"""Branches, and the living line through them: which recorded step is part of the run as it stands.

A rollback leaves one branch and opens another (as PostgreSQL's timelines do). The living line is the newest branch, its
parent up to the fork, that one's parent, and so on to branch 0. It must not know: why somebody went back.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

FORKS_MAX: Final = 1000
_END: Final = 2**63


class Fork(msgspec.Struct, frozen=True):
    """Branch `branch` begins behind `step` of `parent`, where batch `batch` of `epoch` had been taken; `seq`: the event."""

    branch: int
    parent: int
    step: int
    epoch: int
    batch: int
    seq: int


class Lines(msgspec.Struct, frozen=True):
    """Every fork, the oldest first. The run's first branch is 0 and has none."""

    forks: tuple[Fork, ...] = ()

    @property
    def living(self) -> int:
        """The branch that is being trained."""
        return self.forks[-1].branch if self.forks else 0

    @property
    def next_branch(self) -> int:
        """The number of the next one."""
        return self.living + 1

    def forked(self, fork: Fork) -> Lines:
        """With one more; what happened in the first thousand rollbacks is in the journal."""
        return replace(self, forks=(*self.forks, fork)[-FORKS_MAX:])

    def reach(self) -> dict[int, tuple[int, tuple[int, int]]]:
        """How far each branch of the living line belongs to it: its last step, and epoch and batch behind it."""
        known = {fork.branch: fork for fork in self.forks}
        branch = self.living
        found = {branch: (_END, (_END, 0))}
        # A fork names an older branch, so this ends; a journal that says otherwise ends it at the first repeat.
        while branch in known:
            fork = known[branch]
            if fork.parent in found:
                break
            step, position = found[branch]
            found[fork.parent] = min(step, fork.step), min(position, (fork.epoch, fork.batch))
            branch = fork.parent
        return found

    def holds_step(self, branch: int, step: int) -> bool:
        """Is step `step` of `branch` on the living line?"""
        reach = self.reach().get(branch)
        return reach is not None and step <= reach[0]

    def branch_of(self, step: int) -> int:
        """The branch of the living line on which step `step` was made, or would be."""
        fitting = [branch for branch, (last, _) in self.reach().items() if step <= last]
        return min(fitting, default=self.living)

    def holds_position(self, branch: int, epoch: int, batch: int) -> bool:
        """Is the place behind batch `batch` of `epoch`, on `branch`, on the living line?"""
        reach = self.reach().get(branch)
        return reach is not None and (epoch, batch) <= reach[1]
