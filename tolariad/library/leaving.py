"""How a `for` statement was left whose iterator is being closed: by `break` or `return`, or otherwise; or never.

Python tells an iterator nothing but that it is not needed any more. But the statement's own code is still there: a
`break`, and a `return`, drop the iterator by an instruction of its own. An exception drops it wherever it was raised.
"""

from __future__ import annotations

import atexit
import dis
import inspect
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

# POP_ITER: of Python 3.14 on.
_DROPS: Final = ("POP_TOP", "POP_ITER")
# Where a generator stands that is closed itself: one around the iterator, such as that of tqdm.
_HELD: Final = ("YIELD_VALUE", "RESUME")


def was_broken_off(frame: FrameType | None) -> bool:
    """Return whether the code of `frame`, in which an iterator is closed, has left its loop by `break` or `return`."""
    while frame is not None and _is_held(frame):
        frame = frame.f_back
    return frame is not None and _instruction(frame) in _DROPS


def _is_held(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and _instruction(frame) in _HELD


def _instruction(frame: FrameType) -> str:
    """Return the name of the instruction that the frame executes."""
    at = frame.f_lasti
    return dis.opname[frame.f_code.co_code[at]] if at >= 0 else ""


def close_at_exit(loop: Generator[Any, None, None]) -> None:
    """End the loop with the program, if something still holds it then.

    The interpreter would close it later, after it has stopped the kernel's thread, and wait for that for ever.
    """
    held = weakref.ref(loop, lambda _: atexit.unregister(close))

    def close() -> None:
        held_loop = held()
        # A thread that is in the loop ends with the program, as in a crash.
        if held_loop is not None and inspect.getgeneratorstate(held_loop) != inspect.GEN_RUNNING:
            held_loop.close()

    atexit.register(close)
