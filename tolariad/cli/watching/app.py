"""The shell of `tolaria watch`: textual shows the lines of a view, and keys give orders after a question.

What is shown is decided by `picture`, what the run is by `feed`. This module loads textual, so only `watch` loads it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Region
from textual.message import Message
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from tolariad.cli import orders, runs
from tolariad.cli.errors import translated
from tolariad.cli.plotting import for_stream
from tolariad.cli.watching.feed import Feed
from tolariad.cli.watching.picture import Curves, Line, picture
from tolariad.cli.watching.view import View
from tolariad.core.calc.bounds import NOTE_CHARACTERS_MAX, text_refusal
from tolariad.forensics.words import safe

_QUESTIONS: Final = {
    "Pause": "Pause the run at its next step boundary?",
    "Resume": "Resume the run?",
    "Checkpoint": "Take a checkpoint at the next step boundary?",
}
Give = Callable[[runs.Target, str, Mapping[str, Any], Callable[[dict[str, Any]], None]], None]


def give(
    target: runs.Target, method: str, parameters: Mapping[str, Any], show: Callable[[dict[str, Any]], None]
) -> None:
    """Give an order and wait for its outcome. Raises as the command of that name."""
    orders.give(target, method, dict(parameters), False, show)


class Lines(Widget):
    """Shows lines, and draws those again that have changed."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    def put(self, lines: list[Line]) -> None:
        """Show these lines from now on."""
        former, self._lines = self._lines, lines
        changed = [y for y, line in enumerate(lines) if y >= len(former) or former[y] != line]
        if len(former) == len(lines):
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))
        else:
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one line as textual draws it."""
        line = self._lines[y] if y < len(self._lines) else ()
        background = self.rich_style
        # The last barrier: no control character of a run goes further, whoever forgot it.
        drawn = [Segment(_drawable(span.text), background + Style.parse(span.style)) for span in line]
        return Strip(drawn).adjust_cell_length(self.size.width, background)


def _drawable(text: str) -> str:
    return for_stream(safe(text), sys.__stdout__) if sys.__stdout__ is not None else safe(text)


class Question(ModalScreen[bool]):
    """A question that y answers with yes, and every other key with no."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the question."""
        with Vertical(classes="box"):
            yield Static(f"{self._text}\n\ny yes   n no", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Answer. No key does anything else meanwhile."""
        event.stop()
        self.dismiss(event.key in ("y", "Y"))


class NoteText(ModalScreen[str]):
    """Asks for the text of a note. Enter records it, Escape leaves without one; the empty text is none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def compose(self) -> ComposeResult:
        """Show a line to type in."""
        with Vertical(classes="box"):
            yield Static("Record a note in the run's journal. Enter records it, Escape leaves.", markup=False)
            yield Input(max_length=NOTE_CHARACTERS_MAX)
            yield Static("", id="wrong", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the text, or say what is wrong with it."""
        text = event.value.strip()
        wrong = text_refusal(text, NOTE_CHARACTERS_MAX, "the note") if text else None
        if wrong is None:
            self.dismiss(text)
        else:
            self.query_one("#wrong", Static).update(wrong)

    def action_leave(self) -> None:
        """Leave without a note."""
        self.dismiss("")


class Choice(ModalScreen[int]):
    """Asks which of several runs to watch."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,ctrl+c", "app.leave", "Quit")]

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def compose(self) -> ComposeResult:
        """List the runs."""
        with Vertical(classes="box"):
            yield Static(f"{len(self._names)} runs are live. Which one? Enter shows it, q quits.", markup=False)
            yield OptionList(*self._names, markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the run of this line."""
        self.dismiss(event.option_index)


class Shown(Message):
    """The feed has a new view."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view


class Failed(Message):
    """The feed failed in a way that it should not."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class WatchApp(App[None]):
    """Watches one of the runs; asks which, if there are several. `view` is what was shown last."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    ModalScreen { align: center middle; background: transparent; }
    .box { width: 72; max-width: 95%; height: auto; max-height: 90%; border: round $primary; padding: 0 1; }
    Input, OptionList { border: none; height: auto; max-height: 12; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "leave", "Quit", priority=False),
        Binding("p", "order('Pause')", "Pause"),
        Binding("r", "order('Resume')", "Resume"),
        Binding("c", "order('Checkpoint')", "Checkpoint"),
        Binding("n", "note", "Note"),
    ]

    def __init__(self, targets: list[runs.Target], *, interval_s: float = 1.0, give: Give = give) -> None:
        super().__init__()
        self.view: View | None = None
        self._targets = targets
        self._interval_s = interval_s
        self._give = give
        self._feed: Feed | None = None
        self._said = ""
        self._curves = Curves()

    def compose(self) -> ComposeResult:
        """Show nothing but lines."""
        yield Lines()

    def on_mount(self) -> None:
        """Begin to follow the run, or ask for one."""
        if threading.current_thread() is threading.main_thread():
            # The terminal must be given back as it was.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.action_leave)
        if len(self._targets) == 1:
            self._follow(0)
        else:
            names = [safe(str(one.folder or one.socket)) for one in self._targets]
            self.push_screen(Choice(names), self._follow)

    def _follow(self, index: int | None) -> None:
        if index is None:
            return
        self._targets = [self._targets[index]]
        self._feed = Feed(self._targets[0], lambda view: self._post(Shown(view)), interval_s=self._interval_s)
        threading.Thread(target=self._run_feed, args=(self._feed,), name="feed", daemon=True).start()

    def _run_feed(self, feed: Feed) -> None:
        try:
            feed.run()
        except Exception as error:  # noqa: BLE001 - it is raised again in the main thread
            self._post(Failed(error))

    def _post(self, message: Message) -> None:
        if self.is_running:
            self.post_message(message)

    def on_shown(self, message: Shown) -> None:
        """Show the new view."""
        self.show(message.view)

    def on_failed(self, message: Failed) -> None:
        """End with the error."""
        raise message.error

    def on_resize(self, event: events.Resize) -> None:
        """Draw everything again, for the new size."""
        self._draw(event.size.width, event.size.height)

    def show(self, view: View) -> None:
        """Show a view from now on."""
        self.view = view
        self._draw(self.size.width, self.size.height)

    def _draw(self, columns: int, rows: int) -> None:
        if self.view is not None and columns > 0 and rows > 0:
            lines = picture(self.view, columns, rows, said=self._said, curves=self._curves)
            self.screen_stack[0].query_one(Lines).put(lines)

    def _say(self, text: str) -> None:
        self._said = text
        if self.view is not None:
            self.show(self.view)

    def action_leave(self) -> None:
        """End, and give the terminal back."""
        if self._feed is not None:
            self._feed.close()
        self.exit()

    def action_order(self, method: str) -> None:
        """Ask whether to give this order."""
        if self._takes_orders():
            self.push_screen(Question(_QUESTIONS[method]), lambda yes: self._send(method, {}, is_sure=yes))

    def action_note(self) -> None:
        """Ask for a note's text."""
        if self._takes_orders():
            self.push_screen(NoteText(), lambda text: self._send("Note", {"text": text}, is_sure=bool(text)))

    def _takes_orders(self) -> bool:
        """Return whether an order can be given now. Say why not."""
        if self._feed is None or self.view is None or len(self.screen_stack) > 1:
            return False
        if self.view.link or self.view.status is None:
            self._say("No order can be given: no daemon answers.")
            return False
        return True

    def _send(self, method: str, parameters: Mapping[str, Any], *, is_sure: bool | None) -> None:
        if is_sure:
            self._say(f"{method.lower()}: sent")
            self._give_in_thread(method, parameters)

    @work(thread=True)
    def _give_in_thread(self, method: str, parameters: Mapping[str, Any]) -> None:
        """Give an order, and say what became of it."""
        try:
            self._give(
                self._targets[0],
                method,
                parameters,
                lambda told: self.call_from_thread(self._say, orders.in_words(told)),
            )
        except Exception as error:
            known = translated(error)
            if known is None:
                raise
            self.call_from_thread(self._say, known.what)
        if self._feed is not None:
            self._feed.look_now()
