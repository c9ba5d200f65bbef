"""The link: a word arrives whole or not at all, whatever its size, and the end of a side is noticed."""

from __future__ import annotations

import os
import socket

import pytest

from tolariad.attach import words
from tolariad.attach.link import Link, LinkLost


@pytest.fixture
def ends():
    """Both ends of a link."""
    ours, theirs = (Link(one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [0, 48 * 1024 - 100, 48 * 1024, 5_000_000])
def test_a_word_of_any_size_arrives_with_its_descriptors(ends, size):
    """A long one travels in a memory file, whose descriptor is not among those of the word."""
    ours, theirs = ends
    reading, writing = os.pipe()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    ours.send(words.Said(text="x" * size), (reading,))
    word, (passed,) = theirs.receive()

    assert word == words.Said(text="x" * size)
    assert os.fstat(passed).st_ino == os.fstat(reading).st_ino
    assert not os.get_inheritable(passed)
    for one in (passed, reading, writing):
        os.close(one)
    assert len(os.listdir("/proc/self/fd")) == before - 2  # noqa: PTH208


def test_the_last_words_of_a_side_that_ends_with_unread_ones_are_read(ends):
    """The system reports a reset first."""
    ours, theirs = ends
    theirs.send(words.Said(text="unread"))
    ours.send(words.Said(text="my last word"))
    ours.close()

    assert theirs.receive() == (words.Said(text="my last word"), [])
    with pytest.raises(LinkLost):
        theirs.receive()


def test_what_is_no_word_loses_the_link(ends):
    """It is not taken for anything."""
    ours, theirs = ends
    ours._socket.send(b"\0nonsense")

    with pytest.raises(LinkLost):
        theirs.receive()


def test_a_forked_child_holds_no_end(ends):
    """The other side notices the end of the parent, although a child of it lives on."""
    ours, theirs = ends
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    ours.close()
    try:
        with pytest.raises(LinkLost):
            theirs.receive()
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)
