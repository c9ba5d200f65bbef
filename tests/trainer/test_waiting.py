"""A spare prepares, says so, and waits: what it has built is what a trainer would build, and it opens no device."""

from __future__ import annotations

import socket

import pytest
import torch

from tolariad.trainer.build import build
from tolariad.trainer.process import waiting
from tolariad.trainer.setup import ALONE


def turn_of(message: bytes, prepare) -> tuple[waiting.Turn | None, bytes]:
    """What a spare returns that is told this, and what it has said."""
    daemon, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with daemon:
        daemon.send(message) if message else daemon.shutdown(socket.SHUT_WR)
        return waiting.wait_to_train(its.detach(), prepare), daemon.recv(8)


def test_what_a_spare_has_built_is_what_a_trainer_builds(configured):
    """Parameters, the random state that training begins with, and the hashes of the environment."""
    config = configured("digits", epochs=1)
    here = build(config)
    drawn = torch.rand(4)
    turn, said = turn_of(b"gmark", lambda: waiting.built(config, None, lambda: ALONE))
    assert said == b"r"
    assert turn is not None
    assert turn.printed == "mark"
    assert torch.equal(torch.rand(4), drawn)
    assert turn.setup is not None
    for (name, one), (other_name, other) in zip(
        here.model.state_dict().items(), turn.setup.model.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(one, other)
    assert turn.setup.environment == here.environment


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_nothing_is_built_where_that_might_open_a_device(configured, device, monkeypatch):
    """Even the question whether there is one may open it."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it asks for a device"))
    assert waiting.built(configured("digits", device=device), None, lambda: ALONE) is None


def test_without_a_turn_a_spare_ends():
    """The daemon's end of the socket is closed."""
    assert turn_of(b"", lambda: None) == (None, b"r")
