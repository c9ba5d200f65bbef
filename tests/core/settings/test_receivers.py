"""The addresses of receivers, and the events to notify of: what cannot work is refused before a run starts."""

from __future__ import annotations

import pytest

from tolariad.config import load
from tolariad.core.calc.settings.reading import ConfigError, read_settings
from tolariad.core.calc.settings.rules import check


@pytest.mark.parametrize(
    ("key", "address", "said"),
    [
        ("bus_url", "broker:6379", "must begin with redis://, rediss://, unix://"),
        ("bus_url", "", "must begin with"),
        ("bus_url", "http://broker", "must begin with"),
        ("bus_url", "redis://[::1", "must begin with"),
        ("bus_url", "redis://:hunter2@broker", "holds a password"),
        ("otlp_endpoint", "collector:4318", "must begin with http://, https://"),
        ("otlp_endpoint", "https://ann:hunter2@collector", "holds a password"),
    ],
)
def test_an_address_that_cannot_be_is_refused(key, address, said):
    """By its key, and without its password."""
    (problem,) = check(read_settings({"task": "digits", "telemetry": {key: address}}))

    assert problem.path == f"telemetry.{key}"
    assert said in problem.what
    assert "hunter2" not in problem.what


@pytest.mark.parametrize("address", ["redis://broker:6379/0", "rediss://broker", "unix:///run/redis.sock"])
def test_an_address_of_a_bus_is_accepted(address):
    """A port, TLS, a socket."""
    assert check(read_settings({"task": "digits", "telemetry": {"bus_url": address}})) == []


def test_an_event_to_notify_of_must_exist():
    """The nearest name is proposed; each unknown one is a problem of its own."""
    document = {"tolaria": {"task": "digits", "notify": {"events": ["RunFrozn", "RunCompleted", "X"]}}}
    with pytest.raises(ConfigError) as raised:
        load(document)

    assert str(raised.value).count("no event has the name") == 2
    assert "did you mean RunFrozen?" in str(raised.value)
