"""The line of user code behind something: of a function, of the caller, or of what changed between two lines.

Promises: never raises for lack of an answer, which is the empty text. It must not know: rates, optimizers.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

import torch

_T = TypeVar("_T")
# Nobody's own code: torch, this package and what is installed.
_NOT_USERS: Final = (
    str(Path(torch.__file__).parent),
    sysconfig.get_paths()["stdlib"],
    str(Path(__file__).resolve().parents[2]) + "/trainer",
    "/site-packages/",
    "<frozen",
)


def of_function(function: Any) -> str:
    """Where a function, method or partial is defined."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        code = getattr(type(function).__call__, "__code__", None) if callable(function) else None
    return _place(code.co_filename, code.co_firstlineno, code.co_name) if isinstance(code, CodeType) else ""


def of_caller() -> str:
    """The innermost frame that is a user's."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.stack reads every file of the stack
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return _place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return ""


def watched(function: Callable[[], _T], is_clean: Callable[[], bool]) -> tuple[_T, str]:
    """Call `function` and find the line after which `is_clean()` first was False. Slow: each line of user code is looked at.

    Where something else traces already (a debugger, a coverage tool), that stands and nothing is found.
    """
    if sys.gettrace() is not None:
        return function(), ""
    last = found = ""

    def look(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal last, found
        code = frame.f_code
        if not _is_users(code.co_filename):
            return None
        if not found and last and not is_clean():
            found = last
        if event in ("call", "line"):
            last = _place(code.co_filename, frame.f_lineno, code.co_name)
        return look

    sys.settrace(look)
    try:
        result = function()
    finally:
        sys.settrace(None)
    return result, found or (last if not is_clean() else "")


def _is_users(filename: str) -> bool:
    return not any(part in filename for part in _NOT_USERS)


def _place(filename: str, line: int, name: str) -> str:
    return f"{filename}:{line} in {name}"
