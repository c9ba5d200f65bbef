"""A refusal is one sentence: what happened and what to do, in the words of the form in use; no chain of errors."""

from __future__ import annotations

import re
import traceback

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from journal.files import OS_FILES, release_locks, take_locks
from tests.library.loops.programs import loader
from tests.library.small import CONFIG, data, made, network
from tolariad import Tolaria
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.daemon.request import StartRefused
from tolariad.library import RunFailed
from tolariad.trainer.errors import SetupRefused

# Those of the test, the call, the iterators of a loop, and the place where the refusal is raised once more.
FRAMES_MAX = 8


class Centers(nn.Module):
    """A loss with parameters."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"table": nn.Embedding(4, 8)})


def loop(run_dir, model=None, *, epochs=1, of=None, optimizers=None, **options):
    model = model or network()
    run = made(run_dir, **options).run(model, optimizers, loader(of=of or data()))
    for _ in run.epochs(epochs):
        for inputs, targets in run.batches():
            run.step(cross_entropy(model(inputs), targets))


def while_it_lives(run_dir):
    """Start the program in its folder while another process, as it were, holds the journal."""
    loop(run_dir)
    held = take_locks(OS_FILES, run_dir / "journal", "")
    try:
        loop(run_dir, epochs=2)
    finally:
        release_locks(OS_FILES, held)


def with_other_data(run_dir):
    loop(run_dir)
    other = data()
    other.tensors = (other.tensors[0] + 1, other.tensors[1])
    loop(run_dir, of=other, epochs=2)


def with_another_model(run_dir):
    loop(run_dir)
    loop(run_dir, nn.Linear(16, 5), epochs=2)


def with_another_configuration(run_dir):
    loop(run_dir)
    loop(run_dir, epochs=2, rng_seed=6)


def without_a_file(run_dir):
    Tolaria(run_dir / "nothing.yaml")


def in_no_folder(run_dir):
    run_dir.write_text("")
    loop(run_dir)


REFUSED = [
    (while_it_lives, StartRefused, "another process runs"),
    (with_other_data, StartRefused, r"Tolaria\(\.\.\., accept_data=True\)"),
    (with_another_model, RunFailed, "Give the program what it had; correct it and start the program again$"),
    (with_another_configuration, StartRefused, r"rng_seed: 5 in the run, 6 now"),
    (without_a_file, ConfigError, "cannot be read: No such file"),
    (in_no_folder, StartRefused, "Not a directory"),
]


@pytest.mark.parametrize(("program", "kind", "says"), REFUSED, ids=[one[0].__name__ for one in REFUSED])
def test_a_refusal_of_the_library_is_one_error_without_those_that_led_to_it(tmp_path, program, kind, says):
    """Of its type, with one traceback that is short, and no word of a command line that a program does not have."""
    with pytest.raises(kind, match=says) as refused:
        program(tmp_path / "run")
    shown = "".join(traceback.format_exception(refused.value))
    assert shown.count("Traceback (most recent call last)") == 1
    assert len(traceback.extract_tb(refused.value.__traceback__)) <= FRAMES_MAX
    assert "--" not in str(refused.value).replace("--dir", "")


@pytest.mark.parametrize("form", ["loop", "train"])
def test_a_parameter_that_the_model_does_not_hold_is_named_in_the_words_of_the_form(tmp_path, form):
    """By its name in the module that holds it, and its shape; the remedy names the call that takes the model."""
    model, loss = network(), Centers()
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": loss.parameters()}], lr=0.1)
    says = re.escape("group 1 of the optimizer holds inner.table.weight of a Centers (shape (4, 8)), which is not")
    call = "run" if form == "loop" else "train"
    run_dir = tmp_path / "run"

    def start():
        if form == "loop":
            loop(run_dir, model, optimizers=optimizer)
        else:
            made(run_dir).train(model, loader(), None, 1, optimizer=optimizer)

    with pytest.raises(SetupRefused, match=rf"{says}.*the model that you pass to {call}\(\)") as refused:
        start()
    assert "cfg" not in str(refused.value)


def test_what_is_no_optimizer_is_not_passed_over(tmp_path):
    """A list of optimizers once meant the configured one, without a word."""
    model = network()
    several = [torch.optim.SGD(model.parameters(), lr=0.1)]
    with pytest.raises(SetupRefused, match=r"pass to run\(\) is a list: pass a torch Optimizer, a dict of several"):
        Tolaria(CONFIG, run_dir=tmp_path / "run").run(model, several, loader())
