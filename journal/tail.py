"""Decide whether the end of a segment is torn or damaged, by a table of cases.

Reading a segment stops at the first offset X that does not contain the next frame. Eleven yes/no facts decide what that
means, and nothing else. Every combination of facts matches exactly one case; a test tries all of them.

The table can be exact for two reasons. A segment is filled with zeros and synced before it is used, and only one write
is in flight at a time. So in the newest segment all bytes after the last acknowledged frame are zero, except for parts
of the one write in flight. An intact frame after X was written after X was acknowledged, or it is X's own frame in the
wrong place. A torn write causes neither. If the file has another length, somebody else has changed it.

One case cannot be detected: if the very last frame is damaged and nothing follows it, it looks like a torn write. A
clean stop therefore writes a WATERMARK frame after it. Only a journal that was not closed in order has this gap.

    case  decision  reason
    A     TOO_NEW   a newer version wrote here; this version does not have its rules
    B     DAMAGED   the file is shorter or longer than it was created; missing bytes may have been acknowledged
    C     DAMAGED   an intact frame of another place: a misdirected write or a copied block, not a torn write
    D     DAMAGED   an intact frame that breaks the chain: an edit with recomputed checksums
    E     DAMAGED   a later segment exists and says that this one continues: acknowledged frames are unreadable
    F     END       a later segment says that this one ends here, and only zeros follow
    G     END       a later segment declares the rest void: a write failed and was repeated in that segment
    H     DAMAGED   a later segment says that this one ends here, but bytes follow that no write put there
    I     END       only zeros follow: the journal ends here
    J     DAMAGED   the segment is sealed, but bytes follow the seal
    K     DAMAGED   an intact frame with X's number or a later one follows X: X was written and is unreadable
    L     DAMAGED   there are bytes farther after X than one write reaches
    M     TORN      the remains of one write that was never acknowledged
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from journal.errors import UNREADABLE, Damage


class Decision(enum.Enum):
    """The action at the place where reading stopped."""

    END = "the frames end here"
    TORN = "quarantine the remains of one unacknowledged write and continue from here"
    DAMAGED = "refuse to write; read up to here"
    TOO_NEW = "refuse; a newer version is needed"


class TailFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts observed at X, the place at which reading a segment stopped."""

    newer: bool  # the header at X is intact and of a newer version
    resized: bool  # the file does not have the length that its header gives
    misplaced: bool  # X contains an intact frame that belongs to another place or cannot follow here
    unchained: bool  # X contains an intact frame that breaks the hash chain
    newest: bool  # there is no later segment
    linked_end: bool  # the next segment says that this one ends exactly at X
    voided: bool  # the next segment declares the bytes after X void
    rest_zero: bool  # everything from X to the end of the file is zero
    sealed: bool  # the frame before X closes the segment
    later_intact: bool  # after X is an intact header of this segment, with X's number or a later one, in place or not
    stray: bool  # there are bytes other than zero farther after X than one write reaches


class Case(msgspec.Struct, frozen=True):
    """One row of the table: the facts that it requires, and the decision. Facts that it does not name may be either."""

    letter: str
    when: dict[str, bool]
    sentence: str
    damage: Damage | None = None
    decision: Decision = Decision.DAMAGED

    def matches(self, facts: TailFacts) -> bool:
        """Return whether every fact that this case names has the required value."""
        return all(getattr(facts, name) is wanted for name, wanted in self.when.items())


# The rows share these beginnings, so that no combination of facts can match two rows.
_OURS: Final = {"newer": False}
_WHOLE: Final = {**_OURS, "resized": False}
_PLACED: Final = {**_WHOLE, "misplaced": False}
_PLAIN: Final = {**_PLACED, "unchained": False}
_OLDER: Final = {**_PLAIN, "newest": False}
_ENDED: Final = {**_OLDER, "linked_end": True}
_BYTES: Final = {**_ENDED, "rest_zero": False}
_NEWEST: Final = {**_PLAIN, "newest": True}
_REST: Final = {**_NEWEST, "rest_zero": False}
_OPEN: Final = {**_REST, "sealed": False}
_LAST: Final = {**_OPEN, "later_intact": False}

# A newer version comes first, because no other rule holds for its bytes. A torn write comes last: it is what remains if
# no fact indicates damage.
CASES: Final = (
    Case("A", {"newer": True}, "the frame was written by a newer version", decision=Decision.TOO_NEW),
    Case(
        "B",
        {**_OURS, "resized": True},
        "the segment file does not have the length that it was created with",
        Damage.LENGTH,
    ),
    Case(
        "C", {**_WHOLE, "misplaced": True}, "an intact frame is at a place where it does not belong", Damage.MISPLACED
    ),
    Case(
        "D", {**_PLACED, "unchained": True}, "the hash chain is broken although the checksums are right", Damage.CHAIN
    ),
    Case("E", {**_OLDER, "linked_end": False}, UNREADABLE, Damage.FRAME),
    Case("F", {**_ENDED, "rest_zero": True}, "the segment ends here", decision=Decision.END),
    Case("G", {**_BYTES, "voided": True}, "the rest was declared void", decision=Decision.END),
    Case("H", {**_BYTES, "voided": False}, "bytes follow the end of the segment", Damage.STRAY_BYTES),
    Case("I", {**_NEWEST, "rest_zero": True}, "the journal ends here", decision=Decision.END),
    Case("J", {**_REST, "sealed": True}, "bytes follow the seal of the segment", Damage.STRAY_BYTES),
    Case("K", {**_OPEN, "later_intact": True}, UNREADABLE, Damage.FRAME),
    Case("L", {**_LAST, "stray": True}, "there are bytes at a place where no write put them", Damage.STRAY_BYTES),
    Case("M", {**_LAST, "stray": False}, "the last write is torn; it was never acknowledged", decision=Decision.TORN),
)


def decide(facts: TailFacts) -> Case:
    """Return the one case that these facts match. A test checks that exactly one matches for any facts."""
    # Exactly one row matches, so the order of the rows is only for readers of the table.
    return next(case for case in CASES if case.matches(facts))
