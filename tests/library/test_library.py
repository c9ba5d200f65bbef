"""Tolaria in a user's program: it trains, records, resumes bit for bit, stops on ^C, and restores global state."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from journal import Reader, Verdict, verify
from tests.library.inside import written_at_once
from tests.library.small import CONFIG, EPOCHS, STEPS_PER_EPOCH, bits, data, made, network, train
from tests.recorded import Stop, dies_at, events_of, of
from tests.waiting import wait_for
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import decode_event
from tolariad.daemon.request import StartRefused
from tolariad.library.attached import Attached
from tolariad.trainer.errors import SetupRefused


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The bits of the undisturbed run."""
    model = network()
    result = train(tmp_path_factory.mktemp("calm") / "run", model=model)
    assert result.phase == "completed"
    return bits(model)


def test_a_run_is_trained_and_recorded_to_its_end(tmp_path):
    """The result describes the run; the journal holds every step and verifies."""
    tolaria = Tolaria(CONFIG, run_dir=tmp_path / "run")
    result = train(tmp_path, tolaria=tolaria)
    journal = tmp_path / "run" / "journal"
    steps = [e.step for entry in Reader(journal) if isinstance(e := decode_event(entry.event), m.StepCompleted)]

    assert (result.phase, result.epochs, result.steps) == ("completed", EPOCHS, EPOCHS * STEPS_PER_EPOCH)
    assert result.run_dir == tmp_path / "run"
    assert set(result.metrics) == {"loss", "accuracy"}
    assert (result.run_dir / "checkpoints" / result.last_checkpoint / "manifest.json").is_file()
    assert steps == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    assert verify(journal).verdict is Verdict.CLEAN
    assert tolaria.get_metrics()["step"] == EPOCHS * STEPS_PER_EPOCH
    assert tolaria.get_metrics()["val_accuracy"] == result.metrics["accuracy"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("at", [3, 11, 16, 23])
def test_what_a_hook_raises_comes_to_the_caller_and_the_next_call_goes_on_to_the_bit(tmp_path, calm, at):
    """The death is recorded, the hook's exception is raised, and the end equals that of an undisturbed run."""
    with pytest.raises(Stop):
        train(tmp_path / "run", dies_at(at))
    model = network()
    result = train(tmp_path / "run", model=model)

    assert result.phase == "completed"
    assert bits(model) == calm


def test_an_interrupt_stops_at_a_boundary_with_a_checkpoint_and_the_next_call_goes_on(tmp_path, calm):
    """^C and a notebook's stop button stop the run; the earlier signal handler is restored."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(step):
        if step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = train(tmp_path / "run", interrupt)
    events = events_of(tmp_path / "run")
    after = signal.getsignal(signal.SIGINT)
    model = network()
    completed = train(tmp_path / "run", model=model)

    assert stopped.phase == "stopped"
    assert 10 <= stopped.steps < EPOCHS * STEPS_PER_EPOCH
    # Of that very step, so nothing is run again: a stop in order, and not a death that was survived.
    assert [event.step for event in events if isinstance(event, m.CheckpointCommitted)][-1] == stopped.steps
    assert after is before
    assert completed.phase == "completed"
    assert bits(model) == calm


def test_sigterm_stops_with_a_checkpoint_and_ends_the_program(tmp_path, calm, caplog):
    """As a scheduler sends it before it kills. The program is told how to go on; its next start does so."""
    before, seen = signal.getsignal(signal.SIGTERM), []

    def terminate(step):
        if step == 10:
            os.kill(os.getpid(), signal.SIGTERM)
            # A second one ends the program at once, and so does the first one that a child gets.
            seen.append(signal.getsignal(signal.SIGTERM))

    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", terminate)
    events = events_of(tmp_path / "run")
    stopped = next(event for event in events if isinstance(event, m.RunStopped))
    model = network()

    assert ended.value.code == 143
    assert (before, seen, signal.getsignal(signal.SIGTERM)) == (signal.SIG_DFL, [signal.SIG_DFL], signal.SIG_DFL)
    assert 10 <= stopped.step < EPOCHS * STEPS_PER_EPOCH
    assert [event.step for event in events if isinstance(event, m.CheckpointCommitted)][-1] == stopped.step
    assert [
        line
        for line in caplog.messages
        if line.startswith("SIGTERM: the run stops") and "Start the program again" in line
    ]
    assert train(tmp_path / "run", model=model).phase == "completed"
    assert bits(model) == calm


def test_a_child_is_ended_by_sigterm_and_a_programs_own_handler_is_left(tmp_path):
    """A pool that ends its workers with SIGTERM would wait for ever for one that passes it to the run."""
    codes, own = [], []

    def in_a_child(step):
        if step == 3 and not codes:
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert train(tmp_path / "one", in_a_child).phase == "completed"
    assert codes == [-signal.SIGTERM]
    before = signal.signal(signal.SIGTERM, lambda *_: own.append(1))
    try:
        result = train(tmp_path / "two", lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 3 else None)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.phase, own) == ("completed", [1])


def test_a_process_that_is_killed_goes_on_where_it_was(tmp_path, calm):
    """SIGKILL within an epoch, in a forked child; the parent's run ends with the undisturbed bits."""

    def die(step):
        if step == 13:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        train(tmp_path / "run", die)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    model = network()
    result = train(tmp_path / "run", model=model)

    assert os.WTERMSIG(status) == signal.SIGKILL
    assert result.phase == "completed"
    assert bits(model) == calm


def test_a_running_loop_is_no_hindrance(tmp_path, calm):
    """As in a notebook: `train` is called in a coroutine and uses no event loop."""

    async def cell():
        model = network()
        return train(tmp_path / "run", model=model), model

    result, model = asyncio.run(cell())

    assert result.phase == "completed"
    assert bits(model) == calm


def test_another_thread_may_train_and_ask(tmp_path, calm):
    """Outside the main thread no signal handler is changed; a checkpoint ordered from here is waited for."""
    # Made before: random numbers are the process's, so nobody else may draw while a run trains.
    other, model, results = network(), network(), []
    tolaria = Tolaria(CONFIG, run_dir=tmp_path / "run")
    amid, go_on = threading.Event(), threading.Event()

    def hook(step):
        if step == 9:
            amid.set()
            go_on.wait(60)

    def is_ordered():
        return of(events_of(tmp_path / "run"), m.CheckpointRequested)

    worker = threading.Thread(target=lambda: results.append(train(tmp_path, hook, model=model, tolaria=tolaria)))
    worker.start()
    amid.wait(60)
    with pytest.raises(RuntimeError, match="another Tolaria"):
        train(tmp_path / "other", model=other)
    # The run goes on when it has the order.
    going = threading.Thread(target=lambda: (wait_for(is_ordered), go_on.set()))
    going.start()
    taken = tolaria.checkpoint(tmp_path / "taken")
    going.join()
    worker.join()

    assert taken
    assert (tmp_path / "taken" / "manifest.json").is_file()
    assert results[0].phase == "completed"
    assert bits(model) == calm


def test_a_hook_may_order_a_checkpoint_and_a_finished_run_still_has_one(tmp_path):
    """The training thread does not wait; the copy exists when `train` returns."""
    tolaria, ordered = Tolaria(CONFIG, run_dir=tmp_path / "run"), []

    def hook(step):
        if step == 5:
            ordered.append(tolaria.checkpoint(tmp_path / "from-hook"))

    train(tmp_path, hook, tolaria=tolaria)

    assert ordered == [True]
    assert (tmp_path / "from-hook" / "manifest.json").is_file()
    assert tolaria.checkpoint(tmp_path / "afterwards")
    with pytest.raises(FileExistsError, match="afterwards"):
        tolaria.checkpoint(tmp_path / "afterwards")


@pytest.mark.parametrize("at", [9, 16, 20])
def test_a_rollback_goes_back_on_a_new_branch_and_ends_with_the_bits_of_the_run_that_never_did(tmp_path, calm, at):
    """Ordered by a hook: the same batches give the same steps again, and the journal has both attempts."""
    tolaria, model, ordered = Tolaria(CONFIG, run_dir=tmp_path / "run"), network(), []

    def hook(step):
        if step == at and not ordered:
            ordered.append(tolaria.rollback(1))

    result = train(tmp_path, hook, model=model, tolaria=tolaria)
    events = events_of(tmp_path / "run")
    (done,) = [e for e in events if isinstance(e, m.RolledBack)]
    steps = [(e.branch, e.step) for e in events if isinstance(e, m.StepCompleted)]

    assert ordered == [True]
    # Epoch 1's checkpoint may still be on its way to the disk; then checkpoint 0 is the newest.
    assert done.step in (0, STEPS_PER_EPOCH)
    assert (done.branch, done.parent, done.by_start) == (1, 0, False)
    assert steps[-1] == (1, EPOCHS * STEPS_PER_EPOCH)
    assert [step for branch, step in steps if branch == 1] == list(range(done.step + 1, result.steps + 1))
    assert bits(model) == calm
    assert not tolaria.rollback(1)


def test_a_run_that_dies_after_a_rollback_resumes_on_its_new_branch(tmp_path, calm, monkeypatch):
    """Only steps of the new branch are re-run, never abandoned ones, and they give the same results."""
    written_at_once(monkeypatch.setattr)
    tolaria, ordered = Tolaria(CONFIG, run_dir=tmp_path / "run"), []

    def hook(step):
        if step == 18 and not ordered:
            ordered.append(tolaria.rollback(1))
        elif step == 14 and ordered:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tmp_path, hook, tolaria=tolaria)
    model = network()
    result = train(tmp_path / "run", model=model)
    events = events_of(tmp_path / "run")
    (rerun,) = [e for e in events if isinstance(e, m.RerunFinished)]

    (back,) = [e for e in events if isinstance(e, m.RolledBack)]
    assert back.step == STEPS_PER_EPOCH
    assert (rerun.first, rerun.last, rerun.first_difference) == (back.step + 1, 13, None)
    assert result.phase == "completed"
    assert bits(model) == calm


