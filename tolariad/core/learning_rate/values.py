"""What the rate controller tells: a snapshot of the rates, and the error of a rate that somebody else changed."""

from __future__ import annotations

from msgspec import Struct


class LRSnapshot(Struct, frozen=True):
    """The rates of update `step`. `checksums`: a group's fingerprint over its id, its parameters and its rate.

    `timestamp` is wall time in seconds.
    """

    epoch: int
    step: int
    group_lrs: dict[str, float]
    checksums: dict[str, str]
    timestamp: float


class LRIntegrityError(Exception):
    """A learning rate, or what it acts on, was changed by somebody else than the rate controller."""
