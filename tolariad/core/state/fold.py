"""What a slice's fold is: a function by event type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from tolariad.core import messages as m

# The fold of one event into a slice: a function of (the slice, the event, the event's number and root) -> the slice.
Fold: TypeAlias = Callable[[Any, Any, m.Cause], Any]
# The fold of one slice, by event type.
ApplyTable = dict[type[m.Event], Fold]


def setting(**fields: Any) -> Fold:
    """Return a fold that sets these fields of the slice, whatever the event holds."""
    return lambda before, _, __: replace(before, **fields)
