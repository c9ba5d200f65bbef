"""The template's copy of this project is the same as in a process that imports it itself."""

from __future__ import annotations

import ast
import json
import os
import re
import threading
import time
from collections.abc import Iterator

from tests.house.tree import PRODUCT, parse, python_files, shown

# Calls whose result depends on the process, the machine or the moment.
_OUTSIDE = re.compile(
    r"os\.(environ\.\w+|getenv|getcwd|getpid|getppid|open|stat)|time\.\w+|open|.*\.(cwd|read_text|read_bytes|open)"
    r"|random\.\w+|secrets\.\w+|threading\.Thread|socket\.(?!CMSG_LEN)\w+"
)
# The fork of a template reads this one again.
_ANEW = ["tolariad/failpoints.py"]
# And this one never: whether private names of torch are used is chosen for a template and all its forks.
_ONCE = ["tolariad/trainer/torch_private/choice.py"]


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

    assert [place.partition(":")[0] for place in found] == [*_ANEW, *_ONCE], found


TRAINS = """
import json, sys
held = set(sys.modules)
import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset
from tolariad import Tolaria
rows = DataLoader(TensorDataset(torch.randn(8, 4), torch.arange(8) % 2), 4)
config = {"tolaria": {"rng_seed": 1, "torch_threads": 1, "journal": {"segment_bytes": 65536}}}
drawn = numpy.random.random()
Tolaria(config, run_dir="run").train(torch.nn.Linear(4, 2), rows, rows, 1)
print(json.dumps([drawn, sorted(name for name in set(sys.modules) - held if name.startswith("tolariad"))]))
"""


def test_a_fork_imports_nothing_of_a_trainer_again_and_draws_its_own_numbers(template, tmp_path):
    """The import of a trainer's modules takes longer than most of the runs that tests start."""
    program = tmp_path / "trains.py"
    program.write_text(TRAINS)
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        ended = template.run([], folder=tmp_path / name, program=str(program))
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads(ended.stdout.splitlines()[-1]))

    assert [imported for _, imported in found] == [[], []]
    assert found[0][0] != found[1][0]


def test_every_thread_that_asks_for_the_end_of_a_fork_is_told_it(template, tmp_path):
    """One waits, others look again and again: the end comes once over the socket, and all of them have it."""
    (tmp_path / "ends.py").write_text("import sys, time; time.sleep(0.2); sys.exit(3)")
    with (tmp_path / "log").open("ab") as log:
        forked = template.start(
            [], environment=os.environ, folder=tmp_path, log=log.fileno(), shells=0, program=str(tmp_path / "ends.py")
        )
    told = []

    def look():
        while (code := forked.poll()) is None:
            time.sleep(0.001)
        told.append(code)

    threads = [threading.Thread(target=look) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: told.append(forked.wait(60))))
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert told == [3] * 4
