"""A rank that fails is named, and its neighbours' errors are not taken for the task's. What cannot be is refused."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tests.library.ranks.groups import BATCH, EPOCHS, Program, start, until_done
from tests.library.small import CONFIG, data
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.library import crew, joined
from tolariad.library.ranks import for_ranks
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.setup import Place

STEPS = EPOCHS * 5


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """End a rank soon that waits for one that is gone."""
    monkeypatch.setattr(crew, "UNNOTICED_S", 2.0)


def raising(rank, step, once=None):
    """Return a hook that raises in this rank after this step. `once`: a file that is there until it has done so."""

    def raise_(_, mine, made):
        if (mine, made) == (rank, step) and (once is None or once.exists()):
            if once is not None:
                once.unlink()
            raise ZeroDivisionError("of the task")

    return raise_


@pytest.mark.sample(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_of_one_rank_is_the_only_one_that_is_recorded(tmp_path, rank):
    """The other rank's error of the network follows from it. The group comes back, and the run ends."""
    program = Program(tmp_path / "run")
    (tmp_path / "once").touch()
    program.after = raising(rank, 6, tmp_path / "once")
    program.holds = True
    found, starts = until_done(2, program, tmp_path)
    (raised,) = of(events_of(tmp_path / "run"), m.ExceptionRaised)

    assert starts == 2
    assert found[0]["steps"] == STEPS
    assert "ZeroDivisionError" in raised.traceback
    assert ("Rank 1" in raised.traceback) == (rank == 1)


def test_a_rank_that_is_killed_twice_is_named_and_does_not_fail_the_run(tmp_path):
    """Two equal exceptions of a task in a row would."""
    program = Program(tmp_path / "run")
    for number in range(2):
        (tmp_path / str(number)).touch()

    def die(_, rank, step):
        left = sorted(path for path in tmp_path.iterdir() if path.name in ("0", "1"))
        if (rank, step) == (1, 6) and left:
            left[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    program.before, program.holds = die, True
    found, starts = until_done(2, program, tmp_path)
    raised = of(events_of(tmp_path / "run"), m.ExceptionRaised)

    assert starts == 3
    assert found[0]["phase"] == "completed"
    assert [("rank 1" in one.traceback, "SIGKILL" in one.traceback) for one in raised] == [(True, True)] * 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_is_named_and_killed(tmp_path, monkeypatch, rank):
    """The others would wait for it for half an hour."""
    for module in (crew, joined):
        monkeypatch.setattr(module, "SILENT_S", 1.0)
    program = Program(tmp_path / "run")
    (tmp_path / "once").touch()

    def stop(_, mine, step):
        if (mine, step) == (rank, 4) and (tmp_path / "once").exists():
            (tmp_path / "once").unlink()
            os.kill(os.getpid(), signal.SIGSTOP)

    program.before = stop
    found, starts = until_done(2, program, tmp_path)

    assert (starts, found[0]["steps"]) == (2, STEPS)
    if rank == 1:
        (raised,) = of(events_of(tmp_path / "run"), m.ExceptionRaised)
        assert "rank 1" in raised.traceback
        assert "was stopped" in raised.traceback


def refusal_of(ranks, program, folder):
    """Return why each rank of a group did not begin."""
    return [one["error"] for one in start(ranks, program, folder)]


def uneven(program):
    """Give rank 1 another loader."""
    plain = program.loader

    def loader():
        if torch.distributed.get_rank():
            return DataLoader(data(16), BATCH), None
        return plain()

    program.loader = loader


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (uneven, "the number of batches in an epoch is 5 on rank 0 and 2 on rank 1"),
        (lambda one: setattr(one, "wraps", lambda model: model), "pass the model that DistributedDataParallel returns"),
        (lambda one: setattr(one, "wraps", nn.DataParallel), "pass the model that DistributedDataParallel returns"),
        (
            lambda one: setattr(one, "wraps", lambda net: DistributedDataParallel(net, static_graph=True)),
            "static_graph",
        ),
        (lambda one: one.options.update(parallel={"ranks": 3}), "parallel.ranks is 3, and 2 ranks were started"),
        (lambda one: one.options.update(prune={"enabled": True}), r"cannot do this yet: prune.enabled"),
        (lambda one: one.options.update(stop={"tokens": 7}), r"cannot do this yet: stop.tokens"),
    ],
    ids=["length", "bare", "DataParallel", "static_graph", "ranks", "prune", "tokens"],
)
def test_what_several_ranks_cannot_do_is_refused_on_each(tmp_path, change, why):
    """No rank waits for one that was refused, and nothing is trained."""
    program = Program(tmp_path / "run")
    change(program)

    assert all(why in one for one in refusal_of(2, program, tmp_path))


def test_the_number_of_ranks_is_fixed_for_the_run(tmp_path):
    """Three ranks do not go on with the run of two."""
    assert start(2, Program(tmp_path / "run", epochs=1), tmp_path)[0]["phase"] == "completed"

    found = start(3, Program(tmp_path / "run"), tmp_path)

    assert all("parallel.ranks" in one["error"] for one in found)


@pytest.mark.parametrize(
    ("restarts", "shared", "is_said"), [("3", "True", True), ("0", "True", False), ("3", "False", False)]
)
def test_a_store_that_is_kept_over_torchruns_restarts_is_warned_of(monkeypatch, caplog, restarts, shared, is_said):
    """Rank 0 says which variable helps. What torch does is in findings/torchrun_restarts_share_a_store.sh."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    for rank in (0, 1):
        caplog.clear()
        for_ranks(Settings(), Place(rank, 2))
        assert ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in caplog.text) is (is_said and rank == 0)


def test_a_process_of_torchrun_without_a_group_is_refused(tmp_path, monkeypatch):
    """Each would train a run of its own in the same folder. train() is not for several ranks."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")

    with pytest.raises(SetupRefused, match=r"started 2 processes .*init_process_group"):
        Tolaria(CONFIG, run_dir=tmp_path / "run").run(nn.Linear(16, 4), None, DataLoader(data(), 8))


def test_several_ranks_in_the_settings_of_one_process_are_refused(tmp_path):
    """The sentence says how they are started."""
    config = {"tolaria": {**CONFIG["tolaria"], "parallel": {"ranks": 2}}}

    with pytest.raises(SetupRefused, match="torchrun --nproc-per-node 2"):
        Tolaria(config, run_dir=tmp_path / "run").train(nn.Linear(16, 4), data(), None, 1)


def test_ranks_that_train_different_models_are_found_at_their_step(tmp_path):
    """A rank whose gradients are not averaged has another norm. No update is made.

    Who finds it first ends; another rank may see that end before it has compared.
    """
    program = Program(tmp_path / "run")
    program.before = lambda one, rank, step: setattr(one.wrapped, "require_backward_grad_sync", step != 5)
    found = start(2, program, tmp_path)

    assert any("RanksDiffer: step 5: the gradient norm of rank 0" in one["error"] for one in found)
    assert all("RanksDiffer" in one["error"] or "RankLost" in one["error"] for one in found)
    assert len(of(events_of(tmp_path / "run"), m.StepCompleted)) == 4
