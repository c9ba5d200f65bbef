"""What a rollback does with a field of the state: its own description says it.

A field of a slice belongs to a branch of training, or it has one of these descriptions. Those of a branch stand in a
Struct of their own, from which the slice derives (`Progress` from `BranchProgress`). `branch.py` saves them, and puts
them back. A slice that a rollback leaves as it is says so once, in `SURVIVES`.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Meta

_KEY: Final = "rollback"


class Fate(enum.Enum):
    """What RolledBack does with a field that belongs to no branch."""

    SURVIVES = "survives"
    ANEW = "begins anew"
    SET = "set by the rollback"


def survives(why: str) -> Meta:
    """Describe a field that a rollback leaves as it is."""
    return Meta(description=why, extra={_KEY: Fate.SURVIVES})


def anew(why: str) -> Meta:
    """Describe a field that a rollback sets to the value that it has in a new run."""
    return Meta(description=why, extra={_KEY: Fate.ANEW})


def set_back(why: str) -> Meta:
    """Describe a field to which the fold of RolledBack gives another value."""
    return Meta(description=why, extra={_KEY: Fate.SET})


def fate_of(described: Meta) -> Fate | None:
    """Return what the description says of a rollback; None if it says nothing."""
    return (described.extra or {}).get(_KEY)


COUNTER: Final = survives("a counter: it goes on, so that no name or number is used twice")
CONFIGURATION: Final = survives("configuration, or a description of the model")
OF_THE_TRAINER: Final = survives("it describes the present trainer")
ACTS_ONCE: Final = survives("an accepted order acts once, whatever the branch")
NEW_BRANCH: Final = set_back("a rollback opens a new branch")
