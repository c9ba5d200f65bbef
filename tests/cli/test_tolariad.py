"""`tolariad`: refusals before the start, the check, the template, progress and summary."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

from journal import Files, verify
from journal.packing import Packer
from tests.control.fakes import Recorder
from tolariad import config
from tolariad.cli import checking, probes
from tolariad.cli.output import size
from tolariad.cli.progress import closing_words
from tolariad.cli.tolariad import default_folder
from tolariad.core import messages as m
from tolariad.daemon import FolderLost


def test_nothing_to_run_is_a_usage_error_with_a_way_on(tolariad):
    """It names the built-in task and the template."""
    code, out, err = tolariad("run")

    assert (code, out) == (2, "")
    assert "--task digits" in err


def test_a_bad_configuration_is_78_and_names_the_key(tolariad, tmp_path):
    """The error names the key and the nearest known one; no folder is created."""
    (tmp_path / "bad.yaml").write_text("tolaria: {task: digits, epoch: 3}\n")
    # A process of its own: a daemon takes over what is the process's only (stderr's descriptor, signals).
    command = [sys.executable, "-c", "from tolariad.cli.tolariad import main; main()", "run"]
    command += [str(tmp_path / "bad.yaml"), "--dir", str(tmp_path / "new")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    check_code, _, check_err = tolariad("check", tmp_path / "bad.yaml")

    assert ran.returncode == check_code == 78
    assert "epochs" in ran.stderr
    assert "epochs" in check_err
    assert not (tmp_path / "new" / "journal").exists()


@pytest.mark.parametrize(
    ("program", "names", "code", "said"),
    [
        ("tolariad", ("SIGUSR1", "SIGUSR2", "SIGHUP"), 78, "bad.yaml"),
        ("tolaria", ("SIGTERM",), 143, "tolaria: SIGTERM came before the run was open; nothing was started"),
        ("tolariad", ("SIGINT",), 130, ""),
    ],
    ids=["warnings", "SIGTERM", "interrupt"],
)
def test_signals_while_the_daemons_modules_are_imported(tmp_path, program, names, code, said):
    """Warnings wait, and do not end the process by their default action. The others end it with their code."""
    (tmp_path / "bad.yaml").write_text("tolaria: {task: digits, epoch: 3}\n")
    process = (
        "import os, signal, sys; from tolariad.cli import tolariad as cli; found = cli.default_folder\n"
        "def get(*given):\n"
        f"    for name in {names}: os.kill(os.getpid(), signal.Signals[name])\n"
        "    return found(*given)\n"
        f"cli.default_folder = get; from tolariad.cli.{program} import main; main()"
    )
    command = [sys.executable, "-c", process, "run", str(tmp_path / "bad.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (ran.returncode, said in ran.stderr) == (code, True), ran.stderr
    assert not (tmp_path / "work" / "runs").exists()


def test_the_schema_is_json(tolariad):
    """For editors and other programs."""
    code, out, _ = tolariad("check", "--schema")

    assert code == 0
    assert json.loads(out)["required"] == ["tolaria"]


COSTS = {
    "parameters": 1234567, "trainable": 1234567, "batch_samples": 32,
    "groups": [{"name": "default", "policy": "cosine", "base_lr": 0.003, "warmup_steps": 1}],
    "state_bytes": 10_000_000, "checkpoint_bytes": 5_000_000,
    "peak_memory_bytes": 2_000_000_000, "steps_per_epoch": 23,
    "step_ms": 1.5, "evaluate_ms": 0.5, "metrics": {"accuracy": 0.5},
    "journal_gb_day": 235.93, "device": "cpu", "threads": 1,
    "determinism": "strict", "loss": 2.3, "notes": ["careful"],
}  # fmt: skip


@pytest.mark.parametrize(("evaluate_ms", "ends"), [(0.5, "each epoch\n"), (None, "but there are no validation data\n")])
def test_check_says_how_often_the_run_validates(tolariad, monkeypatch, evaluate_ms, ends):
    """Within epochs too, if `validate.every_steps` is set."""
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "evaluate_ms": evaluate_ms})
    _, words, _ = tolariad("check", "--task", "digits", "--set", "validate.every_steps=500")
    assert "validation     after every 500 steps, and after each epoch" in words
    assert ends in words


def test_check_says_what_the_run_will_be_and_cost(tolariad, monkeypatch):
    """Ten lines of 80 columns, and the notes; the resolved configuration on request; the same as JSON."""
    monkeypatch.setattr(checking, "_costs", lambda _: COSTS)
    code, words, _ = tolariad("check", "--task", "digits", "--set", "epochs=2")
    _, more, _ = tolariad("check", "--task", "digits", "--set", "epochs=2", "--verbose")
    _, as_json, _ = tolariad("check", "--task", "digits", "--json")

    assert code == 0
    for word in (
        "digits, 2 epochs, batches of 32\n",
        "1,234,567",
        "10.0 MB",
        "2.0 GB",
        "235.93 GB a day",
        "careful",
        "cosine, base_lr 0.003, warm-up 1 step\n",
    ):
        assert word in words
    assert len(words.splitlines()) == 10 + len(COSTS["notes"])
    assert max(map(len, words.splitlines())) <= 80
    assert more.endswith(words)
    assert json.loads(more.removesuffix(words))["tolaria"]["epochs"] == 2
    assert json.loads(as_json)["costs"] == COSTS


def test_check_shows_which_slots_the_model_calls(tolariad, monkeypatch):
    """A slot at a module that is never called can hold no seed; a model without slots has no such line."""
    slots = [{"name": "trunk", "shape": [32, 8, 4]}, {"name": "lost", "shape": None}]
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "slots": slots})
    _, words, _ = tolariad("check", "--task", "digits")
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "slots": []})
    _, without, _ = tolariad("check", "--task", "digits")

    assert "slots          trunk: input 32 x 8 x 4\n               lost: the model never calls the module" in words
    assert "slots" not in without


PRUNING = {
    "why": "", "layers": 3, "channels": 320, "attentions": 2, "heads": 16, "total": 448, "seconds": 0.1,
    "parameters": 9000, "budget": 90, "first": 4,
    "refused": [{"name": f"layer.{n}", "why": "its channels are outputs of the model"} for n in range(7)],
    "masked_only": [{"name": "attention", "why": "its width is fixed"}],
}  # fmt: skip


def test_check_says_what_can_be_pruned_and_what_not(tolariad, monkeypatch):
    """The first modules that cannot, with the reasons, and a run that ends before its first masks."""
    given = ("check", "--task", "digits", "--set", "prune.enabled=true")
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "pruning": PRUNING})
    code, words, notes = tolariad(*given)
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "pruning": {**PRUNING, "first": 0}})
    _, too_few, _ = tolariad(*given)
    nothing = {**PRUNING, "channels": 0, "heads": 0, "total": 0, "first": 0, "masked_only": []}
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "pruning": nothing})
    _, empty, _ = tolariad(*given)
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "pruning": {**PRUNING, "why": "it cannot be traced"}})
    _, impossible, _ = tolariad(*given)
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "pruning": None})
    _, without, _ = tolariad("check", "--task", "digits")

    assert code == 0
    assert "\npruning        320 channels in 3 layers and 16 heads in 2 layers can be masked" in words
    assert (
        "with 90 of 9000 parameters the first cycle masks 4 channels at most\n               masked only: att" in words
    )
    assert "               refused: layer.4: its channels are outputs of the model\n" in words
    assert "layer.5" not in words
    assert "can be masked; the first cycle masks none: its share (prune.budgets) is less than a unit (90 of" in too_few
    assert "and 2 more; --json has them all" in words
    assert "no masks are due in this run: the first cycle that may mask is due after epoch 35" in notes
    assert "\npruning        nothing in this model can be masked\n               refused: layer.0" in empty
    assert "\npruning        impossible: it cannot be traced\n" in impossible
    assert "\npruning" not in without


def test_check_refuses_pruning_without_its_package(tolariad, monkeypatch):
    """Before the task is built."""
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(checking, "_costs", lambda _: pytest.fail("the task was built"))
    code, _, said = tolariad("check", "--task", "digits", "--set", "prune.enabled=true")

    assert code == 78
    assert "pip install 'tolariad[pruning]'" in said


def test_check_shows_each_groups_own_rates_and_what_is_frozen(tolariad, monkeypatch):
    """As the run would have them, not as the configuration says in general; one of anything has no plural."""
    names = [f"part_{n}" for n in range(9)]
    groups = [{"name": name, "policy": "wsd", "base_lr": 0.1, "warmup_steps": 0} for name in names]
    costs = {**COSTS, "trainable": 567, "groups": groups, "steps_per_epoch": 1}
    monkeypatch.setattr(checking, "_costs", lambda _: costs)
    _, words, _ = tolariad("check", "--task", "digits")

    assert "rates          part_0: wsd, base_lr 0.1\n               part_1: wsd, base_lr 0.1\n" in words
    assert "part_5" in words
    assert "part_6" not in words
    assert "               and 3 more; --json has them all\n" in words
    assert "parameters     1,234,567, 567 of them trained\n" in words
    assert ", 1 step an epoch, " in words
    assert "1 thread, " in words


def test_a_traceback_keeps_its_lines_on_a_terminal(tolariad, monkeypatch):
    """Its indentation says what belongs together; control characters are written out."""
    traceback = 'Traceback:\n  File "/a/folder", line 1\n    ' + "name = other and more " * 9 + "\n      ^^^^\x1b[2J\n"
    answer = json.dumps({"error": "the task raises KeyError", "traceback": traceback})
    monkeypatch.setattr(probes.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=answer, returncode=78))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    code, _, said = tolariad("check", "--task", "digits")

    assert code == 78
    assert traceback.replace("\x1b", "\\x1b") in said


@pytest.mark.parametrize(
    ("sync", "step_ms", "says"),
    [
        ("auto", 1.5, "journal.sync: auto joins steps below 5 ms: 17.69 GB at most"),
        ("auto", 9.0, "journal.sync: auto does that here; it would join steps below 5 ms"),
        ("batch", 9.0, "journal.sync: batch joins what comes together: 17.69 GB at most"),
        ("step", 1.5, "journal.sync: step does that, whatever the length of a step"),
    ],
)
def test_check_says_what_sync_does_about_durable_bytes(tolariad, monkeypatch, sync, step_ms, says):
    """Beside the bytes of steps that are each written at once."""
    by_step = 86_400 / step_ms * 1e3 * 4096 / 1e9
    monkeypatch.setattr(checking, "_costs", lambda _: {**COSTS, "step_ms": step_ms, "journal_gb_day": by_step})
    given = ("check", "--task", "digits", "--set", f"journal.sync={sync}")
    _, words, _ = tolariad(*given)
    journal = json.loads(tolariad(*given, "--json")[1])["journal"]

    assert f"journal        {by_step:.2f} GB a day if each step is written at once\n               {says}\n" in words
    assert (journal["sync"], journal["gb_day_by_step"]) == (sync, by_step)
    assert (journal["gb_day"] < by_step) is ("at most" in says)


def test_check_tries_a_strategy_of_the_users(tolariad, monkeypatch, tmp_path):
    """In a process of its own. One that cannot be used is exit 78 with its reason; `default` needs no trial."""
    monkeypatch.setattr(checking, "_costs", lambda _: COSTS)
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def step(self, packet):\n        return []\n"
        "class Bad:\n    def step(self, packet):\n        return 1 / 0\n"
    )
    given = ("check", "--task", "digits", "--set")
    code, words, _ = tolariad(*given, f"strategy={tmp_path}/mine.py:Mine")
    bad, _, why = tolariad(*given, f"strategy={tmp_path}/mine.py:Bad")
    _, as_json, _ = tolariad(*given, "strategy=default", "--json")

    assert code == 0
    assert "mine.py:Mine: 0 commands for 15 made-up epochs, slowest answer" in words
    assert bad == 78
    assert f"ZeroDivisionError: division by zero ({tmp_path}/mine.py:6)" in why
    assert "strategy" not in json.loads(as_json)


def test_a_check_that_cannot_be_answered_is_78(tolariad, monkeypatch):
    """A trainer that dies is an error with its exit code, not a stack trace."""
    monkeypatch.setattr(probes.sys, "executable", "/bin/false")
    code, _, err = tolariad("check", "--task", "digits")

    assert code == 78
    assert "exit code 1" in err


def test_a_new_task_is_python_and_never_written_over(tolariad, tmp_path):
    """The template compiles, and a second call changes nothing."""
    path = tmp_path / "mine" / "moons.py"
    code, out, _ = tolariad("new-task", path)
    text = path.read_text()
    path.write_text("mine now")
    again, _, _ = tolariad("new-task", path)

    compile(text, str(path), "exec")
    assert (code, again) == (0, 2)
    assert "tolariad run" in out
    assert path.read_text() == "mine now"


@pytest.mark.parametrize(
    ("config", "task", "name"),
    [("a/b.yaml", None, "b"), (None, "digits", "digits"), (None, "./x.py:Mine", "Mine"), ("c.yaml", "digits", "c")],
)
def test_a_run_without_a_folder_gets_one_by_its_name(config, task, name):
    """Below ./runs."""
    from pathlib import Path

    assert default_folder(Path(config) if config else None, task) == Path("runs") / name


@pytest.fixture
def recorder(run_dir):
    made = Recorder(run_dir / "journal", segment_bytes=1 << 20)
    made.begin_run()
    yield made
    made.journal.close()


def test_closing_words_say_where_the_journal_is_and_that_it_verifies(recorder, run_dir):
    """The summary also has the number of events three commands to try next, and how the run goes on."""
    for _ in range(30):
        recorder.step()
    status = recorder.status()
    recorder.journal.close()
    lines, clean = closing_words(msgspec.structs.replace(status, phase="completed"), run_dir)

    assert clean
    assert f"{run_dir / 'journal'}: {recorder.state.seq} events" in lines[1]
    assert "verifies" in lines[1]
    assert sum(line.startswith("  tolaria ") for line in lines) == 3
    assert lines[-1].startswith(f"  tolariad run --dir {run_dir} --epochs 6 ")


def test_closing_words_and_verify_give_the_size_on_disk(thirty_steps, run_dir, tolaria):
    """Packed segments take a part of their bytes; both figures are printed, the one on disk first."""
    folder = run_dir / "journal"
    whole = size(verify(folder).bytes)
    Packer(Files(), folder, pause_s=0).pack_all()
    files = size(sum(path.stat().st_size for path in folder.glob("*.wal*")))
    lines, clean = closing_words(thirty_steps, run_dir)

    assert clean
    assert list(folder.glob("*.zst"))
    assert f", {files} on disk, {whole} unpacked, verifies" in lines[1]
    assert f", {files} on disk, {whole} unpacked, {folder}" in tolaria("journal", "verify", run_dir).out


def test_a_run_that_failed_on_other_data_is_told_both_ways_on(recorder, run_dir):
    """The former data or code with --retry, or the new ones with a word; any other failure has the first only."""
    recorder.step()
    words = {m.FailureKind.DATA: ["--accept-data"], m.FailureKind.CODE: ["--accept-code"]}
    for kind, ways in ((kind, ["--retry", *words.get(kind, ())]) for kind in m.FailureKind):
        recorder.record(m.RunFailed(kind=kind, why="no"))
        lines, _ = closing_words(recorder.status(), run_dir)
        starts = [line.split() for line in lines if line.startswith("  tolariad run")]
        assert [words[4] for words in starts] == ways
    recorder.journal.close()


def test_closing_words_of_a_frozen_run_say_why_and_that_it_waits_for_a_word(recorder, run_dir):
    """The summary names `resume`, because a start alone leaves the run frozen."""
    recorder.record(m.RunFrozen(why="smoke in the rack"))
    status = recorder.status()
    recorder.journal.close()
    lines, _ = closing_words(status, run_dir)

    assert "smoke in the rack" in lines[0]
    assert [("freeze" in one, "resume --dir" in one) for one in lines[-2:]] == [(True, False), (False, True)]


def test_closing_words_of_a_stop_without_its_last_checkpoint_say_so(recorder, run_dir):
    """The reason and the step that the next start continues from; nothing if the last step is saved."""
    recorder.step()
    newest = recorder.status().checkpoint
    stopped = msgspec.structs.replace(recorder.status(), phase="stopped")
    recorder.journal.close()

    def second_line(step):
        held = msgspec.structs.replace(newest, step=step, given_up="/r: No space left on device")
        lines, _ = closing_words(msgspec.structs.replace(stopped, checkpoint=held), run_dir)
        return lines[0].splitlines()[1:]

    assert second_line(0) == [
        "the last checkpoint was given up: /r: No space left on device; the next start continues from step 1"
    ]
    assert second_line(1) == []
    none = msgspec.structs.replace(stopped, checkpoint=None, checkpoint_none="2 rejected")
    assert closing_words(none, run_dir)[0][0].splitlines()[1:] == ["no checkpoint is usable: 2 rejected"]


def test_a_folder_that_is_gone_has_no_closing_words(tolariad, tmp_path, recorder, monkeypatch):
    """One sentence on stderr, exit 74. No command is suggested: there is nothing left to look at or to start."""
    run_dir = tmp_path / "gone"

    def lost(request):
        request.progress(recorder.status())
        raise FolderLost(74, f"the folder {run_dir} was deleted while the run was live, so training was stopped")

    monkeypatch.setattr("tolariad.daemon.run", lost)
    code, out, err = tolariad("run", "--task", "digits", "--dir", str(run_dir))

    assert (code, err.count("\n")) == (74, 1)
    assert "was deleted while the run was live, so training was stopped" in err
    assert "try next" not in out + err


def test_closing_words_do_not_hide_damage(recorder, run_dir):
    """If the journal does not verify, the summary says so, with the place."""
    status = recorder.status()
    recorder.journal.close()
    (file,) = (run_dir / "journal").glob("00000001-*.wal")
    data = bytearray(file.read_bytes())
    data[4096 * 3 + 300] ^= 1
    file.write_bytes(data)
    lines, clean = closing_words(status, run_dir)

    assert not clean
    assert "NOT" in lines[1]
    assert file.name in lines[2]
