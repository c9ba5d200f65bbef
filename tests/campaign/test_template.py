"""What the template holds of this project is the same as in a process that imports it itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.tree import PRODUCT, parse, python_files, shown

# Calls whose result depends on the process, the machine or the moment.
_OUTSIDE = re.compile(
    r"os\.(environ\.\w+|getenv|getcwd|getpid|getppid|open|stat)|time\.\w+|open|.*\.(cwd|read_text|read_bytes|open)"
    r"|random\.\w+|secrets\.\w+|threading\.Thread|socket\.\w+"
)
# The fork of a template reads this one again.
_ANEW = ["tolariad/failpoints.py"]


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when their module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in (*child.decorator_list, *child.args.defaults, *filter(None, child.args.kw_defaults)):
                yield part
                yield from at_import(part)
        elif not isinstance(child, ast.Lambda):
            yield child
            yield from at_import(child)


def test_only_the_failpoints_read_their_surroundings_when_they_are_imported():
    """A fork has these modules from its template, which was started in another environment, folder and moment."""
    found = [
        shown(path, node.lineno)
        for path in python_files(*PRODUCT)
        for node in at_import(parse(path))
        if isinstance(node, ast.Call) and _OUTSIDE.fullmatch(ast.unparse(node.func))
    ]

    assert [place.partition(":")[0] for place in found] == _ANEW, found
