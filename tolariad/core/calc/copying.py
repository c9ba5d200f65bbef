"""Structs that are made from others with fields of the same names."""

from functools import cache
from typing import Any, Self

import msgspec


@cache
def _shared(kind: type[msgspec.Struct], source: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields that both have."""
    return tuple(name for name in kind.__struct_fields__ if name in source.__struct_fields__)


class Copying(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the Structs that can be made from others with fields of the same names."""

    @classmethod
    def of(cls, *sources: msgspec.Struct, **more: Any) -> Self:
        """Return the Struct with the values of `sources` in fields of the same names, and `more`; the last one wins.

        Raises TypeError if a field without a default is in none of them.
        """
        values = {name: getattr(source, name) for source in sources for name in _shared(cls, type(source))}
        return cls(**{**values, **more})
