"""The commands that give orders to a run, and how a run is named."""

from __future__ import annotations

import json
import sys
import threading

import pytest

from tests.control.fakes import Recorder, Served
from tolariad.control.connection import ServerLimits
from tolariad.control.peer import Operators
from tolariad.control.place import publish
from tolariad.core import messages as m


def in_background(served, when, then):
    """Play the trainer: call `then` as soon as `when` holds for the state."""

    def play():
        for _ in range(6000):
            if served.do(lambda: when(served.recorder.state)):
                served.do(then)
                return
            threading.Event().wait(0.01)

    thread = threading.Thread(target=play)
    thread.start()
    return thread


def test_pause_waits_until_the_boundary_is_reached(tolaria, live_run):
    """It prints the number of its event, then its outcome; the journal has the reason."""
    trainer = in_background(live_run, lambda state: state.run.pause, live_run.recorder.hold)
    said = tolaria("pause", "--dir", live_run.path.parent, "--reason", "lunch", "--json")
    trainer.join()

    first, second = said.lines
    assert said.code == 0
    assert first["outcome"] is None
    assert (second["seq"], second["outcome"]["event"]) == (first["seq"], "RunPaused")
    assert '"reason": "lunch"' in tolaria("events", live_run.path.parent, "-t", "PauseRequested", "--json").out


def test_no_wait_returns_when_the_order_is_durable(tolaria, live_run):
    """The command does not wait for the boundary."""
    said = tolaria("pause", "--dir", live_run.path.parent, "--no-wait")

    assert said.code == 0
    assert "recorded as event" in said.out
    assert live_run.recorder.state.run.phase.value == "running"


def test_a_refused_order_is_exit_4(tolaria, live_run):
    """With the phase, and what to look at next."""
    said = tolaria("resume", "--dir", live_run.path.parent)

    assert said.code == 4
    assert "WrongPhase" in said.err
    assert "tolaria status" in said.err
    assert said.out == ""


def test_an_order_without_permission_is_exit_4(tolaria, recorder, run_dir):
    """Reading still works."""
    with Served(recorder, run_dir, allow=Operators(frozenset({12345}))):
        said = tolaria("pause", "--dir", run_dir)
        assert tolaria("status", "--dir", run_dir).code == 0

    assert said.code == 4
    assert "PermissionDenied" in said.err


def test_an_order_that_is_not_durable_in_time_is_exit_5(tolaria, recorder, run_dir):
    """The order may still take effect; the error says so, and how to find out."""
    recorder.hold_answers = True
    with Served(recorder, run_dir, limits=ServerLimits(answer_s=0.05)):
        said = tolaria("pause", "--dir", run_dir, "--id", "p1")
        as_json = tolaria("note", "x", "--dir", run_dir, "--json")

    assert (said.code, said.out) == (5, "")
    assert "NotDurable" in said.err
    assert "same id" in said.err
    assert json.loads(as_json.err)["exit_code"] == as_json.code == 5


def test_an_order_that_is_not_carried_out_is_exit_1(tolaria, live_run):
    """A checkpoint that could not be written says why and how to look further."""

    def fail():
        id_ = live_run.recorder.state.checkpoints.open[-1].id
        live_run.recorder.report(m.CheckpointFailedReport(id=id_, why="disk full"))

    trainer = in_background(live_run, lambda state: state.checkpoints.open, fail)
    said = tolaria("checkpoint", "--dir", live_run.path.parent)
    trainer.join()

    assert said.code == 1
    assert "disk full" in said.out
    assert "tolaria why" in said.err


def test_nobody_there_is_exit_3(tolaria, dead_run):
    """A command that gives an order needs the daemon."""
    assert tolaria("pause", "--dir", dead_run).code == 3


def test_a_note_is_durable_when_the_command_returns(tolaria, live_run):
    """The run is found again."""
    said = tolaria("note", "loss looks odd", "--dir", live_run.path.parent, "--id", "n1")
    again = tolaria("note", "loss looks odd", "--dir", live_run.path.parent, "--id", "n1")
    found = tolaria("events", live_run.path.parent, "-g", "looks odd", "--json").lines

    assert (said.code, again.code) == (0, 0)
    assert [event["type"] for event in found] == ["NoteAdded"]
    assert said.out == again.out


def test_stop_now_needs_a_yes_where_there_is_no_terminal(tolaria, live_run):
    """It can lose work: without a terminal it is refused before anything is sent."""
    refused = tolaria("stop", "--now", "--dir", live_run.path.parent)
    assert live_run.recorder.state.run.stop is None
    done = tolaria("stop", "--now", "--yes", "--no-wait", "--dir", live_run.path.parent)

    assert refused.code == 2
    assert "--yes" in refused.err
    assert done.code == 0
    assert live_run.recorder.state.run.stop.mode.value == "now"


