"""The running digest of what the training did, and the marks by which two runs are compared.

Invariants: the digest covers records of the training, not when, where or under which sequence number they were
recorded. Equal records in equal order give equal digests, and equal digests up to a count of records mean that
everything up to there was equal. Every capture has the digest at some earlier counts, its marks. The captures of two
runs come at different counts, but close to the same place they have a mark in common.
"""

import hashlib
from typing import Final

import msgspec

# A mark every so many records. With a capture every 4096 events, no search has to fold more than some thousand events.
MARK_RECORDS: Final = 1024


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The digest after `records` records."""

    records: int
    value: bytes


class RunningDigest(msgspec.Struct, frozen=True):
    """The digest after `records` records. `marks`: oldest first, at most one for each bit of the count."""

    records: int = 0
    value: bytes = b""
    marks: tuple[Mark, ...] = ()

    def after(self, *parts: bytes) -> "RunningDigest":
        """Return the digest after one more record, which is the concatenation of `parts`."""
        records = self.records + 1
        value = hashlib.sha256(b"".join((self.value, *parts))).digest()
        if records % MARK_RECORDS:
            return RunningDigest(records, value, self.marks)
        return RunningDigest(records, value, _with_mark(self.marks, Mark(records, value)))

    def after_each(self, tag: bytes, packed: bytes, size: int) -> "RunningDigest":
        """Return the digest after many records: `tag` and the next `size` bytes of `packed` are one of them."""
        records, value, marks, sha256 = self.records, self.value, self.marks, hashlib.sha256
        for at in range(0, len(packed), size):
            value = sha256(value + tag + packed[at : at + size]).digest()
            records += 1
            if not records % MARK_RECORDS:
                marks = _with_mark(marks, Mark(records, value))
        return RunningDigest(records, value, marks)


def _with_mark(marks: tuple[Mark, ...], new: Mark) -> tuple[Mark, ...]:
    """Return the marks to keep: for each power of two, the newest one at a multiple of it.

    So the marks lie close together near the present count and ever wider apart before it.
    """
    number = new.records // MARK_RECORDS
    kept = {(number >> bit) << bit for bit in range(number.bit_length())}
    return (*(one for one in marks if one.records // MARK_RECORDS in kept), new)
