"""`tolaria events`, `state`, `why`, `logs` and `journal` on a run without a daemon."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from journal.reader import Reader
from tests.waiting import processor_s
from tolariad.cli import journals
from tolariad.cli.errors import CommandError
from tolariad.cli.output import put_json
from tolariad.core import messages as m

COMMAND = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()"]


def test_events_are_lines_oldest_first(tolaria, dead_run):
    """Time, number, type, sentence."""
    said = tolaria("events", dead_run, "-a")
    lines = said.out.splitlines()

    assert said.code == 0
    assert "RunStarted" in lines[0]
    assert re.fullmatch(
        r"[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d +\d+ StepCompleted  Step 12 of epoch 2: loss 0.5, .*\.", lines[-1]
    )
    assert "=" not in said.out
    assert said.err == ""


def test_events_as_json_are_one_object_a_line(tolaria, dead_run):
    """JSON has numbers, times, and the fields under their own names."""
    events = tolaria("events", dead_run, "-o", "json").lines

    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["time"].endswith("Z")
    assert events[-1]["loss"] == 0.5


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (("-n", "2"), [11, 12]),
        (("-n", "2", "-r"), [12, 11]),
        (("--since", "step:11"), [11, 12]),
        (("--until", "step:2"), [1, 2]),
        (("--since", "epoch:2"), [11, 12]),
        (("-g", "step=3 "), [3]),
        (("-g", "^.*Step 3 of epoch 1: loss"), [3]),
    ],
)
def test_events_can_be_chosen(tolaria, dead_run, options, steps):
    """The last few, in reverse, from and to a position, by text."""
    said = tolaria("events", dead_run, "-t", "StepCompleted", "--json", *options)

    assert [event["step"] for event in said.lines] == steps


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("StepCompletd", "StepCompleted"),
        ("committed", "CheckpointCommitted"),
        ("Qqq", "docs/events.md"),
    ],
)
def test_a_type_that_does_not_exist_is_a_mistake_and_not_an_empty_answer(tolaria, dead_run, text, hint):
    """Exit 2 and the nearest names; for a known type without events the answer is empty, exit 0."""
    for options in ([], ["-n", "3"], ["-f"]):
        said = tolaria("events", str(dead_run), "-t", text, *options)
        assert (said.code, said.out) == (2, "")
        assert f"-t '{text}'" in said.err
        assert hint in said.err
    assert tolaria("events", str(dead_run), "-t", text, "-t", "RunStarted").code == 0
    assert tolaria("events", str(dead_run), "-t", "TrainerHung").code == 0


def test_verbose_and_cat_show_the_same_events(tolaria, dead_run):
    """One format has every field, the other only the text."""
    verbose = tolaria("events", dead_run, "-a", "-n", "1", "-o", "verbose").out
    cat = tolaria("events", dead_run, "-a", "-n", "1", "-o", "cat").out

    assert "grad_norm: 1.0" in verbose
    assert cat == "Step 12 of epoch 2: loss 0.5, gradient norm 1, learning rate 0.003.\n"
    assert cat in verbose


def test_follow_shows_what_comes(live_run):
    """The process shows new events as they are written, and ends at ^C with 130."""
    import signal

    command = [*COMMAND, "events", str(live_run.path.parent), "-f", "-n", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        first = json.loads(following.stdout.readline())
        live_run.do(live_run.recorder.step)
        second = json.loads(following.stdout.readline())
        following.send_signal(signal.SIGINT)
        code = following.wait(60)

    assert (first["step"], second["step"]) == (12, 13)
    assert code == 130


def test_a_reader_that_has_seen_enough_is_no_error(dead_run):
    """`tolaria events RUN | head -1` ends quietly."""
    shown = subprocess.run(
        f'"{sys.executable}" -c "from tolariad.cli.tolaria import main; main()" events "{dead_run}" | head -1',
        shell=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert "RunStarted" in shown.stdout
    assert shown.stderr == ""


def test_state_at_a_step_is_that_steps(tolaria, dead_run):
    """The state as JSON and text: after a sequence number, a step, and now."""
    assert tolaria("state", dead_run, "--at", "step:7", "--json").json["progress"]["step"] == 7
    assert tolaria("state", dead_run, "--at", "5", "--json").json["seq"] == 5
    assert tolaria("state", dead_run, "--json").json["progress"]["step"] == 12
    assert "phase: running" in tolaria("state", dead_run, "--full").out


def test_state_is_a_page_unless_all_of_it_is_asked_for(tolaria, dead_run):
    """Twenty lines at most: phase, the event that led to it, progress; --full has every field."""
    page, full = tolaria("state", dead_run, "--at", "step:7"), tolaria("state", dead_run, "--at", "step:7", "--full")

    assert len(page.out.splitlines()) <= 20
    for word in ("running", "StepCompleted  Step 7 of epoch 1", "epoch 1 of 3, step 7 of 30"):
        assert word in page.out
    assert "--full" in page.err
    assert len(full.out.splitlines()) > 100


def test_why_shows_the_chain(tolaria, dead_run):
    """Causes, the event, consequences; as JSON too."""
    words = tolaria("why", dead_run, "c000002")
    told = tolaria("why", dead_run, "c000002", "--json").json

    assert "because" in words.out
    assert told["event"]["type"] == "CheckpointCommitted"
    assert [cause["type"] for cause in told["causes"]][-1] == "CheckpointBegun"


def test_why_speaks_in_sentences_and_verbose_has_the_fields(tolaria, dead_run):
    """No field's name in the short form; each event's number, type and sentence."""
    short, verbose = tolaria("why", dead_run, "c000002").out, tolaria("why", dead_run, "c000002", "-o", "verbose").out

    assert re.search(
        r"^  this     .* CheckpointCommitted  Checkpoint c000002 of step 10 is on disk", short, re.MULTILINE
    )
    assert "manifest" not in short
    assert re.search(r"^ +manifest: [0-9a-f]+$", verbose, re.MULTILINE)


def test_why_a_run_failed_has_the_whole_reason(tolaria, recorder, run_dir):
    """A field of an event is cut after a hundred characters. The reason of a failure is there once, uncut."""
    why = f"the training raised the same exception twice after step 7: ValueError: {'long ' * 30}(task.py:19)"
    recorder.record(m.RunFailed(kind=m.FailureKind.TRAINER, why=why))
    recorder.journal.close()

    said = tolaria("why", run_dir, "failure").out
    assert said.count(why) == 1


def test_no_answer_is_exit_1_and_a_bad_place_exit_2(tolaria, dead_run):
    """No such event; not a position; not a run."""
    assert tolaria("why", dead_run, "death").code == 1
    assert tolaria("events", dead_run, "--since", "soon").code == 2
    assert tolaria("events", dead_run, "-g", "(").code == 2
    assert tolaria("events", dead_run / "nothing").code == 2
    assert tolaria("state", dead_run, "--at", "step:13").code == 1
    assert "the last one is 12" in tolaria("state", dead_run, "--at", "step:13").err
    assert tolaria("evnts", dead_run).code == 2
    assert "did you mean events?" in tolaria("evnts", dead_run).err


def test_without_a_command_the_help_is_shown_as_it_is(tolaria):
    """The help goes to stderr, exit 2, without the program's name before each line."""
    said = tolaria()

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("Usage: tolaria ")
    assert "tolaria:" not in said.err


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tolaria, dead_run, tmp_path):
    """The error says what, why and what to do; a failed export leaves no file."""
    nowhere, target = tmp_path / "nowhere" / "out.jsonl", tmp_path / "target" / "out.jsonl"
    target.mkdir(parents=True)
    said = tolaria("journal", "export", dead_run, "-o", nowhere)
    with pytest.raises(CommandError, match=f"{target} cannot be written: Is a directory"):
        journals._written(target, lambda stream: stream.write("a line"))

    assert said.code == 1
    assert f"tolaria: {nowhere} cannot be written: No such file or directory\n  give a file" in said.err
    assert list(target.parent.iterdir()) == [target]


