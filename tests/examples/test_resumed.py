"""The examples of the documentation can be killed and started again: its data are the same at every start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.recorded import events_of, of
from tolariad.config import load
from tolariad.core import messages as m
from tolariad.core.calc.settings.rules import resolved_json
from tolariad.trainer.build import build

ROOT = Path(__file__).resolve().parents[2]
# Before the lines of a page: what its reader has.
READERS_OWN = {
    "README.md": """
import torch
from torch import nn
from torch.utils.data import TensorDataset
torch.manual_seed(0)
inputs = torch.randn(256, 4)
train_loader = val_loader = TensorDataset(inputs, inputs.argmax(1))
model = nn.Linear(4, 4)
open("my.yaml", "w").write("tolaria: {learning_rate: {warmup_epochs: 0}, batch_size: 32}")
""",
    "docs/library.md": "",
    "docs/exact-sums.md": """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from tolariad import Tolaria
torch.manual_seed(0)
inputs = torch.randn(256, 4)
train_loader = val_loader = TensorDataset(inputs, inputs.argmax(1))
model = nn.Linear(4, 4)
parallel = "torch_threads: 1, parallel: {exact: true, leaves: 4}"
open("exact.yaml", "w").write("tolaria: {learning_rate: {warmup_epochs: 0}, batch_size: 32, " + parallel + "}")
""",
}


def snippets() -> dict[str, str]:
    """The code of each page that calls `train`."""
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    found = {}
    for page in pages:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for block in blocks:
            if re.search(r"\.train\(.*epochs", block):
                found[str(page.relative_to(ROOT))] = block
    return found


def test_every_snippet_that_trains_is_tried():
    """A new one gets its row above."""
    assert set(snippets()) == set(READERS_OWN)


@pytest.mark.parametrize("page", READERS_OWN)
def test_a_snippet_that_trains_is_killed_and_resumes(tmp_path, template, page):
    """SIGKILL after step 12; the second start repeats the steps since the checkpoint, bit for bit, and completes."""
    script = tmp_path / "script.py"
    script.write_text(READERS_OWN[page] + snippets()[page])
    killed = template.run([], folder=tmp_path, program=str(script), failpoint="step:12")
    assert killed.returncode == -9, killed.stderr
    done = template.run([], folder=tmp_path, program=str(script))
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    events = events_of(run)
    assert [one.first_difference for one in of(events, m.RerunFinished)] == [None]
    assert len(of(events, m.RunCompleted)) == 1


@pytest.mark.parametrize("name", ["own_mlp", "vision"])
def test_an_example_finds_the_same_data_at_every_start(name):
    """Built twice, as two trainers do; items are compared, with the workers of its configuration too."""
    settings = load(ROOT / "examples" / name / "config.yaml")
    first, second = (build(resolved_json(replace(settings, device="cpu"))).environment for _ in range(2))
    assert first.data == second.data
    assert [len(one.items) for one in first.data] == [8, 8]
