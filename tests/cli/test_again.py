"""`tolaria checkout` and `tolaria reexecute`: past steps are made again in a copy, by the code of a restart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import msgspec
import pytest

from journal import Reader
from tests.forensics.differences.written import with_step, write
from tests.recorded import events_of
from tolariad.cli import again
from tolariad.core import messages as m
from tolariad.forensics.again import OUTSIDE, NotAgain, Outcome, Result, Verdict, judged, plan_for

_RUN = "from tolariad.cli.tolariad import main; main()"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the task `digits`: two epochs, 46 steps, checkpoints of steps 0, 23 and 46."""
    place = tmp_path_factory.mktemp("again")
    command = [sys.executable, "-c", _RUN, "run", "--task", "digits", "--epochs", "2", "--dir", str(place / "run")]
    done = subprocess.run(
        [*command, "--set", "rng_seed=7"],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env=_environment(place),
    )
    assert done.returncode == 0, done.stderr
    return place / "run"


def _environment(place):
    return {**os.environ, "XDG_RUNTIME_DIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def given(tolaria, monkeypatch):
    """Run a command that starts a daemon."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    # Short enough for a socket, and none of the user's.
    monkeypatch.setattr(again, "_short_folder", lambda: "/dev/shm")
    return tolaria


def whole(folder):
    """Return every file of a folder: its bytes, and when it was last written."""
    files = [one for one in sorted(folder.rglob("*")) if one.is_file()]
    return {str(one.relative_to(folder)): (one.read_bytes(), one.stat().st_mtime_ns) for one in files}


def test_any_step_is_written_out_and_the_run_stays_as_it_was(given, run, tmp_path):
    """Step 30 lies between two checkpoints: seven steps are made again, each equal to the journal."""
    before = whole(run)
    said = given("checkout", run, "--step", "30", "-o", tmp_path / "out", "--json")

    assert said.code == 0, said.err
    assert (said.json["from_step"], said.json["compared"]) == (23, 7)
    assert "7 steps are made again" in said.err
    assert {"manifest.json", "model-00000.safetensors", "optimizer-00000.safetensors"} <= {
        one.name for one in (tmp_path / "out").iterdir()
    }
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["global_step"] == 30
    assert whole(run) == before
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".tolaria")] == []


def test_a_step_with_a_checkpoint_costs_nothing(given, run, tmp_path):
    """Its files are verified and copied."""
    said = given("checkout", run, "--step", "23", "-o", tmp_path / "out", "--json")

    assert (said.code, said.json["compared"], said.json["equals_checkpoint"]) == (0, 0, True)
    for piece in ("model-00000.safetensors", "optimizer-00000.safetensors"):
        assert (tmp_path / "out" / piece).read_bytes() == (run / "checkpoints" / "c000002" / piece).read_bytes()


def test_steps_that_come_out_the_same_are_reproducible(given, run):
    """From the checkpoint of step 23 to that of step 46: every step, and every tensor at the end."""
    said = given("reexecute", run, "--from", "24", "--to", "46", "--json")

    assert said.code == 0, said.err
    assert (said.json["verdict"], said.json["compared"], said.json["tensors"]) == ("reproducible", 23, [])


@pytest.mark.torture
def test_a_loss_that_the_run_computed_otherwise_is_named(given, run, tmp_path):
    """The journal says another loss for step 30: made again twice, it is the same both times."""
    other = tmp_path / "other"
    shutil.copytree(run / "checkpoints", other / "checkpoints", symlinks=True)
    write(other / "journal", with_step(events_of(run), 30, loss=0.125), segment_bytes=1 << 20)
    said = given("reexecute", other, "--from", "24", "--to", "40", "--json")

    assert said.code == 1, said.err
    assert said.json["verdict"] == "transient"
    assert said.json["first_difference"] == said.json["second_difference"]
    assert (said.json["first_difference"]["step"], said.json["first_difference"]["field"]) == (30, "loss")


@pytest.mark.parametrize("step", ["0", "x", "1@", "47"])
def test_a_step_that_is_none_is_refused(given, run, tmp_path, step):
    """Nothing is written."""
    said = given("checkout", run, "--step", step, "-o", tmp_path / "out")

    assert said.code in (1, 2)
    assert not (tmp_path / "out").exists()


def test_what_exists_is_not_replaced(given, run, tmp_path):
    """Exit code 2."""
    (tmp_path / "out").mkdir()

    assert given("checkout", run, "--step", "3", "-o", tmp_path / "out").code == 2


def test_an_order_that_had_not_acted_does_not_act(run, tmp_path):
    """It is durable before step 30 and acts before step 31: the copy for step 30 ends without it."""
    events = events_of(run)
    at = next(n for n, one in enumerate(events) if isinstance(one, m.StepCompleted) and one.step == 30)
    order = m.OrderGiven(order=m.SetRate(group="main", value=0.5), wall=events[at].wall, mono=events[at].mono)
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints", symlinks=True)
    write(tmp_path / "journal", [*events[:at], order, *events[at:]], segment_bytes=1 << 20)
    with Reader(tmp_path / "journal") as reader:
        plan = plan_for(reader, tmp_path, 30)

    kinds = [msgspec.msgpack.decode(one)["type"] for one in plan.more]
    assert kinds[-2:] == ["OrderAborted", "EndOrdered"]


def test_steps_of_a_program_are_refused_by_name(run, tmp_path):
    """Its loop is in the program only."""
    events = events_of(run)
    at = next(n for n, one in enumerate(events) if isinstance(one, m.RunStarted))
    program = msgspec.structs.replace(events[at], task="given")
    write(tmp_path / "journal", [*events[:at], program, *events[at + 1 :]], segment_bytes=1 << 20)
    with Reader(tmp_path / "journal") as reader, pytest.raises(NotAgain, match="a program trained this run"):
        plan_for(reader, tmp_path, 30)


@pytest.mark.parametrize(
    ("second", "expected", "same_machine", "verdict"),
    [
        ("0.5", "", True, Verdict.TRANSIENT),
        ("0.5", "", False, Verdict.PERSISTENT_HERE),
        ("0.5", "the execution context is another one", True, Verdict.PERSISTENT_HERE),
        ("0.25", "", True, Verdict.NONDETERMINISTIC),
    ],
)
def test_the_verdict_of_two_re_executions(second, expected, same_machine, verdict):
    """Both differ from the journal: by the same value, or by another one; here, or elsewhere."""

    def result(found):
        difference = m.Difference(step=3, field="loss", expected="1.0", found=found)
        outcome = Outcome(compared=5, difference=difference, expected=expected, checkpoint="", manifest="", failed="")
        return Result(outcome=outcome, tensors=None)

    assert judged(result("0.5"), result(second), is_same_machine=same_machine) is verdict


def test_the_copy_reaches_nothing_outside():
    """No follower, no notification, no bus, no collector, no port."""
    assert {one.partition("=")[0] for one in OUTSIDE} >= {
        *("follow", "notify.command", "notify.webhook"),
        *("telemetry.bus_url", "telemetry.otlp_endpoint", "metrics.listen"),
    }


def test_a_step_names_its_rows(given, run):
    """The 64 images of the batch, each once; loaded again, they have the digest that the journal has."""
    said = given("why", run, "step:30", "--show", "--json")

    assert said.code == 0, said.err
    found = said.json["rows"]
    assert (len(set(found["rows"])), found["is_verified"]) == (64, True)
    assert all(text.startswith("a ") for text in found["described"])


def _digested(events, step, **values):
    """Return the events, with the digests of a step added to them."""
    at = next(n for n, one in enumerate(events) if isinstance(one, m.StepCompleted) and one.step == step)
    made = next(one for one in events if isinstance(one, m.ParametersDigested) and one.step == 23)
    return [*events[: at + 1], msgspec.structs.replace(made, step=step, checkpoint="", **values), *events[at + 1 :]]


def test_the_digests_of_the_last_step_are_part_of_the_copy(run, tmp_path):
    """They are recorded after the step itself, and before the next one."""
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints", symlinks=True)
    write(tmp_path / "journal", _digested(events_of(run), 30), segment_bytes=1 << 20)
    with Reader(tmp_path / "journal") as reader:
        plans = [plan_for(reader, tmp_path, step) for step in (29, 30, 31)]

    kinds = [[msgspec.msgpack.decode(one)["type"] for one in plan.more] for plan in plans]
    assert ["ParametersDigested" in each for each in kinds] == [False, True, False]


@pytest.mark.torture
def test_a_tensor_that_the_run_had_otherwise_is_named_although_no_loss_shows_it(given, run, tmp_path):
    """The journal has digests of step 30 that are not those of the steps made again: the same both times."""
    other = tmp_path / "other"
    shutil.copytree(run / "checkpoints", other / "checkpoints", symlinks=True)
    write(other / "journal", _digested(events_of(run), 30), segment_bytes=1 << 20)
    said = given("reexecute", other, "--from", "24", "--to", "30", "--json")

    assert said.code == 1, said.err
    assert (said.json["verdict"], said.json["compared"]) == ("transient", 7)
    found = said.json["first_difference"]
    assert (found["step"], found["count"]) == (30, 1)
    assert found["field"].startswith("digest of ")