def test_errors_are_json_where_json_was_asked_for(tolaria, dead_run):
    """On stderr, with the exit code in it; stdout stays empty."""
    said = tolaria("events", dead_run / "nothing", "--json")

    assert json.loads(said.err)["exit_code"] == said.code == 2
    assert said.out == ""


def test_the_journals_figures_agree_with_what_verify_counts(tolaria, dead_run):
    """`journal stats` for people and as JSON: the same events and segments as verifying finds."""
    shown, figures = tolaria("journal", "stats", dead_run), tolaria("journal", "stats", dead_run, "--json").json
    verified = tolaria("journal", "verify", dead_run, "--json").json

    assert shown.code == 0
    assert f"{figures['bytes_a_step']:.0f} bytes per step" in shown.out
    assert (figures["events"], figures["segments"]) == (verified["events"], verified["segments"])
    assert figures["frame_sizes"]["least"] >= 4096


def test_the_journal_verifies_until_a_byte_is_changed(tolaria, dead_run):
    """Exit 0 if clean, else 1; the answer names the place of the damage."""
    clean = tolaria("journal", "verify", dead_run, "--json")
    (file,) = (dead_run / "journal").glob("00000001-*.wal")
    data = bytearray(file.read_bytes())
    data[4096 * 4 + 300] ^= 1
    file.write_bytes(data)
    damaged = tolaria("journal", "verify", dead_run)

    assert (clean.code, clean.json["verdict"]) == (0, "clean")
    assert damaged.code == 1
    assert file.name in damaged.out


