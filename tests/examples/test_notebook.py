"""The notebook runs, and says today what stands in it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook" / "training.ipynb"


def test_the_notebook_runs_to_the_output_that_stands_in_it(tmp_path, monkeypatch):
    """Cell by cell inside a running loop, as in Jupyter; every printed line is the recorded one."""
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    recorded = ["".join(line for output in cell["outputs"] for line in output.get("text", [])) for cell in cells]
    assert any(recorded)

    async def run() -> list[str]:
        namespace: dict[str, object] = {}
        said = []
        for cell in cells:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("".join(cell["source"]), "cell", "exec"), namespace)
            said.append(out.getvalue())
        return said

    found = asyncio.run(run())
    # How many events there are depends on which checkpoints fit between the epochs.
    count = recorded[3].split(" ", 1)
    assert found[3].split(" ", 1)[1] == count[1]
    assert [one for n, one in enumerate(found) if n != 3] == [one for n, one in enumerate(recorded) if n != 3]
