"""Runs that are interrupted and resumed end with the same files as runs that are not, bit for bit."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from tolariad.core import messages as m
from tolariad.trainer.checkpoints.files import MODEL_FILE

TASKS = Path(__file__).with_name("tasks")
OVERFLOW = m.SkipReason.OVERFLOW


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_digits_resume_to_the_same_bits(resumes, configured, model):
    """Dropout, BatchNorm and whole-batch augmentation from the global generator are the same after two exits."""
    configuration = configured("digits", epochs=3, task_options={"model": model})
    resumes(configuration, 3, (4, 12), (30, 40))


def test_a_language_model_with_tied_weights_resumes_to_the_same_bits(resumes, configured):
    """A tied embedding is one tensor again after a resume, not two."""
    configuration = configured(f"{TASKS}/augmenting.py:FewCharacters", epochs=1, batch_size=8)
    resumes(configuration, 1, (3, 6))


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_in_a_data_loader_resumes_to_the_same_bits(resumes, configured, workers):
    """Items that draw from Python, NumPy and torch draw the same numbers after a resume within an epoch."""
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", epochs=2, batch_size=8, workers=workers)
    resumes(configuration, 2, (3, 5), (8, 9))


def test_updates_of_several_micro_batches_resume_to_the_same_bits(resumes, configured):
    """13 batches make six updates of 2 and one of 1; BatchNorm and dropout are the same."""
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", epochs=2, batch_size=4, accumulate=2)
    broken, _ = resumes(configuration, 2, (1, 4), (8, 11))
    counted = [(report.epoch, report.batch) for report in broken.steps.values()]
    assert counted == [(epoch, batch) for epoch in (1, 2) for batch in (2, 4, 6, 8, 10, 12, 13)]
    middle = [(written.step, written.epoch, written.batch) for written in broken.committed if written.batch]
    assert len(middle) == 2, "no checkpoint lies within an epoch"
    assert all(batch == 2 * (step - 7 * (epoch - 1)) for step, epoch, batch in middle)


def test_a_run_in_bf16_resumes_to_the_same_bits(resumes, configured):
    """Only forward passes use bf16; checkpoints are exact."""
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", epochs=2, batch_size=8, precision="bf16")
    resumes(configuration, 2, (1, 4), (8, 11))


def test_a_run_in_fp16_skips_the_same_steps_after_a_resume_and_ends_with_the_same_bits(daemon_in, configured):
    """Batches that overflow make no step and no rate; the loss scale, halved by each, comes back with a checkpoint."""
    configuration = configured(f"{TASKS}/augmenting.py:Overflowing", epochs=2, batch_size=8, precision="fp16")
    plain = daemon_in("plain", 2)
    trained = plain.train_here(configuration)
    assert [(s.step, s.epoch, s.batch) for s in plain.skips] == [(1, 1, 1), (4, 1, 5), (5, 1, 7), (5, 2, 1), (8, 2, 5)]
    assert list(plain.steps) == list(range(1, 10)), "a skipped step was counted"
    bare = configured(f"{TASKS}/augmenting.py:Overflowing", epochs=2, batch_size=8)
    schedule = daemon_in("schedule", 2)
    schedule.train_here(bare)
    assert [plain.steps[n].lr for n in plain.steps] == [schedule.steps[n].lr for n in plain.steps]
    assert trained.scaling.state()["scale"] == 2.0**16 / 2 ** len(plain.skips)

    broken = daemon_in("broken", 2)
    for skips, checkpoint_at in ((1, None), (2, 3), (4, None)):
        broken.exit_after_skips, broken.checkpoint_after_step = skips, checkpoint_at
        broken.train_here(configuration)
    broken.exit_after_step = 8
    broken.train_here(configuration)
    broken.train_here(configuration)
    assert broken.ended
    assert broken.files("end") == plain.files("end")
    assert msgspec.msgpack.encode(broken.skips) == msgspec.msgpack.encode(plain.skips), "bits, of NaN too"
    assert sum(report.skipped for report in broken.reruns()) >= 4


@pytest.mark.parametrize("then", [False, True], ids=["applied then", "skipped then"])
def test_the_journals_word_on_a_skip_is_followed_and_the_difference_named(daemon_in, configured, then):
    """Steps keep their numbers if other batches overflow in a re-run; an overflow never makes an update."""
    runs = [
        configured(f"{TASKS}/augmenting.py:Overflowing", epochs=1, batch_size=8, precision="fp16", task_options=options)
        for options in ({"overflow": then}, {"overflow": not then})
    ]
    daemon = daemon_in("changed", 1)
    daemon.exit_after_step = 4
    daemon.train_here(runs[0])
    steps_then, skips_then = dict(daemon.steps), list(daemon.skips)
    trained = daemon.train_here(runs[1])
    report = daemon.of(m.RerunReport)[0]
    assert (report.last, report.skipped) == (max(steps_then), len(skips_then))
    assert (report.first_difference.step, report.first_difference.field) == (1, "loss")
    assert report.first_difference.count > 1
    assert all(parameter.isfinite().all() for parameter in trained.model.parameters())
    assert daemon.ended


@pytest.mark.parametrize("last", [5, 7, 9], ids=["amid an epoch", "at an epoch's end", "amid the last"])
def test_a_run_that_ends_at_a_step_ends_there_after_a_resume_too(resumes, configured, last):
    """If the run ends within an epoch, there is no validation and no epoch's end."""
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", epochs=3, batch_size=8)
    broken, _ = resumes(configuration, 3, (2, 4), (None, last), last_step_of_all=last)
    assert broken.last_step == last
    assert broken.epoch_finished == last // 7
    end = broken.committed[-1]
    assert (end.step, end.epoch, end.batch) == (last, 1 + last // 7, last % 7)


def test_the_word_to_end_is_obeyed_at_the_next_boundary_or_after_the_epochs_end(daemon_in, configured):
    """Within an epoch there is neither validation nor epoch's end; at an epoch's end both are done."""
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", epochs=3, batch_size=8)
    amid = daemon_in("amid", 3, end_after_step=3)
    amid.train_here(configuration)
    assert amid.ended
    assert 3 <= amid.last_step <= 4
    assert (amid.epoch_finished, amid.validations) == (0, {})
    behind = daemon_in("behind", 3, end_after_epoch=2)
    behind.train_here(configuration)
    assert (behind.last_step, behind.epoch_finished, list(behind.validations)) == (14, 2, [1, 2])


def test_a_checkpoint_owed_at_an_epochs_end_is_taken_there_in_a_rerun(daemon_in, configured):
    """It is equal, file by file, to the checkpoint taken when the epoch ended for the first time."""
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", epochs=3, batch_size=8)
    daemon = daemon_in("run", 3)
    daemon.exit_after_step = 11
    daemon.train_here(configuration)
    first = next(c for c in daemon.committed if (c.epoch, c.batch) == (2, 0))
    daemon.committed = [c for c in daemon.committed if c.step == 0]
    daemon.epoch_to_keep = 1
    daemon.train_here(configuration)
    again = next(c for c in daemon.committed if (c.epoch, c.batch) == (2, 0))
    assert again.id != first.id
    assert daemon.files(again.id) == daemon.files(first.id)
    assert daemon.ended


def test_a_run_that_begins_with_anothers_weights_holds_them_in_its_first_checkpoint(daemon_in, resumes, configured):
    """It does not need the other run any more: interrupted later, it ends with the bits of an undisturbed run."""
    first = daemon_in("first", 1)
    first.train_here(configured(f"{TASKS}/augmenting.py:Augmenting", epochs=1, batch_size=8))
    end = first.committed[-1]
    parent = m.Parent(run_id="feed", checkpoint=end.id, manifest=end.manifest, folder=str(first.run_dir))
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", epochs=2, batch_size=8, rng_seed=8)
    broken, _ = resumes(configuration, 2, (2, 5), parent=parent)
    start = broken.committed[0]
    assert (start.step, start.epoch, start.batch) == (0, 1, 0)
    assert broken.files(start.id)[MODEL_FILE] == first.files(end.id)[MODEL_FILE]


def test_a_norm_that_is_measured_now_and_then_is_measured_in_the_same_steps_after_a_resume(
    daemon_in, resumes, configured
):
    """The step's number decides, and training does not depend on it."""
    options = {"epochs": 2, "batch_size": 8}
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", **options, grad_norm={"every": 3})
    broken, _ = resumes(configuration, 2, (2, 5), (None, 9))
    assert [n for n, report in broken.steps.items() if report.grad_norm != -1] == [1, 4, 7, 10, 13]
    always = daemon_in("always", 2)
    always.train_here(configured(f"{TASKS}/augmenting.py:Augmenting", **options))
    held, asked = always.files("end"), broken.files("end")
    # The detector has seen more norms, and says so in the state; parameters and moments are the same bits.
    same = [name for name in held if not name.startswith("state")]
    assert len(same) >= 2
    assert {name: held[name] for name in same} == {name: asked[name] for name in same}


def test_a_moving_average_resumes_to_the_same_bits_and_leaves_training_alone(daemon_in, resumes, configured):
    """It has a separate file in checkpoints; validation uses it; the weights are those of a run without it."""
    options = {"epochs": 2, "batch_size": 4}
    configuration = configured(f"{TASKS}/augmenting.py:Augmenting", **options, ema={"decay": 0.9})
    averaged, _ = resumes(configuration, 2, (1, 6), (15, 20))
    assert "ema-00000.safetensors" in averaged.files("end")
    bare = daemon_in("bare", 2)
    bare.train_here(configured(f"{TASKS}/augmenting.py:Augmenting", **options))
    assert {**averaged.files("end"), **bare.files("end")} == averaged.files("end")
    assert all(averaged.validations[n].metrics != bare.validations[n].metrics for n in (1, 2))


def test_the_number_of_workers_does_not_change_the_result(daemon_in, configured):
    """The same run with no worker and with two ends with equal files, and compares equal steps.

    Only what a data set holds may differ: workers have copies of it.
    """
    runs = []
    for workers in (0, 2):
        daemon = daemon_in(f"workers-{workers}", 1)
        daemon.train_here(configured(f"{TASKS}/augmenting.py:Augmenting", epochs=1, batch_size=8, workers=workers))
        runs.append(({name: file for name, file in daemon.files("end").items() if "state" not in name}, daemon.steps))
    assert {name.split("-")[0] for name in runs[0][0]} == {"model", "optimizer"}
    assert runs[0] == runs[1]


def test_gradients_that_a_hook_leaves_behind_do_not_reach_the_next_step(resumes, configured):
    """Checkpoints have no gradients, so gradients left at a boundary would differ with a restart."""
    configuration = configured(f"{TASKS}/augmenting.py:Probing", epochs=2, batch_size=8)
    resumes(configuration, 2, (None, 9))


def test_data_that_cannot_be_positioned_are_loaded_again(resumes, configured):
    """An iterable without a state is iterated again up to the checkpoint's place; the run ends with the same bits."""
    configuration = configured(f"{TASKS}/augmenting.py:Streaming", epochs=2, batch_size=8)
    broken, _ = resumes(configuration, 2, (3, 9))
    assert [report for report in broken.reports if type(report).__name__ == "CheckpointFailedReport"] == []


@pytest.mark.parametrize(
    ("task", "interruptions"), [("Unmeasured", [(None, 9)]), ("Placed", [(3, 5), (None, 14)])], ids=["stream", "placed"]
)
def test_data_without_a_length_trains_to_the_step_of_the_configuration_and_resumes_to_the_same_bits(
    resumes, configured, task, interruptions
):
    """Epochs of 6 batches, without a length; the cosine ends with the run, within the third epoch."""
    rates = {"base_lr": 0.1, "min_lr": 0.003, "warmup_epochs": 1}
    more = {"epochs": 3, "batch_size": 8, "stop": {"steps": 15}, "learning_rate": rates}
    configuration = configured(f"{TASKS}/augmenting.py:{task}", **more)
    broken, _ = resumes(configuration, 3, *interruptions, last_step_of_all=15)

    lrs = [broken.steps[step].lr for step in range(1, 16)]
    assert (broken.last_step, broken.epoch_finished, max(broken.validations)) == (15, 2, 2)
    assert lrs[0] == pytest.approx(0.1 * 0.1)
    assert lrs[5] == pytest.approx(0.1)
    assert lrs[-1] == 0.003
    assert lrs[5:] == sorted(lrs[5:], reverse=True)


def test_a_changed_bit_in_the_journal_is_found_and_named(daemon_in, configured):
    """A re-run compares every step: a loss with another last bit is reported with step, field and both values."""
    configuration = configured("digits", epochs=1)
    daemon = daemon_in("changed", 1)
    daemon.exit_after_step = 10
    daemon.train_here(configuration)
    last = daemon.last_step
    true = daemon.steps[7].loss
    daemon.steps[7] = msgspec.structs.replace(daemon.steps[7], loss=math.nextafter(true, math.inf))
    daemon.train_here(configuration)

    (report,) = daemon.of(m.RerunReport)
    assert (report.first, report.last, report.compared) == (1, last, last)
    difference = report.first_difference
    assert (difference.step, difference.field, difference.count) == (7, "loss", 1)
    assert float(difference.found) == true
    assert float(difference.expected) == daemon.steps[7].loss


def test_no_update_follows_a_rerun_before_its_outcome_is_recorded(daemon_in, configured):
    """A re-run that differs ends the run: its weights must not make another step."""
    configuration = configured("digits", epochs=1)
    daemon = daemon_in("run", 1)
    daemon.exit_after_step = 5
    daemon.train_here(configuration)
    last = daemon.last_step
    daemon.hold_durable_after = last
    stood_at = []

    def let_go_later(it):
        rerun = it.of(m.RerunReport)
        if rerun and it.end.page.waiting and not stood_at:
            stood_at.append(it.last_step)
            it.hold_durable_after = None
            it.exit_after_step = last + 1
            it.end.page.set_durable(it._drain.last_number)

    daemon.train_here(configuration, let_go_later)
    assert stood_at == [last]
