"""Branches, and the line of steps through them that makes up the run as it stands.

A rollback leaves one branch and opens another (as PostgreSQL's timelines do). The current line is the newest branch,
then its parent up to the fork, and so on to branch 0.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

FORKS_MAX: Final = 1000
_END: Final = 2**63


class Fork(msgspec.Struct, frozen=True):
    """Branch `branch` begins after `step` of `parent`, when batch `batch` of `epoch` had been consumed.

    `seq`: the event.
    """

    branch: int
    parent: int
    step: int
    epoch: int
    batch: int
    seq: int


class Branches(msgspec.Struct, frozen=True):
    """The forks of a run, oldest first. The run's first branch is 0 and has none."""

    forks: tuple[Fork, ...] = ()

    @property
    def living(self) -> int:
        """Return the branch that is being trained."""
        return self.forks[-1].branch if self.forks else 0

    @property
    def next_branch(self) -> int:
        """Return the number of the next branch."""
        return self.living + 1

    def forked(self, fork: Fork) -> "Branches":
        """Return the branches with one more fork. The oldest is forgotten after a thousand; the journal has it."""
        return replace(self, forks=(*self.forks, fork)[-FORKS_MAX:])

    def reach(self) -> dict[int, tuple[int, tuple[int, int]]]:
        """Return how far each branch belongs to the current line: its last step, and epoch and batch after it."""
        known = {fork.branch: fork for fork in self.forks}
        branch = self.living
        found = {branch: (_END, (_END, 0))}
        # A fork names an older branch, so the loop ends. If a damaged journal repeats a branch, it ends there.
        while branch in known:
            fork = known[branch]
            if fork.parent in found:
                break
            step, position = found[branch]
            found[fork.parent] = min(step, fork.step), min(position, (fork.epoch, fork.batch))
            branch = fork.parent
        return found

    def holds_step(self, branch: int, step: int) -> bool:
        """Return whether step `step` of `branch` is on the current line."""
        reach = self.reach().get(branch)
        return reach is not None and step <= reach[0]

    def branch_of(self, step: int) -> int:
        """Return the branch of the current line on which step `step` was made, or would be."""
        fitting = [branch for branch, (last, _) in self.reach().items() if step <= last]
        return min(fitting, default=self.living)

    def holds_position(self, branch: int, epoch: int, batch: int) -> bool:
        """Return whether the place after batch `batch` of `epoch`, on `branch`, is on the current line."""
        reach = self.reach().get(branch)
        return reach is not None and (epoch, batch) <= reach[1]
