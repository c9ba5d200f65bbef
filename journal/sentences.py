"""The sentences for damage, one for each kind. Opening, reading and `verify` all use these.

A sentence does not name a place; `JournalDamaged` adds file, offset and sequence number.
"""

from __future__ import annotations

from typing import Final

NEWER: Final = "the frame was written by a newer version"
LENGTH: Final = "the segment file does not have the length that it was created with"
MISPLACED: Final = "an intact frame is at a place where it does not belong"
CHAIN: Final = "the hash chain is broken although the checksums are right"
FRAME: Final = "an acknowledged frame does not verify"
SEGMENT_ENDS: Final = "the segment ends here"
VOID: Final = "the rest was declared void"
AFTER_END: Final = "bytes follow the end of the segment"
JOURNAL_ENDS: Final = "the journal ends here"
AFTER_SEAL: Final = "bytes follow the seal of the segment"
STRAY: Final = "there are bytes at a place where no write put them"
TORN: Final = "the last write is torn; it was never acknowledged"
HEADER: Final = "the segment header does not verify"
FIRST_LINK: Final = "the first segment names a predecessor"
OTHER_LINK: Final = "the segment follows another predecessor, or belongs to another run"
GAP_LINK: Final = "the segment's first sequence number does not follow the last one of its predecessor"
LINK: Final = "the segment's link does not match the end of its predecessor"
NAME: Final = "the file's name is not a name that the journal gives to a segment"
TWICE: Final = "two files claim the same segment"
# Only `verify` checks these. They affect no event.
MAXIMA: Final = "the running maxima of time, epoch and step are wrong"
SEAL: Final = "the seal disagrees with the frames of its segment"
PADDING: Final = "padding that must be zero is not"
