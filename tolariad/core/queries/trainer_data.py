"""Whether a trainer has the data and the code that the run was trained with so far, by their fingerprints.

An old journal has no fingerprint: the run then takes the first one that it gets. Before the first update no data is
wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import state as st


def other_data(known: st.Progress, found: m.Environment) -> str:
    """Return how the data differ from those that the run was trained on, as a clause; "" if they do not."""
    if not known.step:
        return ""
    pairs = zip(("training data", "validation data"), known.data, found.data, strict=False)
    return " and ".join(filter(None, (_differs(name, was, now) for name, was, now in pairs)))


def data_refusal(other: str) -> str:
    """Return why data are refused that differ as `other` says. The caller adds what to do, which depends on it."""
    return (
        f"this is not the data that the run was trained on: {other}. The usual cause is data that the script makes "
        "without a seed, for example with torch.randn: call torch.manual_seed before it"
    )


def _differs(name: str, was: m.DataPrint, now: m.DataPrint) -> str:
    """Return a clause, or "" if there is nothing to compare."""
    if None not in (was.length, now.length) and was.length != now.length:
        return f"the {name} have {now.length:,} items instead of {was.length:,}"
    pairs = [(a, b) for a, b in zip(was.items, now.items, strict=False) if a and b]
    differing = sum(a != b for a, b in pairs)
    return f"the {name} differ in {differing} of {len(pairs)} compared items" if differing else ""


def other_code(known: st.Progress, found: Sequence[m.CodeFile]) -> tuple[str, ...]:
    """Return the names of files that differ from those of the trainer before. One that only one of them has does not.

    A file that a trainer did not load yet is no change; who begins to use another file changes one that uses it.
    """
    if not known.step:
        return ()
    before = {one.name: one.hash for one in known.code.files}
    return tuple(one.name for one in found if before.get(one.name, one.hash) != one.hash)


def unknown_code(known: st.Progress, found: Sequence[m.CodeFile]) -> tuple[m.CodeFile, ...]:
    """Return what of this code is not known yet, or has changed."""
    return tuple(one for one in found if one not in known.code.files)


def is_same_but_code(known: st.Progress, found: m.Environment) -> bool:
    """Return whether the execution context is that of the trainer before, but for the file of the task."""
    return st.environment_hash(replace(found, task_hash=known.code.task_hash)) == known.environment
