"""A call of `train` that cannot go on: an exception that repeats, a folder that is gone."""

from __future__ import annotations

import shutil
import time

import pytest
from torch import nn
from torch.utils.data import DataLoader

from tests.library.small import CONFIG, STEPS_PER_EPOCH, bits, data, network, train
from tests.recorded import events_of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.library.failed import RunFailed


class Allergic(nn.Module):
    """A model that raises in training if a certain sample is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.bad = data().tensors[0][40]

    def forward(self, inputs):
        if self.training and (inputs == self.bad).all(1).any():
            raise ZeroDivisionError("a bad sample")
        return self.layers(inputs)


@pytest.mark.parametrize("on_death", ["fail", "skip_batch"])
def test_a_batch_that_raises_twice_fails_the_run_or_is_skipped(tmp_path, on_death):
    """The caller gets the exception each time. After the second time the run has failed, or the batch is skipped."""
    run_dir = tmp_path / "run"
    tolaria = Tolaria({"tolaria": {**CONFIG["tolaria"], "on_death": on_death}}, run_dir=run_dir)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            tolaria.train(Allergic(), DataLoader(data(), batch_size=12, shuffle=True), None, 1)
    events = events_of(run_dir)
    failed = [one.why for one in events if isinstance(one, m.RunFailed)]
    assert [one.kind for one in events if isinstance(one, m.ExceptionRaised)] == ["builtins.ZeroDivisionError"] * 2
    if on_death == "skip_batch":
        result = tolaria.train(Allergic(), DataLoader(data(), batch_size=12, shuffle=True), None, 1)
        assert (failed, result.phase, result.steps) == ([], "completed", STEPS_PER_EPOCH - 1)
    else:
        assert len(failed) == 1
        assert "ZeroDivisionError: a bad sample" in failed[0]
        assert f"({__file__}:" in failed[0]


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_folder_that_is_gone_ends_the_call_with_one_sentence(tmp_path, how):
    """No further update is made. A moved run goes on at its new place, to the same bits."""
    run_dir, elsewhere, steps = tmp_path / "run", tmp_path / "elsewhere", []

    def hook(step):
        steps.append(step)
        if step == 10 and how == "moved":
            run_dir.rename(elsewhere)
        while step == 10 and run_dir.exists():
            # Again, if a checkpoint that is being written was in the way.
            shutil.rmtree(run_dir, ignore_errors=True)
        if step >= 10:
            # Much longer than a second in all, if nobody stops it.
            time.sleep(1.0)

    with pytest.raises(RunFailed, match=rf"(folder|file of) {run_dir}\S* was {how}.* training was stopped"):
        train(run_dir, hook)
    assert steps[-1] < 10 + 5 * STEPS_PER_EPOCH // 4
    assert not run_dir.exists()
    if how == "moved":
        model = network()
        assert train(elsewhere, model=model).phase == "completed"
        calm = network()
        train(tmp_path / "calm", model=calm)
        assert bits(model) == bits(calm)