def test_a_rollback_names_its_target_and_its_price_before_and_after(tolaria, live_run, monkeypatch):
    """The question, the answer and the answer as JSON: checkpoint, step, epoch, and how many steps are given up."""
    asked = []

    def answer(question, **_):
        asked.append(question.removesuffix(" [y/N]:"))
        return len(asked) > 1

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("click.confirm", answer)
    place = ("--dir", live_run.path.parent)
    declined = tolaria("rollback", *place)
    newest = live_run.recorder.state.checkpoints.newest

    assert (declined.code, live_run.recorder.state.rollbacks.asked) == (1, None)
    assert asked == [
        (
            f"The run is to go back to {newest.id}: step 10, at the end of epoch 1, and gives up 2 steps. "
            "The steps stay in the journal. Roll back?"
        )
    ]
    trainer = in_background(live_run, lambda state: state.rollbacks.open, live_run.recorder.roll_back)
    said = tolaria("rollback", *place, "--json")
    trainer.join()
    assert said.code == 0, said.err
    outcome = said.lines[1]["outcome"]
    assert outcome["rollback"] == {"checkpoint": newest.id, "step": 10, "epoch": 2, "batch": 0, "given_up": 2}
    assert outcome["why"] == (
        f"Rolled back from step 12 to step 10 ({newest.id}) and abandoned 2 steps. The run is at the end of epoch 1."
    )


@pytest.mark.parametrize(("option", "place"), [("--epoch", "epoch 7"), ("--step", "step 99")])
def test_a_rollback_to_what_is_not_reached_yet_is_refused_before_the_question(tolaria, live_run, option, place):
    """With a sentence that says where the run is; with --yes the daemon says the same."""
    number = place.split()[1]
    for yes in ((), ("--yes",)):
        said = tolaria("rollback", "--dir", live_run.path.parent, option, number, *yes)
        assert said.code == 4
        assert f"{place} is not reached yet: the run is in epoch " in said.err


def test_stop_is_done_when_the_daemon_ends(tolaria, live_run):
    """If the connection ends before the event arrives, that is the answer."""
    trainer = in_background(live_run, lambda state: state.run.stop, lambda: None)
    closer = threading.Thread(target=lambda: (trainer.join(), live_run.close()))
    closer.start()
    said = tolaria("stop", "--dir", live_run.path.parent)
    closer.join()

    assert said.code == 0


def test_a_stop_without_its_last_checkpoint_is_done_and_says_so(tolaria, live_run):
    """Exit 0, with the reason and the step that the next start continues from; `status` shows the same."""
    where, recorder = live_run.path.parent, live_run.recorder

    def fail():
        recorder.hold()
        id_ = recorder.state.checkpoints.open[-1].id
        recorder.report(m.CheckpointFailedReport(id=id_, why="/r: No space left on device"))
        number = recorder.state.trainer.incarnation
        recorder.take(m.TrainerGone(incarnation=number, pid=1, reason=m.DeathReason.EXIT, exit_code=0))

    trainer = in_background(live_run, lambda state: state.run.stop, fail)
    said = tolaria("stop", "--dir", where)
    trainer.join()
    live_run.close()
    status = tolaria("status", "--dir", where)
    (line,) = [one for one in status.out.splitlines() if one.startswith("  checkpoint ")]

    assert said.code == 0
    assert said.out.splitlines()[-1].startswith("stop: done by RunStopped, event ")
    assert "given up: /r: No space left on device" in said.out.splitlines()[-1]
    assert "step 11" in said.out.splitlines()[-1]
    assert line.startswith("  checkpoint  c000002 at step 10, ")
    assert "given up: /r: No space left on device" in line
    assert "step 11" in line


@pytest.mark.parametrize("how", ["name", "dir", "socket", "variable", "only", "argument", "before"])
def test_a_run_is_named_in_any_of_these_ways(tolaria, live_run, monkeypatch, how):
    """By name, folder, socket, variable, as the only live one, before or after the command."""
    folder = live_run.path.parent
    publish(folder, "mine")
    if how == "variable":
        monkeypatch.setenv("TOLARIA_RUN", "mine")
    given = {
        "name": ("status", "-r", "mine"),
        "dir": ("status", "--dir", folder),
        "socket": ("status", "--socket", live_run.path),
        "argument": ("status", folder),
        "before": ("-r", "mine", "status"),
    }.get(how, ("status",))

    assert tolaria(*given, "--json").json["dir"] == str(folder)


