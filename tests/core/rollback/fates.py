"""The effect of a rollback on every field of the state, as the fields themselves declare it."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from tolariad.core import state as st
from tolariad.core.state.branch import PARTS
from tolariad.core.state.run_state import RunState


class FieldFate(NamedTuple):
    """One field of a slice: None if it belongs to a branch, else what a rollback does with it, and why."""

    slice: str
    name: str
    fate: st.Fate | None
    why: str


def _described(hint: Any) -> tuple[st.Fate, str] | None:
    found = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    said = [(fate, one.description) for one in found if isinstance(one, msgspec.Meta) and (fate := st.fate_of(one))]
    return said[0] if said else None


def _fates() -> list[FieldFate]:
    found = []
    for slice_, hint in get_type_hints(RunState, include_extras=True).items():
        kind = type(getattr(RunState(), slice_))
        names = getattr(kind, "__struct_fields__", ("",))
        hints = get_type_hints(kind, include_extras=True) if names != ("",) else {"": hint}
        for name in names:
            said = _described(hints[name])
            if said is None and slice_ in PARTS and name in PARTS[slice_].__struct_fields__:
                found.append(FieldFate(slice_, name, None, "it belongs to a branch"))
                continue
            fate, why = said or (st.Fate.SURVIVES, getattr(kind, "SURVIVES", ""))
            found.append(FieldFate(slice_, name, fate, why))
    return found


FATES = _fates()


def paths(fate: st.Fate | None) -> list[tuple[str, str]]:
    """Slice and field of everything with this fate."""
    return [(one.slice, one.name) for one in FATES if one.fate is fate and one.name]
