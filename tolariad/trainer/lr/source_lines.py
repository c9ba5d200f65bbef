"""Find the line of user code that is responsible: of a function, of the caller, or of a change during a call.

Promises: no function raises if there is no answer; it returns an empty text.
"""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

import torch

_T = TypeVar("_T")
# Paths of code that is not the user's: torch, the standard library, this package, installed packages.
_NOT_USERS: Final = (
    str(Path(torch.__file__).parent),
    sysconfig.get_paths()["stdlib"],
    str(Path(__file__).resolve().parents[2]) + "/trainer",
    "/site-packages/",
    "<frozen",
)


def of_function(function: Any) -> str:
    """Return where a function, method or partial is defined."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        code = getattr(type(function).__call__, "__code__", None) if callable(function) else None
    return _place(code.co_filename, code.co_firstlineno, code.co_name) if isinstance(code, CodeType) else ""


def of_call(method: str, codes: Iterable[CodeType], *, near: str) -> str:
    """Return the line of the first call of `method` in one of `codes`, if its object's name contains `near`."""
    for code in codes:
        line, before = 0, ""
        for one in dis.get_instructions(code):
            # `starts_line` is a number up to Python 3.12, and True from 3.13 on.
            line = (one.positions and one.positions.lineno) or line
            if one.argval == method and near in before.lower():
                return _place(code.co_filename, line, code.co_name)
            before = str(one.argval)
    return ""


def of_assignment(key: str, codes: Iterable[CodeType]) -> str:
    """Return the line of the first assignment to an item `key` in one of `codes`."""
    for code in codes:
        line, before = 0, ""
        for one in dis.get_instructions(code):
            line = one.starts_line or line
            if one.opname == "STORE_SUBSCR" and before == key:
                return _place(code.co_filename, line, code.co_name)
            before = str(one.argval)
    return ""


def of_caller() -> str:
    """Return the innermost line of the stack that is user code."""
    for frame, line in traceback.walk_stack(None):
        if _is_users(frame.f_code.co_filename):
            return _place(frame.f_code.co_filename, line, frame.f_code.co_name)
    return ""


def watched(function: Callable[[], _T], is_clean: Callable[[], bool]) -> tuple[_T, str]:
    """Call `function`; return its result and the line after which `is_clean()` first was False.

    Slow: it checks after each line of user code. If a debugger or a coverage tool traces already, no line is found.
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
