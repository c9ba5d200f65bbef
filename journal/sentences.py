"""What is said of damage: one sentence a kind, whoever finds it. Opening, reading and `verify` use these and no others.

A sentence has no place in it; `JournalDamaged` adds file, offset and sequence number.
"""

from __future__ import annotations

from typing import Final

NEWER: Final = "the frame was written by a newer version"
LENGTH: Final = "the segment file has not the length it was made with"
MISPLACED: Final = "a whole frame lies where it does not belong"
CHAIN: Final = "the hash chain is broken although the checksums hold"
FRAME: Final = "an acknowledged frame does not verify"
SEGMENT_ENDS: Final = "the segment ends here"
VOID: Final = "the rest was declared void"
AFTER_END: Final = "bytes follow the end of the segment"
JOURNAL_ENDS: Final = "the journal ends here"
AFTER_SEAL: Final = "bytes follow the seal of the segment"
STRAY: Final = "bytes lie where no write put them"
TORN: Final = "the last write is torn; it was never acknowledged"
HEADER: Final = "the segment header does not verify"
FIRST_LINK: Final = "the first segment names a predecessor"
OTHER_LINK: Final = "the segment belongs behind another one, or to another run"
GAP_LINK: Final = "the segment does not go on where it says that its predecessor ends"
LINK: Final = "the segment's link does not match the end of its predecessor"
NAME: Final = "no writer names a segment so"
TWICE: Final = "two files claim one segment"
# Only `verify` looks for these: no event is affected by them.
MAXIMA: Final = "the running maxima of time, epoch and step are wrong"
SEAL: Final = "the seal disagrees with the frames it sums up"
PADDING: Final = "padding that must be zero is not"