def test_a_foreign_file_among_the_segments_is_named_with_what_to_do(tolaria, dead_run):
    """The journal is not damaged; the answer says to move the extra file away."""
    foreign = dead_run / "journal" / "junk.wal"
    foreign.touch()
    said = tolaria("journal", "verify", dead_run)
    foreign.unlink()

    assert said.code == 1
    assert "junk.wal" in said.out
    assert "move it away" in said.out
    assert "restore" not in said.out
    assert tolaria("journal", "verify", dead_run).code == 0


def test_repair_asks_first_and_refuses_what_it_must(tolaria, dead_run):
    """A clean journal needs no repair, a damaged one is refused with the reason; nothing is changed."""
    (file,) = (dead_run / "journal").glob("00000001-*.wal")
    before = file.read_bytes()
    nothing = tolaria("journal", "repair", dead_run, "--dry-run")
    damaged = bytearray(before)
    damaged[4096 * 4 + 300] ^= 1
    file.write_bytes(damaged)
    refused = tolaria("journal", "repair", dead_run, "--json")

    assert nothing.code == 0
    assert (refused.code, refused.json["action"]) == (1, "refused")
    assert file.read_bytes() == bytes(damaged)


def test_repair_of_a_torn_tail_needs_a_yes(tolaria, dead_run):
    """Half a frame after the end: without a terminal `--yes` is needed; the cut bytes are kept."""
    (file,) = (dead_run / "journal").glob("00000001-*.wal")
    with Reader(dead_run / "journal") as reader:
        last = reader.last_seq
        list(reader)
        end = reader._walk.tail.offset
    data = bytearray(file.read_bytes())
    data[end : end + 100] = b"x" * 100
    file.write_bytes(data)
    asked = tolaria("journal", "repair", dead_run)
    done = tolaria("journal", "repair", dead_run, "--yes", "--json")

    assert asked.code == 2
    assert "--yes" in asked.err
    assert (done.code, done.json["action"]) == (0, "cut_tail")
    assert tolaria("journal", "verify", dead_run, "--json").json["last_seq"] == last


def test_export_is_whole_or_not_there(tolaria, dead_run, tmp_path):
    """To stdout or a file, readable or raw, all or a part."""
    to_file = tolaria("journal", "export", dead_run, "-o", tmp_path / "out.jsonl")
    part = tolaria("journal", "export", dead_run, "--since", "step:12")
    raw = tolaria("journal", "export", dead_run, "--raw")

    assert to_file.code == 0
    exported = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [event["seq"] for event in exported] == list(range(1, len(exported) + 1))
    assert len(part.lines) == 1
    assert len(raw.lines) == len(exported)
    assert "raw" in raw.lines[0]


