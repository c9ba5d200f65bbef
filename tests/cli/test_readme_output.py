"""The README shows what its first command prints. Each line of it is one that the program would print."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

from journal import Files
from journal.packing import Packer
from tolariad.cli.progress import closing_words
from tolariad.cli.status_words import status_row
from tolariad.config import load

ROOT = Path(__file__).resolve().parents[2]
MEASURED = re.compile(
    r"epoch (\d+)/(\d+)  step (\d+)/(\d+)  loss (\S+)  val_loss (\S+)  acc (\S+) %  lr (\S+)"
    r"(?:  (\S+) steps/s  (\d+) s left)?"
)
STARTING = {"starting the trainer": None, "importing torch": "import", "building the model": "build"}


def shown() -> list[str]:
    """Return the lines of the first output on the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.search(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1].splitlines()


def measured(status, line):
    """Return the status that has the numbers of a line of progress."""
    epoch, epochs, step, total, loss, val_loss, accuracy, lr, speed, left = MEASURED.search(line).groups()
    return msgspec.structs.replace(
        status,
        phase="completed" if line.startswith("completed") else "running",
        name="digits",
        epoch=int(epoch),
        epochs=int(epochs),
        step=int(step),
        steps_total=int(total),
        steps_per_epoch=int(total) // int(epochs),
        loss=float(loss),
        accuracy=float(accuracy) / 100,
        metrics={"loss": float(val_loss), "accuracy": float(accuracy) / 100},
        lr=float(lr),
        steps_per_s=float(speed) if speed else None,
        eta_s=float(left) if left else None,
    )


def test_the_readme_shows_the_output_of_make_run(thirty_steps, monkeypatch, run_dir):
    """Progress and summary are computed from the numbers shown; the journal's own numbers may be any."""
    Packer(Files(), run_dir / "journal", pause_s=0).pack_all()
    Path(".venv/bin").mkdir(parents=True)
    for program in ("tolaria", "tolariad"):
        Path(".venv/bin", program).touch()
    monkeypatch.setattr(sys, "argv", [".venv/bin/tolariad"])
    monkeypatch.setenv("PATH", "")

    lines = shown()
    progress = [line for line in lines if MEASURED.search(line)]
    starting = lines[: lines.index(progress[0])]
    summary = lines[len(starting) + len(progress) :]
    last = measured(thirty_steps, progress[-1])
    closing = [line.replace(str(run_dir), "runs/digits") for line in closing_words(last, run_dir)[0]]

    assert [line for line in starting if line not in STARTING] == []
    for line in starting:
        trainer = {"alive": True, "activity": STARTING[line]}
        begun = {**msgspec.to_builtins(thirty_steps), "phase": "starting", "epoch": 0, "trainer": trainer}
        assert status_row(begun) == line
    assert [status_row(msgspec.to_builtins(measured(thirty_steps, line))) for line in progress] == progress
    assert numbers_apart(summary[1]) == numbers_apart(closing[1])
    assert [summary[0], *summary[2:]] == [closing[0], *closing[2:]]


def numbers_apart(line: str) -> str:
    """Return the line with `#` for each number and its unit of bytes."""
    return re.sub(r"[\d.]+(?: k?M?B)?", "#", line)


def test_make_run_is_the_command_whose_output_is_shown():
    """The Makefile trains digits in runs/digits, for as many epochs as the README shows."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    settings = load(sets=["task=digits"])

    assert "\t$(BIN)/tolariad run --task digits --dir $(RUN)\n" in makefile
    assert "\nRUN ?= runs/digits\n" in makefile
    assert f"in {settings.epochs} of {settings.epochs} epochs" in "\n".join(shown())
