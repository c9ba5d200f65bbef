"""The line in a notebook: rewritten while the run trains, with the phase at its end; elsewhere nothing is shown."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tolariad import Tolaria
from tolariad.library import live_line as module
from tolariad.library.live_line import ProgressWords, live_line


class FakeDisplay:
    """Jupyter's display: keeps what each call shows. `update` raises once `is_closed` is set."""

    def __init__(self, *, kernel=True):
        self.shown, self.is_closed = [], False
        self.update_came = threading.Event()
        shell = SimpleNamespace(kernel=object()) if kernel else SimpleNamespace()
        self.display = SimpleNamespace(display=self._show)
        self.get_ipython = lambda: shell

    def _show(self, data, *, raw, display_id):
        assert raw
        assert display_id is True
        self.shown.append([data["text/plain"]])
        return self

    def update(self, data, *, raw):
        assert raw
        self.update_came.set()
        if self.is_closed:
            raise OSError("the kernel takes no output")
        self.shown[-1].append(data["text/plain"])


@pytest.fixture
def notebook(monkeypatch):
    fake = FakeDisplay()
    monkeypatch.setitem(sys.modules, "IPython", fake)
    return fake


def test_a_run_in_a_notebook_is_one_line(notebook, tmp_path, capsys):
    """`train` shows one display, whose last text has the phase, the place and the results; nothing is printed."""
    torch.manual_seed(0)
    data = (torch.randn(32, 4), torch.arange(32) % 2)
    model = nn.Linear(4, 2)
    tolaria = Tolaria({"tolaria": {"rng_seed": 7, "torch_threads": 1}}, run_dir=tmp_path / "run")
    result = tolaria.train(model, data, data, epochs=2)

    ((*_, last),) = notebook.shown
    assert last.startswith(f"completed  epoch 2/2  step {result.steps}  loss ")
    assert f"acc {100 * result.metrics['accuracy']:.2f} %" in last
    assert capsys.readouterr().out == ""


def test_the_words_have_place_figures_and_speed():
    """Before the first step it starts; the speed is that of the last calls, and begins anew after a rollback."""
    told, now = {}, [0.0]
    words = ProgressWords(lambda: told, 5, lambda: now[0])

    def after(seconds, step):
        now[0] += seconds
        told.update(step=float(step), epoch=2.0, loss=0.5, lr=0.003, val_accuracy=0.975, val_loss=0.25)
        told["val_\x1b[2Jm"] = 3.0
        return words()

    assert words() == "starting"
    line = "epoch 2/5  step {}  loss 0.5  lr 0.003  acc 97.50 %  val_loss 0.25  val_\\x1b[2Jm 3"
    assert after(1, 10) == line.format(10)
    assert after(2, 30) == line.format(30) + "  10.0 steps/s"
    assert after(1, 20) == line.format(20)
    assert after(1, 25) == line.format(25) + "  5.0 steps/s"
    assert words("stopped") == "stopped  " + line.format(25)


def test_a_notebook_that_takes_no_output_ends_the_line_and_not_the_run(notebook, caplog):
    """The block runs to its end; the log says it."""
    notebook.is_closed = True
    with live_line(ProgressWords(dict, 1), lambda: "running"):
        assert notebook.update_came.wait(60)

    assert notebook.shown == [["starting"]]
    assert "the run goes on" in caplog.text


@pytest.mark.parametrize("ipython", [None, FakeDisplay(kernel=False)], ids=["a script", "IPython on a terminal"])
def test_elsewhere_nothing_is_shown(monkeypatch, ipython):
    """No thread is started."""
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(module.threading, "Thread", None)
    with live_line(ProgressWords(dict, 1), lambda: "running"):
        pass

    assert ipython is None or ipython.shown == []
