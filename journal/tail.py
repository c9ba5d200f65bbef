"""Torn or corrupt: the decision, as a table of cases.

Reading a segment stops at the first place X that does not hold the next frame. What that means is decided from eleven
yes/no facts and nothing else. Exactly one case matches every combination of facts; a test walks all of them.

Why the table can be exact: a segment is filled with zeros and synced before it is used, and one write is in flight at a
time. So in the newest segment everything behind the last acknowledged frame is zero, except where the one write in
flight may have left parts of itself. A frame that is intact and lies behind X was written after X was acknowledged, or
is X's own in the wrong place, which no torn write leaves. A file of another length was changed by somebody else.

What it cannot know: if the last frame of all rots and nothing follows it, that looks like a torn write. A WATERMARK
frame behind it, written at a clean stop, closes that gap for journals at rest.

    case  decision  because
    A     TOO_NEW   a newer writer was here; judging its bytes by our rules would be guessing
    B     DAMAGED   the file is shorter or longer than it was made: what is missing may have been acknowledged
    C     DAMAGED   a whole frame of another place: a misdirected write or a copied block, not a torn one
    D     DAMAGED   a whole frame that breaks the chain: an edit with its checksums made good
    E     DAMAGED   a later segment exists and says that this one goes on: acknowledged frames are unreadable
    F     END       a later segment says that this one ends here, and only zeros follow
    G     END       a later segment declares the rest void: the write that failed and was written again there
    H     DAMAGED   a later segment says that this one ends here, yet bytes follow that no write put there
    I     END       only zeros follow: the journal ends here
    J     DAMAGED   the segment is sealed, yet bytes follow the seal
    K     DAMAGED   an intact frame of X's number or a later one lies behind X: X was written, and is unreadable
    L     DAMAGED   bytes lie farther behind X than one write reaches
    M     TORN      the remains of one write, never acknowledged
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from journal import sentences
from journal.errors import Damage


class Decision(enum.Enum):
    """What to do about the place where reading stopped."""

    END = "the frames end here"
    TORN = "set the remains of one unacknowledged write aside and go on from here"
    DAMAGED = "refuse to write; read up to here"
    TOO_NEW = "refuse; a newer version is needed"


class TailFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed at X, where reading a segment stopped."""

    newer: bool  # the header at X is intact and of a newer version
    resized: bool  # the file has not the length its header gives
    misplaced: bool  # X holds a whole frame that belongs elsewhere or cannot follow here
    unchained: bool  # X holds a whole frame that breaks the hash chain
    newest: bool  # there is no later segment
    linked_end: bool  # the next segment says that this one ends exactly at X
    voided: bool  # the next segment declares what follows X void
    rest_zero: bool  # everything from X to the end of the file is zero
    sealed: bool  # the frame before X closes the segment
    later_intact: bool  # an intact header of this segment, of X's number or a later one, lies behind X, in place or not
    stray: bool  # bytes that are not zero lie farther behind X than one write reaches


class Case(msgspec.Struct, frozen=True):
    """One row: the facts it asks for (those it does not name may be either), and what follows."""

    letter: str
    when: dict[str, bool]
    decision: Decision
    damage: Damage | None
    sentence: str

    def matches(self, facts: TailFacts) -> bool:
        """Whether every fact that this case names is as it says."""
        return all(getattr(facts, name) is wanted for name, wanted in self.when.items())


# Rows share these beginnings, so that no combination of facts can match two of them.
_KNOWN: Final = {"newer": False, "resized": False}
_PLAIN: Final = {**_KNOWN, "misplaced": False, "unchained": False}
_OLDER: Final = {**_PLAIN, "newest": False}
_ENDED: Final = {**_OLDER, "linked_end": True}
_NEWEST: Final = {**_PLAIN, "newest": True}
_REST: Final = {**_NEWEST, "rest_zero": False, "sealed": False}

_D: Final = Decision.DAMAGED
CASES: Final = (
    Case("A", {"newer": True}, Decision.TOO_NEW, None, sentences.NEWER),
    Case(
        "B",
        {"newer": False, "resized": True},
        _D,
        Damage.LENGTH,
        sentences.LENGTH,
    ),
    Case("C", {**_KNOWN, "misplaced": True}, _D, Damage.MISPLACED, sentences.MISPLACED),
    Case(
        "D",
        {**_KNOWN, "misplaced": False, "unchained": True},
        _D,
        Damage.CHAIN,
        sentences.CHAIN,
    ),
    Case("E", {**_OLDER, "linked_end": False}, _D, Damage.FRAME, sentences.FRAME),
    Case("F", {**_ENDED, "rest_zero": True}, Decision.END, None, sentences.SEGMENT_ENDS),
    Case("G", {**_ENDED, "rest_zero": False, "voided": True}, Decision.END, None, sentences.VOID),
    Case(
        "H",
        {**_ENDED, "rest_zero": False, "voided": False},
        _D,
        Damage.STRAY_BYTES,
        sentences.AFTER_END,
    ),
    Case("I", {**_NEWEST, "rest_zero": True}, Decision.END, None, sentences.JOURNAL_ENDS),
    Case(
        "J",
        {**_NEWEST, "rest_zero": False, "sealed": True},
        _D,
        Damage.STRAY_BYTES,
        sentences.AFTER_SEAL,
    ),
    Case("K", {**_REST, "later_intact": True}, _D, Damage.FRAME, sentences.FRAME),
    Case(
        "L",
        {**_REST, "later_intact": False, "stray": True},
        _D,
        Damage.STRAY_BYTES,
        sentences.STRAY,
    ),
    Case(
        "M",
        {**_REST, "later_intact": False, "stray": False},
        Decision.TORN,
        None,
        sentences.TORN,
    ),
)


def decide(facts: TailFacts) -> Case:
    """The one case that these facts match; that there is exactly one, whatever the facts, is a test's to hold."""
    return next(case for case in CASES if case.matches(facts))
