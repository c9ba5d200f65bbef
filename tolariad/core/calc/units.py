"""The units of fields: they are part of the type, so that the generated page can print them, and checks know bounds."""

from __future__ import annotations

from typing import Annotated

from tolariad.core.calc.bounds import (
    COUNT_MAX,
    EPOCH_MAX,
    ID_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    NOTE_CHARACTERS_MAX,
    SECONDS_MAX,
    unit,
)

Nanoseconds = Annotated[int, unit("nanoseconds", -(2**63), 2**63 - 1)]
Seconds = Annotated[float, unit("seconds", 0.0, SECONDS_MAX)]
Bytes = Annotated[int, unit("bytes", 0, COUNT_MAX)]
Seq = Annotated[int, unit("sequence number", 0, COUNT_MAX)]
Step = Annotated[int, unit("applied optimizer updates, 0 is before any", 0, COUNT_MAX)]
Epoch = Annotated[int, unit("epoch, from 1", 0, EPOCH_MAX)]
Batch = Annotated[int, unit("batches of the epoch already consumed", 0, COUNT_MAX)]
Digest64 = Annotated[int, unit("64-bit digest", 0, 2**64 - 1)]
Digest32 = Annotated[int, unit("32-bit digest", 0, 2**32 - 1)]
Hex = Annotated[str, unit("lower-case hexadecimal", 0, 1 << 23)]
# Measured values: one that is not finite is information, and is recorded as it is.
Rate = Annotated[float, unit("learning rate")]
Loss = Annotated[float, unit("task unit, may be non-finite")]
# The value of an order.
OrderedRate = Annotated[float, unit("learning rate", 0.0, 1e6)]
Name = Annotated[str, unit("", 0, NAME_CHARACTERS_MAX)]
Sentence = Annotated[str, unit("", 0, NOTE_CHARACTERS_MAX)]
CallerId = Annotated[str, unit("", 0, ID_CHARACTERS_MAX)]
