"""`tolaria status`, `watch` and `list`."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest

from journal.files import OS_FILES, release_locks, take_locks
from tests.control.fakes import Recorder
from tests.waiting import processor_s
from tolariad.control.replies import RunStatus
from tolariad.core import messages as m
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.calc.health.histogram import Bucket, bucket_of

FIELDS = {field.name for field in msgspec.structs.fields(RunStatus)}


def test_a_live_run_is_shown_in_words(tolaria, live_run):
    """Phase, progress, loss, checkpoint, journal, trainer."""
    said = tolaria("status", "--dir", live_run.path.parent)

    assert said.code == 0
    for word in ("digits", "running", "step 12 of 30", "loss", "c000002 at step 10", "trainer"):
        assert word in said.out


def test_json_has_the_fields_of_the_control_interface(tolaria, live_run, dead_run_of_another):
    """The same names, live or not."""
    live = tolaria("status", "--dir", live_run.path.parent, "--json")
    dead = tolaria("status", "--dir", dead_run_of_another, "--json")

    assert live.json.keys() == dead.json.keys() == FIELDS
    assert (live.code, live.json["live"]) == (0, True)
    assert (dead.code, dead.json["live"]) == (3, False)


def test_an_emergency_is_shown_until_it_is_over(tolaria, live_run):
    """The highest level and its reason; the same without a daemon."""
    where = live_run.path.parent
    assert tolaria("status", "--dir", where, "--json").json["emergency"] is None
    for level, why in ((m.Level.MAJOR, "loss"), (m.Level.MINOR, "slow")):
        live_run.do(lambda level=level, why=why: live_run.recorder.record(m.EmergencyRaised(level=level, why=why)))
    shown = tolaria("status", "--dir", where, "--json").json["emergency"]
    (line,) = [one for one in tolaria("status", "--dir", where).out.splitlines() if one.startswith("  emergency ")]
    live_run.close()

    assert shown == {"level": "major", "why": "loss"}
    assert line.split() == ["emergency", "MAJOR:", "loss"]
    assert tolaria("status", "--dir", where, "--json").json["emergency"] == shown


def test_memory_that_is_short_is_shown_in_words(tolaria, live_run):
    """Which part holds how much, over which share, and what is done about it."""
    live_run.do(lambda: live_run.recorder.record(m.MemoryPressed(budget="memory_model", percent=55.0, limit=40.0)))
    (line,) = [one for one in tolaria("status", "--dir", live_run.path.parent).out.splitlines() if "  memory " in one]
    assert "model holds 55 % of it, over its share of 40 %; two slots for snapshots are kept" in line


def test_conservative_mode_is_shown_in_words_and_as_json(tolaria, live_run):
    """The reason and the time; `watch` marks the mode."""
    live_run.do(lambda: live_run.recorder.record(m.ConservativeModeEntered(why="open breaker: lr")))
    said = tolaria("status", "--dir", live_run.path.parent)
    shown = tolaria("status", "--dir", live_run.path.parent, "--json").json["conservative"]

    (line,) = [line for line in said.out.splitlines() if line.startswith("  mode ")]
    assert "conservative for" in line
    assert "open breaker: lr" in line
    assert "0 healthy epochs" in line
    assert (shown["why"], shown["healthy_epochs"]) == ("open breaker: lr", 0)
    assert shown["since"].endswith("Z")
    assert shown["age_s"] >= 0


def test_what_the_run_did_on_its_own_is_shown_the_newest_last(tolaria, live_run):
    """The last five others with times, within 80 columns; JSON has all that are kept. The same without a daemon."""
    why = "divergence: loss 12.3456 at step 412, where 1.23456 was usual and 1.54321 the limit"
    back = {"checkpoint": "c000002", "branch": 1, "parent": 0, "step": 10, "epoch": 1, "batch": 10}
    events = [m.RolledBack(rollback=f"r{n}", from_step=10 + n, why=f"{n}: {why}", **back) for n in range(1, 8)]
    live_run.do(lambda: [live_run.recorder.record(one) for one in events])
    said = tolaria("status", "--dir", live_run.path.parent)
    shown = tolaria("status", "--dir", live_run.path.parent, "--json").json["said"]
    lines = said.out[said.out.index("  lately ") :].splitlines()

    text = " ".join(" ".join(lines).split())
    assert re.findall(r"abandoned (\d+) steps", text) == ["2", "3", "4", "5", "6"], "the last one is among the troubles"
    assert max(map(len, lines)) <= 80
    assert [(one["number"], one["start"], one["event"]) for one in shown] == [(n, 1, "RolledBack") for n in range(1, 8)]
    assert shown[-1]["text"] == f"Rolled back from step 17 to step 10 (c000002) and abandoned 7 steps: 7: {why}."
    assert shown[-1]["time"].endswith("Z")


def test_troubles_are_counted_with_the_last_of_each_and_what_tells_more(tolaria, live_run):
    """In words within 80 columns but for the command, which can be copied; in JSON; the same without a daemon."""
    at = {"step": 13, "epoch": 2, "loss": 9.5, "grad_norm": 4.0, "reason": m.SkipReason.SPIKE}
    events = [
        *(m.StepSkipped(batch=batch, **at) for batch in (3, 4, 5)),
        m.TrainerDied(incarnation=1, reason=m.DeathReason.SIGNAL, step=12, signal="SIGSEGV"),
        m.CheckpointAborted(id="c000003", why="no space is left"),
    ]
    live_run.do(lambda: [live_run.recorder.record(one) for one in events])
    where = live_run.path.parent
    said, shown = tolaria("status", "--dir", where), tolaria("status", "--dir", where, "--json").json["troubles"]
    lines = said.out[said.out.index("  troubles ") : said.out.index("  lately ")].splitlines()
    live_run.close()

    assert [(one["event"], one["count"], one["why"]) for one in shown] == [
        ("StepSkipped", 3, "skip"), ("TrainerDied", 1, "death"), ("CheckpointAborted", 1, f"seq:{shown[-1]['seq']}"),
    ]  # fmt: skip
    assert shown[0]["text"].startswith("Skipped batch 5 of epoch 2: its loss is 9.5")
    assert f"              3 in all; tolaria why {where} skip" in lines
    assert f"              tolaria why {where} death" in lines
    assert max(len(one) for one in lines if "tolaria why" not in one) <= 80
    for one in shown:
        assert tolaria("why", where, one["why"]).code == 0
    assert tolaria("status", "--dir", where, "--json").json["troubles"] == shown


@pytest.fixture
def dead_run_of_another(tmp_path):
    folder = tmp_path / "other"
    made = Recorder(folder / "journal", segment_bytes=1 << 20)
    made.begin_run(name="other")
    made.journal.close()
    return folder


def test_a_run_without_a_daemon_is_folded_and_said_to_be_dead(tolaria, dead_run):
    """The last state, `live: false`, exit code 3."""
    said = tolaria("status", dead_run, "--json")

    assert said.code == 3
    assert (said.json["step"], said.json["phase"], said.json["live"], said.json["pid"]) == (12, "running", False, None)
    assert said.json["checkpoint"]["id"] == "c000002"


def test_quiet_answers_with_the_exit_code_only(tolaria, live_run):
    """Exit 0 if running, else 1; nothing is printed."""
    running = tolaria("status", "-q", "--dir", live_run.path.parent)
    live_run.do(lambda: live_run.recorder.record(m.RunFailed(kind=m.FailureKind.TRAINER, why="enough")))
    failed = tolaria("status", "-q", "--dir", live_run.path.parent)

    assert (running.code, running.out) == (0, "")
    assert (failed.code, failed.out) == (1, "")


def test_nobody_and_no_journal_is_not_reachable(tolaria, tmp_path):
    """Exit code 3, with a hint what to type; as JSON if JSON was asked for."""
    plain = tolaria("status", "--dir", tmp_path)
    as_json = tolaria("status", "--dir", tmp_path, "--json")

    assert plain.code == as_json.code == 3
    assert "tolaria list" in plain.err
    assert '"exit_code": 3' in as_json.err
    assert as_json.out == ""


def test_a_nan_is_shown_by_its_word(tolaria, live_run):
    """In words and in JSON."""
    live_run.do(lambda: live_run.recorder.step(loss=float("nan")))

    assert "loss        nan" in tolaria("status", "--dir", live_run.path.parent).out
    shown = tolaria("status", "--dir", live_run.path.parent, "--json").json
    assert (shown["loss"], shown["loss_state"]) == (None, "nan")


def test_watch_shows_a_line_for_each_change_until_the_run_ends(live_run):
    """In a separate process: plain lines, no cursor movement."""
    command = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()", "watch", "--plain"]
    command += ["--interval", "0.1", "--socket", str(live_run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        first = watching.stdout.readline()
        live_run.do(live_run.recorder.step)
        second = watching.stdout.readline()
        live_run.close()
        rest = watching.stdout.read()
        code = watching.wait(60)

    assert "step 12/30" in first
    assert "step 13/30" in second
    assert "\x1b" not in first + second + rest
    assert code == 0


def test_list_has_live_and_dead_runs(tolaria, live_run, dead_run_of_another, tmp_path):
    """One row for each run, with what is known about it."""
    said = tolaria("list", tmp_path, "--json")
    rows = {row["name"]: row for row in said.lines}

    assert said.code == 0
    assert rows["digits"]["live"] is True
    assert (rows["other"]["live"], rows["other"]["step"]) == (False, 0)
    assert "digits" in tolaria("list", tmp_path).out


def test_a_run_that_failed_at_once_shows_no_number_that_it_does_not_have(tolaria, tmp_path):
    """`list` has its age and dashes; `status` has the error, and no lines of numbers that are not known."""
    made = Recorder(tmp_path / "typo" / "journal", segment_bytes=1 << 20)
    made.open_run(name="typo")
    made.take(m.TrainerSpawned(incarnation=1, pid=5001, start_ticks=1, boot_id="ab"))
    made.report(m.SetupRefusedReport(why="my_task.py has no 'MyTsk'; did you mean MyTask?"))
    made.journal.close()
    listed = tolaria("list", tmp_path).out.splitlines()[1].split("  ")
    cells = [cell.strip() for cell in listed if cell.strip()]
    row = tolaria("list", tmp_path, "--json").lines[0]
    status = tolaria("status", "--dir", tmp_path / "typo")
    labels = [line.split()[0] for line in status.out.splitlines()[1:]]

    assert cells[:7] == ["typo", "failed", "no", "0/3", "0", "-", "-"]
    assert 0 <= row["age_s"] < 3 * 365 * 86400
    assert "MyTask" in status.out
    assert not {"loss", "validation", "speed"} & set(labels)


def test_a_completed_run_has_no_last_error(tolaria, recorder):
    """A trainer died on the way and the run completed: the death is counted, and is no error of the run."""
    recorder.take(m.TrainerGone(incarnation=1, reason=m.DeathReason.SIGNAL, signal="SIGKILL"))
    assert recorder.status().last_error == "the trainer ended: SIGKILL"
    recorder.record(m.RunCompleted(step=12, epochs=1, checkpoint="c000001"))

    status = recorder.status()
    assert (status.phase, status.last_error) == ("completed", None)
    assert status.trainer.deaths_total == 1


def test_a_stop_after_a_death_that_was_overcome_is_no_error(tolaria, recorder):
    """A new step was made after the death. If none was, the stopped run still says of what its trainer died."""
    recorder.take(m.TrainerGone(incarnation=1, reason=m.DeathReason.SIGNAL, signal="SIGKILL"))
    stopped = m.RunStopped(step=12, mode=m.StopMode.GRACEFUL, checkpoint="c000001")
    recorder.record(stopped)
    assert recorder.status().last_error == "the trainer ended: SIGKILL"
    recorder.take(m.TrainerSpawned(incarnation=2, pid=5001, start_ticks=1, boot_id="ab"))
    recorder.step()
    recorder.record(stopped)
    assert (recorder.status().phase, recorder.status().last_error) == ("stopped", None)


def test_list_shows_a_damaged_run_and_goes_on(tolaria, dead_run, tmp_path):
    """One bad journal does not hide the others."""
    (tmp_path / "bad" / "journal").mkdir(parents=True)
    (tmp_path / "bad" / "journal" / "00000001-0000000000000001.wal").write_bytes(b"rubbish" * 1000)
    rows = {row["name"]: row for row in tolaria("list", tmp_path, "--json").lines}

    assert rows["digits"]["step"] == 12
    assert rows["bad"]["error"]


def test_a_whole_status_is_quick(live_run):
    """A process of its own, with an order of magnitude to spare for a busy machine (a quarter of a second else)."""
    command = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()", "status", "--json"]
    times = []
    for _ in range(3):
        before = processor_s()
        done = subprocess.run([*command, "--socket", str(live_run.path)], capture_output=True, timeout=60)
        times.append(processor_s() - before)
        assert done.returncode == 0
    print(f"status --json: {min(times):.3f} s of a processor")

    assert min(times) < 2.5


def test_budgets_are_shown_with_what_was_measured_of_them(tolaria, live_run):
    """Each budget has a row: limit, median, 99th percentile, breaches. JSON has the same under the status.

    Without a daemon the rows cover the whole journal.
    """
    tally = m.BudgetHistogram(
        budget="epoch_boundary",
        count=2,
        breaches=1,
        worst=25.0,
        counts=(Bucket(bucket_of(4.0), 1), Bucket(bucket_of(25.0), 1)),
        waits=(Bucket(0, 1), Bucket(bucket_of(97.0), 1)),
        clock=(Bucket(bucket_of(4.0), 1), Bucket(bucket_of(122.0), 1)),
    )
    live_run.do(lambda: live_run.recorder.record(m.BudgetsMeasured(epoch=1, tallies=(tally,))))
    where = live_run.path.parent
    said = tolaria("status", "--budgets", "--dir", where)
    table = tolaria("status", "--budgets", "--json", "--dir", where).json["budgets"]
    live_run.close()
    folded = tolaria("status", "--budgets", "--json", "--dir", where)

    (row,) = [line.split() for line in said.out.splitlines() if line.startswith("epoch_boundary ")]
    assert (said.code, row) == (
        0,
        ["epoch_boundary", "18", "ms", "4.25", "25", "25", "25", "2", "1", "soft"],
    )
    measured = {name for name, budget in BUDGETS.items() if not budget.unmeasured}
    rows = said.out.splitlines()[1 : len(measured) + 1]
    assert {row.split()[0] for row in rows} == {one["name"] for one in table["budgets"]} == measured
    notes = said.out.splitlines()[len(measured) + 1 :]
    assert notes[-1] == "measured since just now, when the run's process started"
    assert "epoch_boundary: 4.25/124/124 ms by the clock, 0/100/100 ms of it the wait (p50/p95/p99)" in notes
    assert max(map(len, said.out.splitlines()[: len(measured) + 1])) <= 80
    assert folded.code == 3
    assert folded.json["budgets"] == table | {"since": None}


def test_the_tasks_own_metrics_are_in_the_line_of_the_validation(tolaria, live_run):
    """Also if the task measures neither loss nor accuracy; nothing stands for what it does not measure."""
    validated = m.ValidationFinished(epoch=1, step=12, samples=9, seconds=0.1, metrics={"auc": 0.75, "f1": 0.5})
    live_run.do(lambda: live_run.recorder.record(validated))
    (line,) = [
        one for one in tolaria("status", "--dir", live_run.path.parent).out.splitlines() if "  validation " in one
    ]
    assert line.split() == ["validation", "auc", "0.75,", "f1", "0.5"]


def test_the_tasks_metrics_of_the_last_step_have_a_line(tolaria, live_run):
    """The line shows the metrics that `loss` returned; without any there is no line."""
    assert "  metrics " not in tolaria("status", "--dir", live_run.path.parent).out
    recorder = live_run.recorder
    step = m.StepReport(step=13, epoch=2, batch=3, loss=0.5, grad_norm=1.0, lr=0.003, rates=1, metrics=(0.25, 7.0))
    live_run.do(lambda: recorder.report(m.MetricsNamedReport(names=("acc", "margin"))))
    live_run.do(lambda: recorder.report(step))
    (line,) = [one for one in tolaria("status", "--dir", live_run.path.parent).out.splitlines() if "  metrics " in one]
    assert line.split() == ["metrics", "acc", "0.25,", "margin", "7"]
    shown = tolaria("status", "--dir", live_run.path.parent, "--json").json
    assert shown["step_metrics"] == {"acc": 0.25, "margin": 7.0}


def test_the_time_of_a_checkpoint_of_a_dead_run_is_local_and_to_the_second(tolaria, dead_run):
    """As all other times of the page. JSON has the microseconds."""
    (line,) = [one for one in tolaria("status", dead_run).out.splitlines() if "  checkpoint " in one]
    assert re.search(r", \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", line)


@pytest.mark.parametrize(("boot", "held", "shown"), [("ab", False, True), ("ab", True, False), ("cd", False, False)])
def test_a_run_that_was_killed_is_called_dead_by_status_and_list(tolaria, dead_run, monkeypatch, boot, held, shown):
    """It has not ended, and nothing records it. Of a journal that is held, or of another machine, nobody can say so."""
    monkeypatch.setattr("tolariad.boot.boot_id", lambda: boot)
    locks = take_locks(OS_FILES, dead_run / "journal", "") if held else ()
    try:
        status, (row,) = tolaria("status", dead_run), tolaria("list", dead_run.parent, "--json").lines
        line = tolaria("list", dead_run.parent).out.splitlines()[1]
    finally:
        release_locks(OS_FILES, list(locks))
    assert (row["dead"], row["phase"], row["live"]) == (shown, "running", False)
    assert ("dead (was running)" in status.out.splitlines()[0]) is shown
    assert ("dead (was running)" in line) is shown
