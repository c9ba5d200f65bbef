"""Every command finds the run as all others do: by the same options, by an argument, by the environment.

The commands are called up to the place where they use the run that they found: it is recorded there.
"""

from __future__ import annotations

import click
import pytest

from tests.cli.test_operations_page import ALL
from tolariad import daemon
from tolariad.cli import probes, runs
from tolariad.cli.tolaria import tolaria as tolaria_command
from tolariad.cli.tolariad import tolariad as tolariad_command
from tolariad.forensics.topics import TOPICS

# Arguments that a command needs besides the run.
NEEDED = {
    "tolaria call": ("Status",),
    "tolaria checkout": ("--step", "1", "-o", "weights"),
    "tolaria emergency": ("minor",),
    "tolaria export-weights": ("-o", "weights.safetensors"),
    "tolaria extend": ("--epochs", "5"),
    "tolaria follow": ("--to", "tensorboard"),
    "tolaria lr set": ("group", "0.1"),
    "tolaria note": ("text",),
    "tolaria stage": ("text",),
    "tolaria quarantine add": ("--seed", "slot"),
    "tolaria quarantine remove": ("q0001",),
    "tolaria reexecute": ("--from", "1", "--to", "2"),
    "tolaria report": ("-o", "report.html"),
    "tolaria rollback": ("--yes",),
    "tolaria seeds advance": ("slot",),
    "tolaria seeds cull": ("slot",),
    "tolaria seeds germinate": ("slot", "--blueprint", "conv"),
}
# Their arguments are no run.
OTHER_ARGUMENTS = {
    "tolaria call",
    "tolaria list",
    "tolaria lr set",
    "tolaria note",
    "tolaria stage",
    "tolaria run",
    "tolariad check",
    "tolariad lr-find",
    "tolariad profile",
    "tolariad run",
    "tolariad test",
}
# RUN comes before the others.
RUN_FIRST = {
    "tolaria diff": ("step:1", "step:2"),
    "tolaria metrics": ("loss",),
    "tolaria plot": ("loss",),
    "tolaria why": ("pause",),
}
# It names no run at all.
WITHOUT_RUN = {"tolariad new-task"}
COMMANDS = [name for name, _ in ALL if name not in WITHOUT_RUN]
GROUPS = {"lr": "show", "prune": "status", "quarantine": "list", "seeds": "list"}


class Found(Exception):
    """A command has found its run."""


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Return a function that calls a command and returns the folder of the run that it found."""
    (tmp_path / "work" / "runs" / "mine" / "journal").mkdir(parents=True)
    (tmp_path / "work" / "runs" / "other" / "journal").mkdir(parents=True)

    def tell(folder):
        raise Found(str(folder))

    monkeypatch.setattr(runs.Target, "connect", lambda target, **_: tell(target.folder))
    monkeypatch.setattr(runs, "known_folder", lambda target: tell(target.folder))
    monkeypatch.setattr(probes, "settings_for", lambda folder, *_: tell(folder))
    monkeypatch.setattr(probes.runs, "known_folder", lambda target: tell(target.folder))
    monkeypatch.setattr(daemon, "run", lambda request: tell(request.run_dir))

    def call(*words):
        program, *given = [str(one) for one in words]
        command = {"tolaria": tolaria_command, "tolariad": tolariad_command}[program]
        with pytest.raises(Found) as told:
            command.main(given, prog_name=program, standalone_mode=False)
        return told.value.args[0]

    return call


def forms(name, run):
    """Yield every form in which the command may name the run, as the words of a command line."""
    program, *words = name.split()
    needed = NEEDED.get(name, ())
    names = [("--run", run), (f"--run={run}",), ("--dir", run)]
    for option in [*names, ("-r", run)]:
        if option[0] != "-r" or name != "tolaria events":
            yield (program, *words, *needed, *RUN_FIRST.get(name, ()), *option)
        if program == "tolaria":
            yield (program, *option, *words, *needed, *RUN_FIRST.get(name, ()))
        if len(words) > 1:
            yield (program, words[0], *option, words[1], *needed)
    if name in RUN_FIRST:
        yield (program, *words, run, *RUN_FIRST[name])
    elif name not in OTHER_ARGUMENTS:
        yield (program, *words, *needed, run)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_every_form(found, monkeypatch, name):
    """By `--run`, `--dir`, `-r` and the argument, before and after the command; by folder and by name."""
    for form in forms(name, "runs/mine"):
        assert found(*form) == "runs/mine", form
    by_name = [form for form in forms(name, "mine") if not (name.endswith(" run") and "--dir" in form)]
    for form in by_name:
        assert found(*form) == "runs/mine", form
    if not name.startswith("tolariad") and name not in ("tolaria run", "tolaria version", "tolaria list"):
        monkeypatch.setenv("TOLARIA_RUN", "mine")
        assert found(*name.split(), *NEEDED.get(name, ()), *RUN_FIRST.get(name, ())) == "runs/mine"
        # What is named comes before the environment.
        for form in forms(name, "other"):
            assert found(*form) == "runs/other", form


@pytest.mark.parametrize(("group", "usual"), GROUPS.items())
def test_a_group_takes_a_run_in_place_of_a_command(found, tolaria, group, usual):
    """`tolaria seeds RUN` is `tolaria seeds list RUN`. A word that is neither is named with the nearest command."""
    for words in (("mine",), ("runs/mine", "--json"), ("--json", "mine"), ("-r", "mine"), ("--dir", "runs/mine")):
        assert found("tolaria", group, *words) == "runs/mine"
    said = tolaria(group, usual + "x")
    assert (said.code, f"no command and no run '{usual}x'; did you mean {usual}?" in said.err) == (2, True)
    assert f"Usage: tolaria {group} [OPTIONS] COMMAND" in tolaria(group, "--help").out


def test_id_and_checkpoint_are_the_same():
    """Every command that takes one of them for a checkpoint takes the other. The `--id` of an order is the order's."""
    spelt = {name: [option.opts for option in command.params if option.name != "id_"] for name, command in ALL}
    one_only = {
        name
        for name, options in spelt.items()
        for opts in options
        if "--checkpoint" in opts and not {"--id", "--to"} & set(opts)
    }

    assert one_only == {"tolaria quarantine add"}
    assert [name for name, command in ALL for one in command.params if {"--id", "--checkpoint"} <= set(one.opts)] == [
        "tolaria export-weights",
        "tolariad test",
        "tolariad lr-find",
        "tolariad profile",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("status", "runs/mine", "-r", "runs/other"),
        ("stop", "-r", "runs/mine", "--dir", "runs/other"),
        ("state", "--dir", "runs/mine", "--socket", "x.sock"),
        ("-r", "runs/mine", "--socket", "x.sock", "events"),
    ],
    ids=" ".join,
)
def test_two_runs_are_refused(tolaria, words):
    """A command that names two runs acts on neither."""
    said = tolaria(*words)

    assert (said.code, "each names a run, so give only one of them" in said.err) == (2, True)


