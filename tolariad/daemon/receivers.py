"""The receivers of a run's telemetry: which there are by the configuration, and what each of them gets.

Promises: without a receiver, a turn costs one look at an empty tuple. With receivers, the kernel's thread adds a turn's
events to their queues; everything else is done on the loop and in threads. A reload replaces those that have changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tolariad.control.replies import ReceiverStatus
from tolariad.core import messages as m
from tolariad.core.calc.priorities import TelemetryPriority
from tolariad.core.calc.settings.model import Settings
from tolariad.core.messages.vocabulary import EVENT_TYPES
from tolariad.daemon.secret import read_secret
from tolariad.kernel import Published
from tolariad.supervisor.process import child_environment
from tolariad.telemetry.bus import RedisBus
from tolariad.telemetry.collector import TelemetryCollector
from tolariad.telemetry.messages import TelemetryMessage, is_news, message_of, span_message
from tolariad.telemetry.notices import Command, Notices, RunNames, Webhook
from tolariad.telemetry.spans import Span, Spans
from tolariad.telemetry.traces import Traces

if TYPE_CHECKING:
    from tolariad.telemetry.envelopes import Entry

_log: Final = logging.getLogger(__name__)

# In conservative mode, one in so many of the messages below HIGH is sent (source 000).
_CONSERVATIVE_ONE_IN: Final = 10
# How long the daemon's end may take for what waits.
_END_S: Final = 20.0


class _Way(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, and what goes into it, with which priority at least. `made_from`: the settings, for a reload."""

    collector: TelemetryCollector
    wanted: Callable[[m.Event], bool]
    made_from: tuple[object, ...]
    least: TelemetryPriority
    takes_spans: bool = False


class _Named(msgspec.Struct, frozen=True):
    """A receiver of the configuration, not made yet."""

    name: str
    made_from: tuple[object, ...]
    make: Callable[[], _Way]