def test_a_log_without_a_line_says_so(tolaria, dead_run):
    """On stderr: the output is empty, as the log is, unless no line was asked for."""
    (dead_run / "logs").mkdir()
    (dead_run / "logs" / "trainer.log").touch()
    said = tolaria("logs", "--dir", dead_run)

    assert (said.code, said.out) == (0, "")
    assert said.err == "the trainer has printed nothing yet; `tolaria events RUN` shows what happened\n"
    assert tolaria("logs", "--dir", dead_run, "-n", "0").err == ""


def test_logs_shows_the_end_of_what_was_printed(tolaria, dead_run):
    """The last lines are shown; escape sequences of the trainer do not reach the terminal."""
    assert tolaria("logs", "--dir", dead_run).code == 1
    (dead_run / "logs").mkdir()
    (dead_run / "logs" / "trainer.log").write_text("".join(f"line {n}\n" for n in range(50_000)) + "\x1b[2Jend\n")
    said = tolaria("logs", "--dir", dead_run, "-n", "2")

    assert said.code == 0
    assert said.out == "line 49999\n\\x1b[2Jend\n"


def test_the_last_twenty_of_many_events_are_quick(tmp_path):
    """The time does not grow with the journal; an order of magnitude to spare for a busy machine."""
    import msgspec

    import journal
    from tests.control.fakes import START_NS

    encode = msgspec.msgpack.Encoder().encode
    with journal.Journal.open(tmp_path / "journal", segment_bytes=16 << 20) as writer:
        writer.begin(
            run_id=bytes(16), context_hash=bytes(32), boot_id=bytes(16), capture=lambda: b"\xc0", wall_ns=START_NS
        )
        for first in range(1, 300_001, 1000):
            steps = range(first, first + 1000)
            events = [encode({"type": "StepCompleted", "wall": START_NS, "step": n, "loss": 0.5}) for n in steps]
            writer.commit(events, epoch=1, step=steps[-1], wall_ns=START_NS + first, mono_ns=first)
    times = []
    for _ in range(3):
        before = processor_s()
        shown = subprocess.run(
            [*COMMAND, "events", str(tmp_path), "-n", "20", "--json"], capture_output=True, timeout=60
        )
        times.append(processor_s() - before)
    print(f"events -n 20 of 300 000: {min(times):.3f} s of a processor")

    assert [json.loads(line)["step"] for line in shown.stdout.splitlines()] == list(range(299_981, 300_001))
    assert min(times) < 2.5


def test_a_wild_clock_and_a_wild_text_are_shown_and_obeyed_by_nobody(tolaria, tmp_path):
    """A time outside the calendar, escape sequences in type and value, and an unknown type are shown safely."""
    import msgspec

    import journal
    from tests.control.fakes import START_NS

    wild = {
        "type": "Odd\x1b[2J",
        "wall": 1 << 62,
        "text": "\x1b]0;title\x07",
        "nested": [{"a": b"\x00"}],
        "x": float("inf"),
    }
    with journal.Journal.open(tmp_path / "journal", segment_bytes=1 << 20) as writer:
        writer.begin(
            run_id=bytes(16), context_hash=bytes(32), boot_id=bytes(16), capture=lambda: b"\xc0", wall_ns=START_NS
        )
        writer.commit([msgspec.msgpack.encode(wild)], epoch=0, step=0, wall_ns=START_NS, mono_ns=1)
    styles = {style: tolaria("events", tmp_path, "-o", style) for style in ("short", "cat", "verbose", "json")}

    assert [said.code for said in styles.values()] == [0] * 4
    assert all("\x1b" not in said.out and "\x07" not in said.out for said in styles.values())
    assert styles["json"].json["x_state"] == "pos_inf"


@pytest.mark.parametrize("terminal", [True, False])
def test_json_holds_nothing_that_a_terminal_obeys(capsys, monkeypatch, terminal):
    """JSON allows control characters that a terminal would obey; they are escaped, also in a pipe."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    put_json({"text": "\x9b31m \u202eü\ud800"})

    assert capsys.readouterr().out == '{"text": "\\u009b31m \\u202eü\\ud800"}\n'


def test_a_reader_that_has_seen_enough_is_no_failure(dead_run):
    """`tolaria events RUN | head -1` exits with 0 and prints no error."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [*COMMAND, "events", str(dead_run)], stdout=writing, stderr=subprocess.PIPE, check=False, text=True
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