@pytest.mark.parametrize("words", [("stop", "-r", ""), ("stop", ""), ("stop", "--dir", ""), ("--run", "", "pause")])
def test_an_empty_name_is_refused(tolaria, live_run, words):
    """An unset variable of a script does not stop the only live run."""
    said = tolaria(*words)

    assert (said.code, "is empty" in said.err) == (2, True)
    assert live_run.recorder.state.run.phase.value == "running"


def test_the_only_live_run_here_comes_before_one_elsewhere(tolaria, monkeypatch, tmp_path):
    """With one live run in ./runs and one elsewhere, the first is meant; with two here, none."""
    there = [runs.Target(tmp_path / "work" / "runs" / "a", tmp_path / "a"), runs.Target(tmp_path / "b", tmp_path / "b")]
    monkeypatch.setattr(runs, "candidates", lambda: iter(there))
    monkeypatch.setattr(runs, "is_live", lambda _: True)

    with click.Context(tolaria_command):
        assert runs.find() == there[0]
        there[1] = runs.Target(tmp_path / "work" / "runs" / "b", tmp_path / "b")
        with pytest.raises(runs.CommandError, match="2 runs are live"):
            runs.find()
        there[:] = [runs.Target(tmp_path / "b", tmp_path / "b")]
        assert runs.find() == there[0]


def test_a_rollback_by_id_of_a_checkpoint_says_how(tolaria, live_run):
    """`--id` of an order is the order's own: it never goes back to another checkpoint than the one that was meant."""
    said = tolaria("rollback", "--id", "c000001", "--yes", "--dir", live_run.path.parent)

    assert (said.code, "to go back to c000001, give --to c000001" in said.err) == (2, True)


def test_one_argument_of_why_is_the_topic(tolaria, dead_run):
    """Without a live run the error says how to name one."""
    said = tolaria("why", "pause")
    assert said.code == 3
    assert "no live run found" in said.err


def test_why_without_a_topic_lists_those_that_have_an_answer(tolaria, dead_run, monkeypatch):
    """The newest first, each with its event; after them the words of which nothing happened. A run's name is enough."""
    said = tolaria("why", dead_run)
    words = [line.split()[0] for line in said.out.splitlines()[:-1]]
    told = tolaria("why", dead_run, "--json").json
    assert said.code == 0
    assert words == list(told["topics"])
    numbers = [event["seq"] for event in told["topics"].values()]
    assert numbers == sorted(numbers, reverse=True)
    assert "checkpoint" in words
    assert "rollback" in said.out.splitlines()[-1]
    assert sorted([*words, *told["never"]]) == sorted(TOPICS)
    for word in words:
        assert tolaria("why", dead_run, word, "--json").json["event"] == told["topics"][word]
    monkeypatch.chdir(dead_run.parent.parent)
    monkeypatch.setattr(runs, "RUNS", dead_run.parent)
    assert tolaria("why", dead_run.name).out == said.out


def test_the_topic_of_a_seed_takes_its_slot_in_each_form(tolaria, dead_run):
    """With an option and with an argument; a third word is refused."""
    by_option, by_argument = (tolaria("why", *words) for words in (("-r", dead_run, "seed", "x"), (dead_run, "seed:x")))
    assert (by_option.code, by_option.err) == (by_argument.code, by_argument.err)
    said = tolaria("why", "-r", dead_run, "pause", "x")
    assert (said.code, "only the topic seed takes a slot, not pause" in said.err) == (2, True)


def test_a_command_finds_the_run_by_its_socket(tolaria, live_run):
    """Commands that read the journal ask the daemon for the folder."""
    for given in (("--socket", live_run.path, "events", "-n", "1"), ("events", "-n", "1", "--socket", live_run.path)):
        said = tolaria(*given)
        assert said.code == 0, said.err
