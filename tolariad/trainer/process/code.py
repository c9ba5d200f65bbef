"""The code of the user's program, by which a resume knows that it was edited.

It is that of loaded modules that belong to no library: the script, the task's file, and what these import. Their names
are those of the modules, so a program that was moved has the same. The cells of a notebook have no file. Of them count
the functions and classes that they define, and the cell whose loop trains.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from tolariad.core import messages as m
from tolariad.core.calc.bounds import CODE_FILES_MAX
from tolariad.trainer.process.libraries import libraries
from tolariad.trainer.process.own_frames import is_own_file
from tolariad.trainer.tasks.given import codes_of, program_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_HASH_CHARACTERS: Final = 16
# By file, time of change and size: a program may start many runs.
_known: dict[tuple[str, int, int], str] = {}


class LoadedCode:
    """The code that the program had loaded when training began, and what it has imported since."""

    def __init__(self) -> None:
        self._first: frozenset[str] = frozenset()
        self._late: dict[str, m.CodeFile] = {}
        self._modules = 0

    def at_start(self, task: Any) -> tuple[m.CodeFile, ...]:
        """Return the code that is loaded now."""
        found = code_of(task)
        self._first, self._late, self._modules = frozenset(one.name for one in found), {}, len(sys.modules)
        return found

    def libraries(self) -> tuple[m.Library, ...]:
        """Return the libraries that are loaded now."""
        return libraries()

    def late(self, task: Any) -> tuple[m.CodeFile, ...]:
        """Return the code that was loaded after that.

        A file counts as it was when it was first found here: it may be edited while the program runs, which has no
        effect on what is loaded.
        """
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            for one in code_of(task):
                if one.name not in self._first:
                    self._late.setdefault(one.name, one)
        return tuple(self._late.values())


def code_of(task: Any) -> tuple[m.CodeFile, ...]:
    """Return the code of the program that trains `task`, sorted by name; () if it has none of its own."""
    main, program = sys.modules.get("__main__"), program_of(task)
    is_notebook = main is not None and not hasattr(main, "__file__")
    if not is_notebook and not any(map(_file_of, (main, sys.modules.get(type(program).__module__)))):
        return ()
    found = dict(_cells(main, task)) if is_notebook else {}
    for name, module in list(sys.modules.items()):
        path = _file_of(module)
        if path and (hashed := _hash_of(path)):
            found[_shown(name, path)] = hashed
    return tuple(m.CodeFile(name, found[name]) for name in sorted(found)[:CODE_FILES_MAX])


def _file_of(module: ModuleType | None) -> str:
    """Return the module's source file if it is the user's, else the empty string."""
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") and is_own_file(path) else ""


def _shown(name: str, path: str) -> str:
    """Return the module's name as a path. The script, and a file that a configuration names, have other names."""
    stem = Path(path).stem
    parts = name.split(".")
    if stem == "__init__":
        return "/".join([*parts, "__init__.py"])
    return f"{'/'.join(parts)}.py" if parts[-1] == stem else Path(path).name


def _hash_of(path: str) -> str:
    try:
        stat = Path(path).stat()
        key = (path, stat.st_mtime_ns, stat.st_size)
        if key not in _known:
            _known[key] = blake3(Path(path).read_bytes()).hexdigest()[:_HASH_CHARACTERS]
        return _known[key]
    except OSError:
        return ""  # removed since it was imported, or in an archive


# -- notebooks ---------------------------------------------------------------------------------------------------------


def _cells(main: ModuleType | None, task: Any) -> Iterator[tuple[str, str]]:
    """Yield name and hash of what a notebook's cells define, and of the cells that train."""
    for name, value in list(vars(main).items()):
        if getattr(value, "__module__", None) == "__main__" and (codes := tuple(_codes_in(value))):
            yield f"{name} (notebook)", _hash_of_codes(codes)
    cells = tuple(one for one in codes_of(task) if one.co_name.startswith("<"))
    if cells:
        yield "the cell with the loop (notebook)", _hash_of_codes(cells)


def _codes_in(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of the methods of a class."""
    for one in vars(value).values() if isinstance(value, type) else (value,):
        for function in (one, getattr(one, "__func__", None), getattr(one, "fget", None)):
            if isinstance(function, FunctionType):
                yield function.__code__


def _hash_of_codes(codes: tuple[CodeType, ...]) -> str:
    return blake3(repr([_content(one) for one in codes]).encode()).hexdigest()[:_HASH_CHARACTERS]


def _content(code: CodeType) -> tuple[Any, ...]:
    """Return what a piece of code does, without its place: a cell has another number each time it is run."""
    return code.co_code, code.co_names, code.co_varnames, tuple(map(_constant, code.co_consts))


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return _content(value)
    # Each process has another order of its texts.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
