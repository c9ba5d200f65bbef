"""Commands that try something on a copy: which run and checkpoint they use, and that a live run is left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from journal import Verdict, verify
from tests.cli.stored import record
from tests.daemon.harness import is_gone
from tests.trainer.tasks.tested import FILE
from tests.waiting import wait_for
from tolariad.cli import probes
from tolariad.cli.runs import folded
from tolariad.core.calc.run.exits import EXIT_TERMINATED
from tolariad.storage.remove import InUse, remove
from tolariad.trainer.probes.messages import Evaluated

SAID = Evaluated(
    data="test",
    weights="trained",
    samples=25,
    seconds=0.25,
    metrics={"f1": 0.5, "bad": None},
    metrics_state={"bad": "nan"},
)


@pytest.fixture
def answered(answer):
    return answer(SAID)


@pytest.fixture(scope="module")
def live_run(tmp_path_factory, template):
    """A run with test data that trains until the tests are done; its loss of the best epoch is kept."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "mine.yaml").write_text(
        f"tolaria: {{task: '{FILE}:Tested', epochs: 1000000, keep_best: loss, torch_threads: 1, rng_seed: 7,\n"
        "  checkpoint_interval_epochs: 1, checkpoint: {min_gap_s: 0, keep_last: 1},\n"
        "  journal: {segment_bytes: 1000000}, task_options: {slow: 0.02}}\n"
    )
    with (folder / "log").open("w") as log:
        process = template.start(
            ["run", "mine.yaml"], environment=os.environ, folder=folder, log=log.fileno(), shells=1
        )
    run = folder / "runs" / "mine"
    wait_for(lambda: process.poll() is not None or ((run / "journal").is_dir() and _has_best(run)))
    yield folder
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == EXIT_TERMINATED
    assert verify(run / "journal").verdict is Verdict.CLEAN


def _has_best(run):
    try:
        return bool(folded(run / "journal").checkpoints.best)
    except Exception:
        return False  # the journal is only beginning


def test_a_live_run_is_tested_and_goes_on(tolariad, live_run, monkeypatch, forked_trials):
    """CONFIG stands for its run. Its best checkpoint is found; the run ends clean (the fixture looks)."""
    monkeypatch.chdir(live_run)
    before = folded(Path("runs/mine/journal"))
    code, out, err = tolariad("test", "mine.yaml", "--checkpoint", "best", "--json")
    best = json.loads(out)
    after = folded(Path("runs/mine/journal"))

    assert (code, err) == (0, "")
    assert (best["data"], best["samples"], best["run"]) == ("test", 25, "runs/mine")
    assert set(best["metrics"]) == {"loss", "correct"}
    assert best["id"] >= before.checkpoints.best
    assert after.progress.step > before.progress.step
    assert after.trainer.incarnation == before.trainer.incarnation


def test_the_result_is_a_line_for_each_metric(tolariad, run_dir, answered):
    """One that is not finite has its word; in JSON it is null, beside the word."""
    record(run_dir)
    given = ("test", "--task", "digits", "--dir", run_dir, "--checkpoint", "c000001")
    code, out, _ = tolariad(*given)
    as_json = json.loads(tolariad(*given, "--json")[1])

    assert code == 0
    assert out.splitlines() == [
        f"checkpoint     c000001 of {run_dir}, step 0, trained weights",
        "data           25 samples of the test data, 250 ms",
        "f1             0.5",
        "bad            nan",
    ]
    assert (as_json["id"], as_json["step"]) == ("c000001", 0)
    assert (as_json["metrics"], as_json["metrics_state"]) == ({"f1": 0.5, "bad": None}, {"bad": "nan"})
    assert answered[0].weights.folder == str(run_dir / "checkpoints" / "c000001")
    assert answered[0].averaged is None


def test_a_checkpoint_that_is_tested_is_not_removed(tolariad, run_dir, monkeypatch):
    """The command holds it until the answer is there."""
    record(run_dir)

    def ask(trial, kind):
        with pytest.raises(InUse, match="c000002 is being read"):
            remove(run_dir / "checkpoints", "c000002")
        return SAID

    monkeypatch.setattr(probes, "ask", ask)

    assert tolariad("test", "--task", "digits", "--dir", run_dir)[0] == 0
    assert remove(run_dir / "checkpoints", "c000002") > 0


def test_a_checkpoint_that_vanished_meanwhile_is_chosen_anew(tolariad, run_dir, answered, monkeypatch):
    """The journal is read again: a live run may have removed the one that was the newest."""
    record(run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "c000002")
    looks = iter(["c000002", "c000001"])
    wanted = probes.wanted
    monkeypatch.setattr(probes, "wanted", lambda checkpoints, _, code: wanted(checkpoints, next(looks), code))

    assert tolariad("test", "--task", "digits", "--dir", run_dir)[0] == 0
    assert answered[0].weights.id == "c000001"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "give a configuration, --task, or a run by --run"),
        (("--task", "digits"), 2, "there is no trained model: runs/digits has no run"),
        (("--dir", "runs/none"), 2, "there is no run in runs/none"),
        (("--dir", "RUN", "--task", "digits", "--checkpoint", "c9"), 2, "the newest are c000001, c000002"),
        (
            ("--dir", "RUN", "--task", "digits", "--checkpoint", "best"),
            2,
            "`keep_best: METRIC` in the configuration keeps",
        ),
        (("--dir", "RUN", "--task", "digit"), 78, "did you mean digits?"),
        (("RUN",), 2, "has no run"),
    ],
)
def test_what_cannot_be_tested_is_refused(tolariad, run_dir, answered, arguments, code, says):
    """With the exit code of its kind and what to do; no process is started."""
    record(run_dir)
    found, out, err = tolariad("test", *(run_dir if one == "RUN" else one for one in arguments))

    assert (found, out) == (code, "")
    assert says in err
    assert answered == []


def test_a_run_that_a_program_started_needs_a_configuration(tolariad, run_dir, answered, monkeypatch):
    """Its model and data exist in the program only."""
    record(run_dir)
    state = probes._state(run_dir)
    given = replace(state.run, config=json.dumps({"tolaria": {"task": "given"}}))
    monkeypatch.setattr(probes, "_state", lambda _: replace(state, run=given))
    code, _, err = tolariad("test", "--dir", run_dir)

    assert code == 78
    assert "a program started this run (Tolaria.train)" in err
    assert "give a CONFIG whose task builds the same model" in err


def test_a_damaged_journal_is_65(tolariad, run_dir, answered):
    """As for `tolariad run`."""
    record(run_dir)
    segment = next((run_dir / "journal").glob("*.wal"))
    with segment.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 64)
    code, _, err = tolariad("test", "--dir", run_dir)

    assert code == 65
    assert "tolaria journal verify" in err


def test_the_process_of_a_trial_ends_with_the_command(tmp_path):
    """A command that is killed leaves none behind that computes on."""
    (tmp_path / "slow.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-c", "from tolariad.cli.tolariad import main; main()"]
    process = subprocess.Popen([*command, "check", "--task", f"{tmp_path / 'slow.py'}:Mine"], cwd=Path.cwd())
    pid = wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    process.kill()
    process.wait()
    wait_for(lambda: is_gone(int(pid)))


def test_the_commands_themselves_load_no_torch():
    """It takes seconds, which a refusal need not wait for."""
    modules = ", ".join(f"tolariad.cli.{name}" for name in ("checking", "testing", "lr_finding", "profiling"))
    code = f"import sys; import {modules}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
