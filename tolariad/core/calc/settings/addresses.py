"""Check the addresses of the receivers of telemetry. Pure; the addresses themselves are in `receivers.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from tolariad.core.calc.settings.reading import Problem
from tolariad.core.calc.settings.receivers import Telemetry

_SCHEMES: Final = {"bus_url": ("redis", "rediss", "unix"), "otlp_endpoint": ("http", "https")}


def receiver_problems(telemetry: Telemetry) -> Iterator[Problem]:
    """Yield a problem for each address that cannot be one, or that holds a password."""
    for field, schemes in _SCHEMES.items():
        address, path = getattr(telemetry, field), f"telemetry.{field}"
        if address is None:
            continue
        try:
            parts = urlsplit(address)
            is_known, has_password = parts.scheme in schemes, parts.password is not None
        except ValueError:
            is_known, has_password = False, False
        if has_password:
            what = "holds a password, and the configuration is recorded; refer to it by telemetry.bus_password"
            yield Problem(path=path, what=what)
        elif not is_known:
            yield Problem(path=path, what=f"must begin with {', '.join(f'{one}://' for one in schemes)}")
