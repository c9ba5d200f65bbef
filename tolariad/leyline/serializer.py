"""The bytes of messages between Tolaria and the strategy.

Promises: `decode(kind, encode(message))` equals the message, and fields that this version does not know are kept. The
order in which a map was filled does not change the bytes. A message that `decode` would refuse is never written. A
refusal changes nothing and says what to do.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeVar

from google.protobuf.message import DecodeError

from tolariad.leyline.v1.adaptation_pb2 import AdaptationCommand
from tolariad.leyline.v1.system_state_pb2 import SystemStatePacket

VERSION: Final = 1
# A sanity limit: 100 seeds with five metrics each are about 9 KiB.
BYTES_MAX: Final = 64 * 1024
SEEDS_MAX: Final = 100

M = TypeVar("M", SystemStatePacket, AdaptationCommand)


class MessageRefused(ValueError):
    """A message was not written or not read. The caller records it as a failure of the breaker `BREAKER`."""

    BREAKER: ClassVar[str] = "serialization"


class VersionMismatch(MessageRefused):
    """The message is of another version of the contract. `found`: its version, 0 if it has none."""

    def __init__(self, kind: str, found: int) -> None:
        what = f"version {found}" if found else "no version"
        super().__init__(
            f"The {kind} has {what}; this version of tolariad reads and writes version {VERSION} only. "
            f"Set its `version` to {VERSION}, or run the same version of Leyline's contract on both sides."
        )
        self.found = found


def encode(message: M) -> bytes:
    """Return the message's bytes. Raises MessageRefused: another version, too many seeds, or too large."""
    _check(message)
    data = message.SerializeToString(deterministic=True)
    _check_size(type(message).__name__, len(data))
    return data


def decode(kind: type[M], data: bytes) -> M:
    """Return the message. Raises MessageRefused: too large, no message of this kind, another version."""
    # The size comes first: parsing allocates many times the size of the bytes.
    _check_size(kind.__name__, len(data))
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise MessageRefused(
            f"These {len(data)} bytes are no {kind.__name__} ({error}). They were cut off, or the sender wrote another "
            f"type of message."
        ) from error
    _check(message)
    return message


def _check(message: SystemStatePacket | AdaptationCommand) -> None:
    if message.version != VERSION:
        raise VersionMismatch(type(message).__name__, message.version)
    seeds = len(message.seed_states) if isinstance(message, SystemStatePacket) else 0
    if seeds > SEEDS_MAX:
        raise MessageRefused(f"The SystemStatePacket has {seeds} seeds; at most {SEEDS_MAX} are allowed.")


def _check_size(kind: str, size: int) -> None:
    if size > BYTES_MAX:
        raise MessageRefused(
            f"The {kind} has {size} bytes; at most {BYTES_MAX} are allowed. Leave metrics, seeds or annotations out."
        )


class SystemStateSerializer:
    """SystemStatePacket to bytes and back, as source document 003 names it."""

    CURRENT_VERSION: ClassVar[int] = VERSION

    @staticmethod
    def serialize(packet: SystemStatePacket) -> bytes:
        """Return the packet's bytes. Raises MessageRefused: another version, over 100 seeds, over 64 KiB."""
        return encode(packet)

    @staticmethod
    def deserialize(data: bytes) -> SystemStatePacket:
        """Return the packet. Raises MessageRefused: no packet, another version, over 100 seeds, over 64 KiB."""
        return decode(SystemStatePacket, data)