def test_figures_are_those_of_the_last_durable_step(tmp_path, monkeypatch):
    """Asked in a hook, without a word to the recorder. After a rollback they are the target's."""
    written_at_once(monkeypatch.setattr)
    tolaria, seen, back = made(tmp_path / "run", journal={**CONFIG["tolaria"]["journal"], "sync": "step"}), [], []

    def hook(step):
        figures = tolaria.get_metrics()
        seen.append((step, int(figures["step"]), "val_loss" in figures))
        if step == 20 and not back:
            back.append(tolaria.rollback(1))

    train(tmp_path, hook, tolaria=tolaria)

    assert back == [True]
    # The gate before a step waits for the record of the one before.
    assert all(durable in (step - 1, step) for step, durable, _ in seen)
    assert [is_validated for step, _, is_validated in seen if step == 12] == [True, True]


def test_a_completed_run_says_so_and_gives_its_parameters(tmp_path, calm):
    """Called again, `train` does not train, and returns the trained parameters."""
    train(tmp_path / "run")
    model = network()
    result = train(tmp_path / "run", model=model)

    assert (result.phase, result.steps) == ("completed", EPOCHS * STEPS_PER_EPOCH)
    assert bits(model) == calm


def test_a_copy_of_a_checkpoint_whose_end_never_comes_is_given_up(tmp_path):
    """The run has ended without it. Neither `checkpoint` nor the end of `train` waits for ever."""
    run = SimpleNamespace(_recorder=SimpleNamespace(over="stopped"), _forget=lambda _: None)

    assert not Attached._copy(run, 7, queue.SimpleQueue(), tmp_path / "copy")


