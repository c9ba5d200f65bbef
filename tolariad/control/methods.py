"""The methods of the control interface.

Promises: reading needs no permission and writes nothing; an operator gets the answer to a change when it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from journal import JournalError
from tolariad import loop_files
from tolariad.control.connection import Handler, Reply
from tolariad.control.history import Cursor, History
from tolariad.control.limits import Limits, Rate
from tolariad.control.order_methods import METHODS, described, read_order
from tolariad.control.outcome import Outcome, ended_with_daemon, may_end, outcome_of
from tolariad.control.peer import Operators, Peer
from tolariad.control.port import Change, ControlPort
from tolariad.control.wire import INTERFACE, SERVICE, Call, own_error, read_parameters, service_error
from tolariad.core.base import Event, Seconds, Seq
from tolariad.core.decision import Accepted, Answer, Refusal
from tolariad.core.vocabulary import AnyCommand

_HERE: Final = Path(__file__).parent
_WATCH_S: Final = 0.5
_WATCH_ALIVE_S: Final = 5.0
_FOLLOW_S: Final = 0.1


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Interface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interface: str


class _Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval_s: Seconds | None = None


class _Events(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    from_seq: Seq | None = None
    follow: bool | None = None


class _Recorded(msgspec.Struct, frozen=True):
    seq: int
    outcome: Outcome | None = None


async def description(interface: str) -> str:
    """Return the text of one interface. Raises CallError (InterfaceNotFound)."""
    if interface not in (INTERFACE, SERVICE):
        raise service_error("InterfaceNotFound", interface=interface)
    text = await loop_files.read_own_text(_HERE / f"{interface}.varlink")
    return described(text) if interface == INTERFACE else text


class Methods:
    """The methods over one port. Streams and waits end when `closing` is set, which the server does at its end."""

    def __init__(
        self, port: ControlPort, operators: Operators, limits: Limits, *, version: str, clock: Callable[[], float]
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
            **dict.fromkeys(METHODS, self._change),
        }

    def close(self) -> None:
        """End the threads that read the journal."""
        self._history.close()

    async def handle(self, call: Call, peer: Peer, reply: Reply) -> None:
        """Answer one call. Raises CallError."""
        method = self._methods.get(call.method)
        if method is None:
            interface = call.method.rpartition(".")[0]
            if interface not in (INTERFACE, SERVICE):
                raise service_error("InterfaceNotFound", interface=interface)
            raise service_error("MethodNotFound", method=call.method)
        await method(call, peer, reply)

    # Reading.

    async def _get_info(self, call: Call, _: Peer, reply: Reply) -> None:
        read_parameters(call, _Nothing)
        await reply.send(
            {
                "vendor": "Esper",
                "product": "tolariad",
                "version": self._version,
                "url": "",
                "interfaces": [SERVICE, INTERFACE],
            }
        )

    async def _describe(self, call: Call, _: Peer, reply: Reply) -> None:
        await reply.send({"description": await description(read_parameters(call, _Interface).interface)})

    async def _watch(self, call: Call, _: Peer, reply: Reply) -> None:
        """Stream the status. Each reply is the newest one: states that a slow client missed are not queued."""
        wanted = read_parameters(call, _Watch).interval_s
        _expect_more(call)
        interval_s = _WATCH_S if wanted is None else min(60.0, max(0.1, wanted))
        loop = asyncio.get_running_loop()
        shown: tuple[int, str] | None = None
        shown_at = 0.0
        while not self.closing.is_set() and not reply.gone:
            status = self._port.status()
            # If the journal fails, the phase changes without an event.
            state = (status.journal.seq, status.phase)
            if state != shown or loop.time() - shown_at >= _WATCH_ALIVE_S:
                shown, shown_at = state, loop.time()
                await reply.send({"status": status}, continues=True)
            await self._sleep(interval_s)
        await reply.send({"status": self._port.status()})

    async def _events(self, call: Call, _: Peer, reply: Reply) -> None:
        wanted = read_parameters(call, _Events)
        _expect_more(call)
        if wanted.from_seq is not None and wanted.from_seq < 1:
            raise service_error("InvalidParameter", parameter="from_seq")
        cursor = Cursor(self._history, wanted.from_seq or 1)
        try:
            events = await cursor.next_slice()
            while (events or wanted.follow) and not self.closing.is_set() and not reply.gone:
                if events:
                    await reply.send({"events": events}, continues=True)
                else:
                    await self._sleep(_FOLLOW_S)
                events = await cursor.next_slice()
        except JournalError as error:
            raise own_error("Refused", str(error), self._port.status().phase) from error
        finally:
            if not self.closing.is_set():
                await cursor.close()
        await reply.send({"events": events})

    async def _sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the server ends."""
        try:
            async with asyncio.timeout(seconds):
                await self.closing.wait()
        except TimeoutError:
            return

    # Changing.

    async def _change(self, call: Call, peer: Peer, reply: Reply) -> None:
        command = read_order(call)
        if not self.operators.allow(peer):
            raise service_error("PermissionDenied")
        if not self._rate.take(peer.uid):
            most = f"{self._limits.changes_per_s:g} orders a second"
            raise own_error("Refused", f"user {peer.uid} gave more than {most}; wait a second and repeat")
        order = _Pending(self._port, command)
        try:
            seq = await self._recorded(order, peer)
            await reply.send(_Recorded(seq), continues=bool(call.more))
            if call.more:
                await reply.send(_Recorded(seq, await self._ended(order, seq)))
        finally:
            order.close()

    async def _recorded(self, order: _Pending, peer: Peer) -> int:
        """Wait for the kernel's answer. Raises CallError."""
        try:
            async with asyncio.timeout(self._limits.answer_s):
                answer = await order.submit(peer)
        except TimeoutError as error:
            why = (
                f"the journal has not confirmed the order within {self._limits.answer_s:g} s and may still do so; "
                "repeat the order with the same id to learn its outcome"
            )
            raise own_error("NotDurable", why, self._port.status().phase) from error
        match answer:
            case Accepted(seq=seq):
                return seq
            case Refusal(error=error_name, why=why, phase=phase):
                raise own_error(error_name, why, phase)

    async def _ended(self, order: _Pending, seq: int) -> Outcome:
        if seq <= order.known_seq:
            # A repeated id gets the first order's answer. That order may have ended in the past.
            found = await self._history.outcome(order.command, seq)
            if found is not None:
                return found
        waiting = asyncio.ensure_future(order.outcome(seq))
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait({waiting, closing}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else ended_with_daemon(order.command)
        finally:
            waiting.cancel()
            closing.cancel()


class _Pending:
    """One order in flight. It listens before the order is submitted, so that its end cannot be missed."""

    def __init__(self, port: ControlPort, command: AnyCommand) -> None:
        self.command = command
        self.known_seq = port.durable_seq
        self._port = port
        self._seen: list[tuple[int, Event]] = []
        self._changed = asyncio.Event()
        self.close = port.subscribe(self._hear)

    def _hear(self, change: Change) -> None:
        new = [one for one in change.events if may_end(one[1])]
        if new:
            self._seen += new
            self._changed.set()

    async def submit(self, peer: Peer) -> Answer:
        """Submit the order and wait for the kernel's answer."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answer(given: Answer) -> None:
            if not answered.done():
                answered.set_result(given)

        self._port.submit(self.command, peer.actor, answer)
        return await answered

    async def outcome(self, seq: int) -> Outcome:
        """Wait for the event that ends the order, and return the outcome."""
        while (found := outcome_of(self.command, seq, self._seen)) is None:
            self._seen.clear()
            self._changed.clear()
            await self._changed.wait()
        return found


def _shows(name: str, view: Callable[[], msgspec.Struct]) -> Handler:
    """Return the method without parameters that answers with one view of the run, under this name."""

    async def show(call: Call, _: Peer, reply: Reply) -> None:
        read_parameters(call, _Nothing)
        await reply.send({name: view()})

    return show


def _expect_more(call: Call) -> None:
    if not call.more:
        raise service_error("ExpectedMore")