class Receivers:
    """Those of one run. The kernel's thread calls `publish`; the rest runs on the loop."""

    def __init__(self, run_dir: Path, run_id: bytes, *, started_ns: int = 0) -> None:
        """`started_ns`: when the run began, if it is no new one."""
        self._run_dir = run_dir
        self._run_id = run_id
        self._spans = Spans(run_id, started_ns)
        self._names = RunNames(run_dir.name, run_id.hex(), str(run_dir), socket.gethostname())
        self._ways: tuple[_Way, ...] = ()
        self._closing: set[asyncio.Task[None]] = set()
        self._fault = ""

    def configure(self, settings: Settings) -> None:
        """Make the receivers that these settings name, and end those that they do not name any more."""
        kept = {way.collector.name: way for way in self._ways}
        ways = []
        for named in self._named(settings):
            before = kept.get(named.name)
            if before is not None and before.made_from == named.made_from:
                ways.append(kept.pop(named.name))
            else:
                ways.append(way := named.make())
                way.collector.start()
        # One step for the kernel's thread: it sees all of the old ones or all of the new ones.
        self._ways = tuple(ways)
        for way in kept.values():
            task = asyncio.get_running_loop().create_task(way.collector.close(_END_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _named(self, settings: Settings) -> Iterator[_Named]:
        notify, limit = settings.notify, settings.integration.oona_backpressure_limit
        ways = {"command": (notify.command, self._command), "webhook": (notify.webhook, self._webhook)}
        for kind, (value, receiver) in ways.items():
            if value is not None:
                made_from = (value, notify.events, limit)
                yield _Named(f"notify.{kind}", made_from, partial(self._notices, kind, receiver, made_from))
        telemetry = settings.telemetry
        if telemetry.bus_url is not None:
            wanted = (telemetry.bus_url, telemetry.bus_password, limit)
            yield _Named("telemetry.bus", wanted, partial(self._bus, *wanted))
        if telemetry.otlp_endpoint is not None:
            endpoint = telemetry.otlp_endpoint
            yield _Named("telemetry.otlp", (endpoint, limit), partial(self._traces, endpoint, limit))

    def _notices(
        self, kind: str, receiver: Callable[[str], Notices], made_from: tuple[str, tuple[str, ...], int]
    ) -> _Way:
        value, events, limit = made_from
        collector = TelemetryCollector(receiver(value), limit, name=f"notify.{kind}", at_once=1)
        # HIGH: what somebody has asked for by its name is not sampled, and comes in order.
        return _Way(collector=collector, wanted=_one_of(events), made_from=made_from, least=TelemetryPriority.HIGH)

    def _bus(self, url: str, password: str | None, limit: int) -> _Way:
        secret = None if password is None else partial(read_secret, password)
        bus = RedisBus(url, secret, partial(_entries, self._run_id, self._names.name))
        collector = TelemetryCollector(bus, limit, name="telemetry.bus")
        made_from = (url, password, limit)
        return _Way(
            collector=collector, wanted=_any, made_from=made_from, least=TelemetryPriority.LOW, takes_spans=True
        )

    def _traces(self, endpoint: str, limit: int) -> _Way:
        traces = Traces(endpoint, self._run_id, self._names.name)
        return _Way(
            collector=TelemetryCollector(traces, limit, name="telemetry.otlp"),
            wanted=_none,
            made_from=(endpoint, limit),
            least=TelemetryPriority.LOW,
            takes_spans=True,
        )

    def _command(self, text: str) -> Notices:
        command = Command(text, self._run_dir, child_environment(os.environ))
        return Notices(self._names, command.post, command.end)

    def _webhook(self, reference: str) -> Notices:
        webhook = Webhook(partial(read_secret, reference))
        return Notices(self._names, webhook.post, webhook.end)

    # -- the kernel's thread -------------------------------------------------------------------------------------------

    def publish(self, published: Published) -> None:
        """Queue the events of a durable turn. A defect here costs these messages, and is said once for each reason."""
        if not self._ways:
            return
        try:
            self._queue(published)
        except Exception as error:  # noqa: BLE001 - a defect here must not end the run
            if (why := repr(error)) != self._fault:
                self._fault = why
                _log.exception("Telemetry could not be queued; the run is not affected")

    def _queue(self, published: Published) -> None:
        ways, state = self._ways, published.state
        one_in = _CONSERVATIVE_ONE_IN if state.stability.conservative else 1
        for seq, event in published.events:
            message: TelemetryMessage | None = None
            for way in ways:
                if way.wanted(event):
                    message = message or message_of(
                        *(seq, event),
                        epoch=state.progress.epoch,
                        step=state.progress.step,
                        phase=state.run.phase.value,
                    )
                    way.collector.offer(message, one_in=one_in, least=way.least)
            if (span := self._spans.add(seq, event)) is not None:
                self._publish_span(span, one_in)

    def _publish_span(self, span: Span, one_in: int) -> None:
        message = span_message(span)
        for way in self._ways:
            if way.takes_spans:
                way.collector.offer(message, one_in=one_in)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def status(self) -> tuple[ReceiverStatus, ...]:
        """Return the counts of each receiver."""
        return tuple(msgspec.convert(way.collector.counts, ReceiverStatus, from_attributes=True) for way in self._ways)

    async def close(self) -> None:
        """Send what waits, for a stated time, and end them."""
        await asyncio.gather(*self._closing, *(way.collector.close(_END_S) for way in self._ways))


def _any(_: m.Event) -> bool:
    return True


def _none(_: m.Event) -> bool:
    return False


def _entries(run_id: bytes, name: str, messages: Sequence[TelemetryMessage]) -> list[Entry]:
    # Loaded at the first message, in a thread: protobuf is not needed before.
    from tolariad.telemetry.envelopes import entries

    return entries(run_id, name, messages)


def _one_of(names: tuple[str, ...]) -> Callable[[m.Event], bool]:
    kinds = frozenset(EVENT_TYPES[name] for name in names)

    def wanted(event: m.Event) -> bool:
        # The end of a trainer that was ordered is no news.
        return type(event) in kinds and is_news(event)

    return wanted
