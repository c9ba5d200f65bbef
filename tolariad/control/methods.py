"""The methods of the control interface.

Promises: reading needs no permission and writes nothing; an operator gets the answer to a change when it is durable.
The daemon is used through `ControlPort`: every method of it is called on the event loop and returns at once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from journal import JournalError
from tolariad import loop_files
from tolariad.control.connection import Connection, ServerLimits
from tolariad.control.history import History
from tolariad.control.order_methods import METHODS, described, read_order
from tolariad.control.outcome import ended_with_daemon, outcome_of
from tolariad.control.peer import Operators, Rate
from tolariad.control.replies import Outcome, Recorded, Reloaded, RunStatus
from tolariad.control.reply_tables import BudgetTable, PruneTable, RateTable, SeedTable
from tolariad.control.wire import INTERFACE, SERVICE, Call, own_error, read_parameters, service_error
from tolariad.core import messages as m
from tolariad.core.calc.units import Seconds, Seq
from tolariad.core.decision import Answer
from tolariad.core.messages.vocabulary import AnyCommand

_HERE: Final = Path(__file__).parent
_WATCH_S: Final = 0.5
_WATCH_ALIVE_S: Final = 5.0
_FOLLOW_S: Final = 0.1


Handler = Callable[[Call, Connection], Awaitable[None]]


class Change(msgspec.Struct, frozen=True, gc=False):
    """Events that became durable, with ascending sequence numbers. One Change may hold several turns."""

    events: tuple[tuple[int, m.Event], ...]


class ReloadRefused(Exception):
    """The configuration was not read again, or changes what a live run cannot change. Nothing has changed."""


class ControlPort(Protocol):
    """The services of the daemon for its control server."""

    @property
    def journal_path(self) -> Path:
        """The run's journal folder."""

    @property
    def durable_seq(self) -> int:
        """The sequence number of the last durable event."""

    def status(self) -> RunStatus:
        """Return the run's status as of the last durable event. Cheap; never waits."""

    def rates(self) -> RateTable:
        """Return the learning rates as of the last durable event. Cheap; never waits."""

    def seeds(self) -> SeedTable:
        """Return slots and seeds as of the last durable event. Cheap; never waits."""

    def pruning(self) -> PruneTable:
        """Return phase, cycles and masks as of the last durable event. Cheap; never waits."""

    def budgets(self) -> BudgetTable:
        """Return the budgets as of the last durable event. Cheap; never waits."""

    def submit(self, command: AnyCommand, actor: m.Actor, answer: Callable[[Answer], None]) -> None:
        """Submit an order to the kernel. `answer` is called once, on the loop, when the order is durable or refused."""

    async def reload(self) -> tuple[str, ...]:
        """Read the configuration again. Return the keys that have changed, all durable. Raises ReloadRefused."""

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` with every durable event from now on, until the returned function is called.

        Without a listener the daemon need not wake its loop. The events of a turn may come before or after its answers.
        """


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Interface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interface: str


class _Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval_s: Seconds | None = None


class _Events(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    from_seq: Seq | None = None
    follow: bool | None = None


async def description(interface: str) -> str:
    """Return the text of one interface. Raises CallError (InterfaceNotFound)."""
    if interface not in (INTERFACE, SERVICE):
        raise service_error("InterfaceNotFound", interface=interface)
    text = await loop_files.read_own_text(_HERE / f"{interface}.varlink")
    return described(text) if interface == INTERFACE else text


class Methods:
    """The methods over one port. Streams and waits end when `closing` is set, which the server does at its end."""

    def __init__(
        self, port: ControlPort, operators: Operators, limits: ServerLimits, *, version: str, clock: Callable[[], float]
    ) -> None:
        self._port = port
        self.operators = operators
        self._limits = limits
        self._version = version
        self._rate = Rate(limits.changes_per_s, limits.changes_burst, clock)
        self._history = History(port.journal_path, lambda: port.durable_seq)
        self.closing = asyncio.Event()
        self._methods: dict[str, Handler] = {
            f"{SERVICE}.GetInfo": self._get_info,
            f"{SERVICE}.GetInterfaceDescription": self._describe,
            f"{INTERFACE}.Status": _shows("status", port.status),
            f"{INTERFACE}.Watch": self._watch,
            f"{INTERFACE}.Budgets": _shows("table", port.budgets),
            f"{INTERFACE}.Events": self._events,
            f"{INTERFACE}.LrShow": _shows("rates", port.rates),
            f"{INTERFACE}.SeedsList": _shows("seeds", port.seeds),
            f"{INTERFACE}.PruneStatus": _shows("pruning", port.pruning),
            f"{INTERFACE}.Reload": self._reload,
            **dict.fromkeys(METHODS, self._change),
        }

    def close(self) -> None:
        """End the threads that read the journal."""
        self._history.close()

    async def handle(self, call: Call, client: Connection) -> None:
        """Answer one call. Raises CallError."""
        method = self._methods.get(call.method)
        if method is None:
            interface = call.method.rpartition(".")[0]
            if interface not in (INTERFACE, SERVICE):
                raise service_error("InterfaceNotFound", interface=interface)
            raise service_error("MethodNotFound", method=call.method)
        await method(call, client)

    # Reading.

    async def _get_info(self, call: Call, client: Connection) -> None:
        read_parameters(call, _Nothing)
        await client.send(
            {
                "vendor": "Esper",
                "product": "tolariad",
                "version": self._version,
                "url": "",
                "interfaces": [SERVICE, INTERFACE],
            }
        )

    async def _describe(self, call: Call, client: Connection) -> None:
        await client.send({"description": await description(read_parameters(call, _Interface).interface)})

    async def _watch(self, call: Call, client: Connection) -> None:
        """Stream the status. Each reply is the newest one: states that a slow client missed are not queued."""
        wanted = read_parameters(call, _Watch).interval_s
        _expect_more(call)
        interval_s = _WATCH_S if wanted is None else min(60.0, max(0.1, wanted))
        loop = asyncio.get_running_loop()
        shown: tuple[int, str] | None = None
        shown_at = 0.0
        while not self.closing.is_set() and not client.gone:
            status = self._port.status()
            # If the journal fails, the phase changes without an event.
            state = (status.journal.seq, status.phase)
            if state != shown or loop.time() - shown_at >= _WATCH_ALIVE_S:
                shown, shown_at = state, loop.time()
                await client.send({"status": status}, continues=True)
            await self._sleep(interval_s)
        await client.send({"status": self._port.status()})

    async def _events(self, call: Call, client: Connection) -> None:
        wanted = read_parameters(call, _Events)
        _expect_more(call)
        if wanted.from_seq is not None and wanted.from_seq < 1:
            raise service_error("InvalidParameter", parameter="from_seq")
        slices = self._history.slices(wanted.from_seq or 1)
        next_slice = functools.partial(next, slices)
        try:
            events = await self._history.run(next_slice)
            while (events or wanted.follow) and not self.closing.is_set() and not client.gone:
                if events:
                    await client.send({"events": events}, continues=True)
                else:
                    await self._sleep(_FOLLOW_S)
                events = await self._history.run(next_slice)
        except JournalError as error:
            raise own_error("Refused", str(error), self._port.status().phase) from error
        finally:
            if not self.closing.is_set():
                await self._history.run(slices.close)
        await client.send({"events": events})

    async def _sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the server ends."""
        try:
            async with asyncio.timeout(seconds):
                await self.closing.wait()
        except TimeoutError:
            return

    # Changing.

    async def _change(self, call: Call, client: Connection) -> None:
        command = read_order(call)
        self._permit(client)
        # Listen before the order is submitted, so that its end cannot be missed.
        known_seq = self._port.durable_seq
        changes: asyncio.Queue[Change] = asyncio.Queue()
        unsubscribe = self._port.subscribe(changes.put_nowait)
        try:
            seq = await self._recorded(command, client.peer.actor)
            await client.send(Recorded(seq), continues=bool(call.more))
            if call.more:
                # A repeated id gets the first order's answer. That order may have ended in the past.
                found = await self._history.outcome(command, seq) if seq <= known_seq else None
                await client.send(Recorded(seq, found or await self._ended(command, seq, changes)))
        finally:
            unsubscribe()

    def _permit(self, client: Connection) -> None:
        """Raise CallError unless the client is an operator, and gives no more orders than it may."""
        if not self.operators.allow(client.peer):
            raise service_error("PermissionDenied")
        if not self._rate.take(client.peer.uid):
            most = f"{self._limits.changes_per_s:g} orders a second"
            raise own_error("Refused", f"user {client.peer.uid} gave more than {most}; wait a second and repeat")

    async def _reload(self, call: Call, client: Connection) -> None:
        read_parameters(call, _Nothing)
        self._permit(client)
        try:
            changed = await self._port.reload()
        except ReloadRefused as error:
            raise own_error("Refused", str(error), self._port.status().phase) from error
        await client.send(Reloaded(changed))

    async def _recorded(self, command: AnyCommand, actor: m.Actor) -> int:
        """Submit the order and wait for the kernel's answer. Raises CallError."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answer(given: Answer) -> None:
            if not answered.done():
                answered.set_result(given)

        self._port.submit(command, actor, answer)
        try:
            async with asyncio.timeout(self._limits.answer_s):
                given = await answered
        except TimeoutError as error:
            why = (
                f"the journal has not confirmed the order within {self._limits.answer_s:g} s and may still do so. "
                "Repeat the order with the same id to learn its outcome"
            )
            raise own_error("NotDurable", why, self._port.status().phase) from error
        if isinstance(given, m.Refusal):
            raise own_error(given.error, given.why, given.phase)
        return given.seq

    async def _ended(self, command: AnyCommand, seq: int, changes: asyncio.Queue[Change]) -> Outcome:
        """Wait for the event that ends the order, or for the end of the server."""

        async def outcome() -> Outcome:
            while (found := outcome_of(command, seq, (await changes.get()).events)) is None:
                pass
            return found

        waiting = asyncio.ensure_future(outcome())
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait({waiting, closing}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            return await self._ended_unheard(command, seq)
        finally:
            waiting.cancel()
            closing.cancel()

    async def _ended_unheard(self, command: AnyCommand, seq: int) -> Outcome:
        """The daemon ends: the event that ended the order may be durable, but not published yet."""
        found = None
        with suppress(JournalError, OSError):  # the run's folder is gone
            found = await self._history.outcome(command, seq)
        return found or ended_with_daemon(command)


def _shows(name: str, view: Callable[[], msgspec.Struct]) -> Handler:
    """Return the method without parameters that answers with one view of the run, under this name."""

    async def show(call: Call, client: Connection) -> None:
        read_parameters(call, _Nothing)
        await client.send({name: view()})

    return show


def _expect_more(call: Call) -> None:
    if not call.more:
        raise service_error("ExpectedMore")
