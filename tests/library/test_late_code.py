"""A module that a script imports after its first step is known from the next checkpoint on: an edit of it is named."""

from __future__ import annotations

SCRIPT = """
import os, signal, torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from tolariad import Tolaria

torch.manual_seed(0)
inputs = torch.randn(96, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = torch.nn.Linear(16, 4)
settings = {"rng_seed": 1, "torch_threads": 1, "determinism": "strict", "checkpoint": {"min_gap_s": 0},
            "checkpoint_interval_epochs": 1, "journal": {"segment_bytes": 1_000_000}}
tolaria = Tolaria({"tolaria": settings}, run_dir="run", accept_code="accept" in os.environ.get("WORD", ""))
run = tolaria.run(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, 12, shuffle=True))
for epoch in run.epochs(3):
    for x, y in run.batches():
        from late import scale
        run.step(cross_entropy(model(x), y) * scale())
        if epoch == 2 and run.batch == 4 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
print("done")
"""


def test_an_edit_of_a_module_that_is_imported_in_the_loop_is_named_and_one_word_goes_on(
    tmp_path, template, monkeypatch
):
    """Killed in the second epoch, edited, started again: it stops once more each time, until the word is given."""
    (tmp_path / "script.py").write_text(SCRIPT)
    late = tmp_path / "late.py"
    late.write_text("def scale():\n    return 1.0\n")

    def start():
        return template.run([], folder=tmp_path, program=str(tmp_path / "script.py"))

    assert start().returncode == -9
    late.write_text("def scale():\n    return 1.01\n")
    for _ in range(2):
        ended = start()
        assert ended.returncode == 1
        assert "late.py has changed since it was made" in ended.stderr
        assert "accept_code=True" in ended.stderr
    monkeypatch.setenv("WORD", "accept")
    ended = start()
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["done"]), ended.stderr
