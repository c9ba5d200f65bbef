"""The user's program as the trainers had it, for re-runs that differ: a part of the slice `progress`.

Invariants: steps before `since` were made by other code, or nobody has shown that it gives their bits. A word of the
user's for changed code (`accepted`) holds until the code changes again.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import CODE_FILES_MAX, storable


class Code(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of the present trainer, and others that one before it had loaded later.

    Steps from `since` on were made by them, or have the bits that they give.

    `task_hash`: the hash of the task's file. `changed`: the files that were others before. `accepted`: whether steps
    from before may differ.
    """

    files: tuple[m.CodeFile, ...] = ()
    task_hash: str = ""
    since: int = 1
    changed: tuple[str, ...] = ()
    accepted: bool = False

    def of_trainer(self, step: int, e: m.ExecutionContextRecorded) -> "Code":
        """Return the code of a trainer that was built after `step`. An old trainer reports no files."""
        code = replace(self.with_files(e.code), task_hash=e.environment.task_hash)
        if e.other_code:
            return replace(code, since=storable(step + 1), changed=e.other_code, accepted=e.accepts_code)
        return replace(code, accepted=self.accepted or e.accepts_code)

    def with_files(self, found: Sequence[m.CodeFile]) -> "Code":
        """Return the code with these files, of which some may have replaced a former one; at most CODE_FILES_MAX."""
        if not found:
            return self
        names = {one.name for one in found}
        kept = (one for one in self.files if one.name not in names)
        return replace(self, files=tuple(sorted((*found, *kept)[:CODE_FILES_MAX], key=lambda one: one.name)))

    def compared(self, e: m.RerunFinished) -> "Code":
        """Return the code after a re-run. If every bit was the same, its steps count as made by it."""
        is_same = bool(e.compared) and e.first_difference is None
        return replace(self, since=min(self.since, e.first), changed=(), accepted=False) if is_same else self

    def at_most_since(self, step: int) -> "Code":
        """Return the code after a rollback: steps from `step` on will be made by it."""
        return replace(self, since=min(self.since, step))