def test_what_was_borrowed_is_given_back(tmp_path):
    """Random state, number of threads and deterministic switches are restored for the program."""
    torch.set_num_threads(2)
    torch.manual_seed(77)
    before = torch.get_rng_state(), torch.get_num_threads(), torch.get_deterministic_debug_mode()
    train(tmp_path / "run", model=network_with_state(before[0]))
    after = torch.get_rng_state(), torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)

    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def network_with_state(state: torch.Tensor) -> nn.Module:
    """A network whose construction leaves the generator at `state`."""
    model = network()
    torch.set_rng_state(state)
    return model


def test_workers_of_a_loader_hold_nothing_of_the_run(tmp_path):
    """A forked worker closes journal and channel: it must not keep a lock after its parent has ended."""
    own = str(tmp_path)

    class Looking(TensorDataset):
        def __getitem__(self, index):
            found = [link for link in open_links() if link.startswith(own) or "tolaria-page" in link]
            assert found == []
            return super().__getitem__(index)

    loader = DataLoader(Looking(*data().tensors), batch_size=24, num_workers=1)
    result = Tolaria(CONFIG, run_dir=tmp_path / "run").train(network(), loader, None, 1)

    assert result.phase == "completed"


def open_links() -> list[str]:
    """Return the open files of this process, without the descriptor of the directory listing."""
    links = []
    for entry in tuple(Path("/proc/self/fd").iterdir()):
        try:
            links.append(str(entry.readlink()))
        except OSError:
            continue
    return links


def test_values_are_fitted_where_targets_are_not_classes(tmp_path):
    """Without a task, floating-point targets are values: mean squared error, no accuracy."""
    inputs = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1)), batch_size=16)
    result = Tolaria(CONFIG, run_dir=tmp_path / "run").train(nn.Linear(8, 1), loader, loader, 2)

    assert result.phase == "completed"
    assert set(result.metrics) == {"loss"}


def test_another_configuration_is_refused_and_changes_nothing(tmp_path):
    """It is refused as by the daemon, with the key that differs."""
    train(tmp_path / "run")
    before = sorted((path.name, path.stat().st_size) for path in (tmp_path / "run" / "journal").iterdir())
    other = {"tolaria": {**CONFIG["tolaria"], "rng_seed": 6}}

    with pytest.raises(StartRefused, match="rng_seed"):
        train(tmp_path, tolaria=Tolaria(other, run_dir=tmp_path / "run"))
    after = sorted((path.name, path.stat().st_size) for path in (tmp_path / "run" / "journal").iterdir())

    assert after == before


def test_what_cannot_be_trained_is_refused_before_anything_is_recorded(tmp_path):
    """Refused: batches of an unknown kind, with what to do, and a model in a distributed wrapper."""
    with pytest.raises(SetupRefused, match="task="):
        Tolaria(CONFIG, run_dir=tmp_path / "a").train(nn.Linear(2, 2), DataLoader(torch.randn(8, 2)), None, 1)
    with pytest.raises(SetupRefused, match="DataParallel"):
        Tolaria(CONFIG, run_dir=tmp_path / "b").train(nn.DataParallel(nn.Linear(2, 2)), data(), None, 1)

    assert not list((tmp_path / "b" / "journal").glob("*.wal"))
