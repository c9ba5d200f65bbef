"""The messages of the link. First those to the recorder, then those to the program, then those between ranks.

A run goes so: Hello, Opened; Begin, then Train and Ended once for each trainer; Over. After that the recorder takes the
next Hello.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias, Union

import msgspec

from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import CONCERNS, defined_in

if TYPE_CHECKING:
    Command: TypeAlias = m.Command
else:
    # For the codec: all orders.
    Command = Union[  # noqa: UP007 - from a list
        tuple(one for module in CONCERNS.values() for one in defined_in(module, m.Command) if one is not m.Command)
    ]


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A message of the link."""


class Hello(Word, frozen=True, kw_only=True):
    """Open this run. `settings`: JSON. `environment`, `cwd`: the program's, as they are now."""

    version: str
    run_dir: str
    config: str | None
    settings: bytes
    accept_config: bool
    accept_data: bool
    accept_code: bool
    environment: dict[str, str]
    cwd: str


class Begin(Word, frozen=True, kw_only=True):
    """Everything is built: record the start of the run.

    `program`: its name, for what it orders. `workers`: processes that load its data. `cores`: those that it may use.
    `resumes`: what is paused or frozen goes on, because somebody has called `train`; else a recorder is replaced.
    """

    program: str
    workers: int
    cores: tuple[int, ...]
    resumes: bool = True


class Order(Word, frozen=True, kw_only=True):
    """An order of the program. `number`: the answer has the same one."""

    number: int
    command: Command


class Signal(Word, frozen=True, kw_only=True):
    """A signal came to the program."""

    name: str


class Ended(Word, frozen=True, kw_only=True):
    """A trainer has ended. `was_told`: because it was ordered to; else the program raises, or has left its loop."""

    incarnation: int
    was_told: bool


class Refused(Word, frozen=True, kw_only=True):
    """The run cannot be opened. Nothing was changed."""

    code: int
    why: str
    hint: str


class Opened(Word, frozen=True, kw_only=True):
    """The run as it stands, locked for this program. Nothing is recorded yet.

    To another rank the descriptors of the group page and of the memory for exact sums come with it.
    `config`: complete, as text. `threads`: the number of torch's threads in the newest checkpoint. `state`: a capture.
    `store`: the port at which the ranks that a daemon has started meet; those have the rest from the daemon.
    """

    run_id: str
    config: str
    threads: int | None
    state: bytes
    store: int = 0


class Train(Word, frozen=True, kw_only=True):
    """Train now. The descriptors of the channel, the page and the arena of snapshots come with it."""

    incarnation: int


class Answered(Word, frozen=True, kw_only=True):
    """The answer to an order, after what it leads to is durable: the number of its event, or why it is refused."""

    number: int
    seq: int = 0
    refusal: m.Refusal | None = None


class Figures(Word, frozen=True, kw_only=True):
    """What `get_metrics` shows, as of an event that is no step. `names`: the names of the steps' metrics.

    `went_back`: a rollback is done, so the steps before are no longer those of the run.
    """

    values: dict[str, float]
    names: tuple[str, ...]
    went_back: bool = False


class Said(Word, frozen=True, kw_only=True):
    """A sentence for the program's log."""

    text: str


class CheckpointEnd(Word, frozen=True, kw_only=True):
    """A checkpoint has ended. `root`: the event that began it. `manifest`: its hash; empty if it was aborted."""

    root: int
    id: str
    manifest: str = ""


class Analyse(Word, frozen=True, kw_only=True):
    """To the program: analyse a checkpoint for pruning, within `limit_s`. `request`: in protobuf."""

    cycle: int
    limit_s: float
    request: bytes


class EndAnalysis(Word, frozen=True, kw_only=True):
    """To the program: nobody waits for this analysis any more."""

    cycle: int


class Analysed(Word, frozen=True, kw_only=True):
    """To the recorder: the answer to an analysis, in protobuf, or why there is none, as a sentence."""

    cycle: int
    answer: bytes = b""
    why: str = ""


class Over(Word, frozen=True, kw_only=True):
    """The run has ended here, and its journal is closed. `state`: a capture."""

    code: int
    why: str
    state: bytes


# -- between the ranks of a group: first those to rank 0, then those to the others -------------------------------------


class Join(Word, frozen=True, kw_only=True):
    """To rank 0: this rank is in the group. `group`: what tells it from an earlier start of the same program."""

    version: str
    group: str
    rank: int
    ranks: int


class Built(Word, frozen=True, kw_only=True):
    """To rank 0: this rank has built its training. The values must be those of all ranks, by the name of each."""

    values: dict[str, str]


class Piece(Word, frozen=True, kw_only=True):
    """To rank 0: this rank's files of a checkpoint, each with its name; or why there are none."""

    id: str
    files: tuple[tuple[str, bytes], ...]
    why: str = ""


class Failed(Word, frozen=True, kw_only=True):
    """To rank 0: this rank ends with an error."""

    report: m.ExceptionReport | m.SetupRefusedReport


class Vote(Word, frozen=True, kw_only=True):
    """To rank 0: whether this rank can go back to a target."""

    report: m.RollbackPreparedReport | m.RollbackRefusedReport


class Agreed(Word, frozen=True, kw_only=True):
    """To another rank: all have built the same."""


class Obey(Word, frozen=True, kw_only=True):
    """To another rank: the next order of the group's list, as it travels to a trainer."""

    order: bytes
    attachment: bytes | None = None


_Any: TypeAlias = (
    Hello
    | Begin
    | Order
    | Signal
    | Ended
    | Analysed
    | Refused
    | Opened
    | Train
    | Answered
    | Figures
    | Said
    | CheckpointEnd
    | Analyse
    | EndAnalysis
    | Over
    | Join
    | Built
    | Piece
    | Failed
    | Vote
    | Agreed
    | Obey
)
encode: Final[Callable[[Word], bytes]] = msgspec.msgpack.Encoder().encode
decode: Final[Callable[[bytes], Word]] = msgspec.msgpack.Decoder(_Any).decode
