"""The settings of the receivers of telemetry: the bus, traces, and notifications."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tolariad.core.calc.bounds import TEXT_CHARACTERS_MAX
from tolariad.core.calc.settings import values as units

_Shell = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)]


class Telemetry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The receivers of telemetry."""

    bus_url: Annotated[str | None, Meta(description="address of the Redis server that carries the bus")] = None
    bus_password: Annotated[units.Secret | None, Meta(description="password of the Redis server")] = None
    otlp_endpoint: Annotated[str | None, Meta(description="address of an OpenTelemetry collector for traces")] = None


class Notify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Notifications of important events. The run never waits for them."""

    command: Annotated[
        _Shell | None, Meta(description="a shell command that gets one JSON object on its stdin; killed after 30 s")
    ] = None
    webhook: Annotated[units.Secret | None, Meta(description="URL that receives the same JSON object by POST")] = None
    events: Annotated[
        tuple[str, ...],
        Meta(max_length=256, description="types of the events to notify of, by their names in docs/events.md"),
    ] = ("RunCompleted", "RunStopped", "RunFailed", "RunFrozen", "RolledBack", "TrainerDied", "DiskLow")
