"""Events that lists leave out are of types that exist, and none of them is one that the run says at once."""

from __future__ import annotations

from typing import get_args

from tolariad.core import state as st
from tolariad.core.messages.vocabulary import EVENT_TYPES
from tolariad.forensics.bookkeeping import BOOKKEEPING


def test_the_names_are_types_of_events_and_nothing_that_is_said():
    """A misspelt name would hide nothing; a trouble that is hidden would be missed."""
    said = {kind.__name__ for kind in get_args(st.SaidEvent)}

    assert EVENT_TYPES.keys() >= BOOKKEEPING
    assert BOOKKEEPING & said == set()
