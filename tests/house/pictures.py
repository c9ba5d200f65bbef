"""The pictures of the documentation: a run in the terminal, drawn as SVG from what the commands would print.

`python -m tests.house.pictures` writes them again. The run is a recorded one with a fixed clock and drawn losses, so
the same code gives the same pictures. They name no font of the network.
"""

from __future__ import annotations

import io
import math
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from journal.reader import Reader
from tests.control.fakes import Recorder
from tests.house.tree import ROOT
from tolariad.cli import output
from tolariad.cli.progress import Progress
from tolariad.cli.tolaria import tolaria
from tolariad.cli.watching.picture import picture
from tolariad.cli.watching.seen import Seen
from tolariad.cli.watching.view import View, panels_of
from tolariad.control.replies import RunStatus
from tolariad.control.reply_tables import RateGroup, RateTable
from tolariad.core import messages as m

FOLDER = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 80, 24
EPOCHS, EPOCHS_DONE, STEPS = 40, 31, 10
SPIKE, BACK_TO = 163, 160
RATES = RateTable(
    step=EPOCHS_DONE * STEPS,
    conservative=False,
    violations=0,
    groups=(
        RateGroup(name="body", policy="cosine", base=0.003, now=0.000371, next=0.000371, waiting=0),
        RateGroup(name="head", policy="constant", base=0.01, now=0.01, next=0.01, waiting=0),
    ),
)
_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


class Drawn:
    """The run: its statuses after each step, and its events."""

    def __init__(self, folder: Path) -> None:
        made = Recorder(folder / "journal", segment_bytes=1 << 20)
        made.begin_run(epochs=EPOCHS)
        self.folder = folder
        self.statuses: list[RunStatus] = []
        drawn = random.Random(7)
        for n in range(1, EPOCHS_DONE * STEPS + 5):
            fell = math.exp(-n / 60)
            noise = 1 + 0.25 * drawn.random()
            loss = 4.9 if n == SPIKE else (2.2 * fell + 0.02) * noise
            made.step(loss=loss, metrics={"loss": 2.1 * fell + 0.05, "accuracy": 0.985 - 0.85 * fell * noise})
            if n == SPIKE:
                self._go_back(made)
            self.statuses.append(msgspec.structs.replace(made.status(), dir="runs/digits", steps_per_s=41.8, eta_s=8.0))
        made.journal.close()
        self.seen = Seen()
        with Reader(folder / "journal") as reader:
            self.seen.add(reader)

    @staticmethod
    def _go_back(made: Recorder) -> None:
        usual = "loss 4.9 at step 163, where 0.17 was usual and 0.41 the limit"
        place = {"branch": 1, "parent": 0, "step": BACK_TO, "epoch": BACK_TO // STEPS + 1, "batch": 0}
        made.record(m.RolledBack(rollback="r0001", checkpoint="c000017", from_step=SPIKE, why=usual, **place))


def watch_picture(run: Drawn) -> Text:
    """Return the screen of `tolaria watch`."""
    status = output.printable(msgspec.to_builtins(run.statuses[-1]))
    view = View(
        where="runs/digits",
        status=status,
        rates=RATES,
        breakers=(),
        panels=panels_of(run.seen),
        checkpoints=tuple(run.seen.checkpoints),
    )
    lines = [Text.assemble(*line) for line in picture(view, COLUMNS, ROWS)]
    return Text("\n").join(lines)


def run_picture(run: Drawn) -> Text:
    """Return what `tolariad run` has on the terminal after a while."""
    stream = io.StringIO()
    progress = Progress(stream, rewrite=True)
    for status in run.statuses:
        progress(status)
    stays = [part for part in stream.getvalue().split("\r\x1b[K") if part.endswith("\n")]
    newest = stream.getvalue().rpartition("\r\x1b[K")[2]
    return Text.from_ansi("$ tolariad run --task digits --dir runs/digits\n" + "".join(stays) + newest)


def plot_picture(run: Drawn) -> Text:
    """Return what `tolaria plot` prints."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(printed):
        tolaria.main(["plot", str(run.folder)], standalone_mode=False)
    printed.seek(0)
    return Text.from_ansi("$ tolaria plot runs/digits\n" + printed.read())


PICTURES: dict[str, tuple[str, Callable[[Drawn], Text]]] = {
    "run": ("tolariad run", run_picture),
    "watch": ("tolaria watch", watch_picture),
    "plot": ("tolaria plot", plot_picture),
}


@contextmanager
def terminal() -> Iterator[None]:
    """Let code see a terminal of 80 columns with colours, and the time of Greenwich."""
    former = dict(os.environ)
    os.environ.update(COLUMNS=str(COLUMNS), LINES=str(ROWS), TZ="UTC", FORCE_COLOR="1", NO_COLOR="")
    time.tzset()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)
        time.tzset()


def svg(text: Text, title: str, name: str) -> str:
    """Return the text in a window as SVG. rich names a font by its address in the network: it is left out."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text, overflow="crop", no_wrap=True, crop=True)
    drawn = _FACE.sub("", console.export_svg(title=title, theme=MONOKAI, unique_id=name))
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def pictures() -> dict[Path, str]:
    """Return every picture by its file."""
    with terminal(), tempfile.TemporaryDirectory() as folder:
        run = Drawn(Path(folder))
        return {FOLDER / f"{name}.svg": svg(draw(run), title, name) for name, (title, draw) in PICTURES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, drawn in pictures().items():
        file.write_text(drawn, encoding="utf-8")