def test_several_live_runs_are_listed_not_guessed(tolaria, live_run, tmp_path):
    """Exit code 2 and the list."""
    other = tmp_path / "two"
    other.mkdir()
    made = Recorder(other / "journal", segment_bytes=1 << 20)
    made.begin_run()
    publish(live_run.path.parent, "one")
    publish(other, "two")
    with Served(made, other):
        said = tolaria("status")
    made.journal.close()

    assert said.code == 2
    assert str(other) in said.err


def test_a_name_nobody_has_says_where_was_looked(tolaria):
    """The hint names `tolaria list`."""
    said = tolaria("-r", "nobody", "status")

    assert said.code == 3
    assert "tolaria list" in said.err


def test_two_names_at_once_are_a_usage_error(tolaria, run_dir):
    """The command does not guess which run is meant."""
    assert tolaria("status", "--dir", run_dir, "-r", "x").code == 2


def test_a_raw_call_prints_what_was_answered(tolaria, live_run):
    """Each reply is one JSON line; errors are those of every command."""
    folder = live_run.path.parent
    status = tolaria("call", "Status", "--dir", folder)
    info = tolaria("call", "org.varlink.service.GetInfo", "--dir", folder)
    events = tolaria("call", "Events", '{"from_seq": 3}', "--dir", folder)

    assert status.json["status"]["step"] == 12
    assert "io.esper.tolaria" in info.json["interfaces"]
    assert sum(len(reply["events"]) for reply in events.lines) == live_run.recorder.state.seq - 2
    assert tolaria("call", "Fly", "--dir", folder).code == 2
    assert tolaria("call", "Status", "[1]", "--dir", folder).code == 2
    assert tolaria("call", "Status", "{", "--dir", folder).code == 2


@pytest.mark.parametrize(("parameters", "said"), [("{", "not valid JSON"), ("[1]", "must be a JSON object")])
def test_bad_json_is_said_before_the_run_is_looked_for(tolaria, parameters, said):
    """No run is live here: the mistake in the command comes first."""
    answer = tolaria("call", "Status", parameters)

    assert (answer.code, said in answer.err) == (2, True)
    assert tolaria("call", "Status", "{}").code == 3


def test_extend_says_the_new_end(tolaria, live_run):
    """The answer names both ends, and the status shows the new one; an end that has passed is refused, exit 4."""
    said = tolaria("extend", "--dir", live_run.path.parent, "--epochs", "9")
    passed = tolaria("extend", "--dir", live_run.path.parent, "--steps", "1")
    status = tolaria("status", "--dir", live_run.path.parent, "--json").lines[0]

    assert said.code == 0
    assert "extend: done by EndOrdered" in said.out
    assert "The training ends after epoch 9 instead of epoch 3." in said.out
    assert (passed.code, status["epochs"]) == (4, 9)
    assert "step 1 has passed: the run is in epoch 2, at step 12;" in passed.err


@pytest.mark.parametrize("options", [[], ["--epochs", "2", "--steps", "3"], ["--epochs", "0"]])
def test_extend_takes_one_end(tolaria, live_run, options):
    """Epochs or steps, from 1."""
    assert tolaria("extend", "--dir", live_run.path.parent, *options).code == 2


def test_extend_of_a_complete_run_says_how_it_goes_on(tolaria, recorder, run_dir):
    """Its daemon has ended, and the journal says why. Any other run without a daemon is not reachable."""
    ongoing = tolaria("extend", run_dir, "--epochs", "9")
    recorder.record(m.RunCompleted(step=12, epochs=1, checkpoint="c000001"))
    recorder.journal.close()
    complete = tolaria("extend", run_dir, "--epochs", "9")

    assert (ongoing.code, complete.code) == (3, 4)
    assert "the run is complete: 1 epoch, 12 steps" in complete.err
    assert f"`tolariad run --dir {run_dir} --epochs N` with more epochs continues it" in complete.err


def test_on_a_terminal_an_answer_fits_80_columns(tolaria, live_run, monkeypatch):
    """Further lines stand under the first; in a file, which is searched by line, it is one line."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = tolaria("extend", "--dir", live_run.path.parent, "--epochs", "9").out.splitlines()

    assert max(map(len, said)) <= 80
    assert said[-2].startswith("extend: done by EndOrdered")
    assert said[-1].startswith("  ")
    assert " ".join(said).endswith("epoch 3.")
