"""Impossible values in every parameter of every method, over the socket: an answer with a sentence, and the server goes
on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re

import msgspec
import pytest

from journal import Reader
from tests.control.clients import messages, raw
from tests.control.fakes import Recorder, Served
from tests.extremes import extremes_of
from tolariad.control import methods, order_methods
from tolariad.control.connection import ServerLimits
from tolariad.control.wire import END, INTERFACE, SERVICE, CallError, read_call
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import decode_event
from tolariad.core.state.run_state import RunState, fold

DESCRIPTION = asyncio.run(methods.description(INTERFACE))
METHODS = re.findall(r"^method (\w+)\(", DESCRIPTION, flags=re.MULTILINE)
STREAMS = ("Watch", "Events")
ERRORS = {
    f"{SERVICE}.InvalidParameter",
    *(f"{INTERFACE}.{name}" for name in ("Refused", "WrongPhase", "NotFound", "Frozen")),
}


def parameters_of(method: str) -> type[msgspec.Struct]:
    """The Struct that a method reads its parameters as; by its name, or the one that every order takes."""
    kind = order_methods.METHODS.get(f"{INTERFACE}.{method}", m.Pause)
    return getattr(methods, f"_{method}", order_methods.PARAMETERS[kind])


def on_the_wire(document: object) -> bytes | None:
    """Return the parameters as JSON; None for a number that Python cannot write."""
    try:
        return json.dumps(document).encode()
    except ValueError:
        return None


def is_message(call: bytes) -> bool:
    """Return whether this is JSON, so that the connection continues after it."""
    try:
        read_call(call)
    except CallError:
        return False
    return True


@pytest.fixture
def served(run_dir):
    """A server without a limit on the rate of orders."""
    recorder = Recorder(run_dir / "journal", segment_bytes=1 << 20)
    recorder.begin_run()
    recorder.step()
    with Served(recorder, run_dir, limits=ServerLimits(changes_per_s=1e9, changes_burst=10**9)) as server:
        yield server
    recorder.journal.close()


@pytest.mark.parametrize("method", [one for one in METHODS if one not in STREAMS])
def test_every_parameter_with_an_extreme_gets_an_answer(served, method):
    """One call after the other on one connection; what was recorded can be folded again.

    But for what is no JSON at all, NaN and halves of surrogate pairs: that ends a connection, as the last test shows.
    """
    calls = []
    for _, document in extremes_of(parameters_of(method)):
        if (body := on_the_wire(document)) is not None:
            calls.append(b'{"method":"%s.%s","parameters":%s}' % (INTERFACE.encode(), method.encode(), body))
    whole = [call for call in dict.fromkeys(calls) if is_message(call)]
    with raw(served) as sock:
        sock.settimeout(60)
        for at in range(0, len(whole), 20):
            batch = whole[at : at + 20]
            sock.sendall(b"".join(call + END for call in batch))
            answers = messages(sock, len(batch))
            assert len(answers) == len(batch)
            for answer in answers:
                assert "error" not in answer or answer["error"] in ERRORS, answer
                said = answer["parameters"]
                assert "error" not in answer or said.get("why") or said.get("parameter"), answer
        sock.sendall(b'{"method":"%s.Status"}\0' % INTERFACE.encode())
        (alive,) = messages(sock, 1)

    assert alive["parameters"]["status"]["live"] is True
    with Reader(served.recorder.journal_path) as reader:
        assert fold(RunState(), (decode_event(entry.event) for entry in reader)) == served.recorder.state


@pytest.mark.parametrize("method", STREAMS)
def test_a_stream_asked_for_with_an_extreme_ends_or_begins(served, method):
    """From event 2**64 on, every 1e308 seconds: refused, or streamed as far as there are events."""
    for path, document in extremes_of(parameters_of(method), (-1, 0, 2**53, 2**63, 2**64, 10**30, 1e308, 5e-324, True)):
        with raw(served) as sock:
            sock.settimeout(20)
            body = json.dumps({**document, "follow": False} if method == "Events" else document)
            sock.sendall(f'{{"method":"{INTERFACE}.{method}","more":true,"parameters":{body}}}\0'.encode())
            first = messages(sock, 1)[0]
        assert "error" not in first or first["error"] in ERRORS, (path, first)


def test_the_order_that_ended_a_recorder_once_is_refused_with_a_sentence(served):
    """The refusal names field, bounds and value; a reason has the bounds of a note."""
    with raw(served) as sock:
        for given in (
            {"batches": {"epoch": 1, "first": 1, "last": 99999999999999999999999}},
            {"checkpoint": "c000000", "reason": "x" * 4097},
        ):
            call = {"method": f"{INTERFACE}.QuarantineAdd", "parameters": given}
            sock.sendall(json.dumps(call).encode() + END)
        huge, long = messages(sock, 2)

    assert huge["error"] == long["error"] == f"{INTERFACE}.Refused"
    assert huge["parameters"]["why"] == (
        "batches.last must be a whole number from 0 to 9007199254740991, not 99999999999999999999999"
    )
    assert long["parameters"]["why"] == "reason must have at most 4096 characters, this one has 4097"


def test_numbers_that_json_has_no_word_for_are_no_message(served):
    """NaN, Infinity and half a character: one clear error, and only that connection is closed."""
    for number in (math.nan, math.inf, -math.inf, "\ud800"):
        with raw(served) as sock:
            body = json.dumps({"method": f"{INTERFACE}.LrSet", "parameters": {"group": "a", "value": number}})
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(body.encode() + END)
            (answer,) = messages(sock, 1)
        assert answer["error"] == f"{SERVICE}.InvalidParameter"
