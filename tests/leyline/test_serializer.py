"""Packets come back as they were sent, and what cannot be read is refused with the reason."""

from __future__ import annotations

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given, settings
from hypothesis import strategies as st

from tolariad.core.calc.health.budgets import WITH_BREAKER
from tolariad.leyline import (
    AdaptationCommand,
    HardwareContext,
    MessageRefused,
    SeedState,
    SystemStatePacket,
    SystemStateSerializer,
    VersionMismatch,
    decode,
    encode,
)
from tolariad.leyline.serializer import BYTES_MAX, SEEDS_MAX

serialize, deserialize = SystemStateSerializer.serialize, SystemStateSerializer.deserialize

texts = st.text(max_size=20)
# Every float of 32 bits but NaN, which equals nothing; test_values_that_are_not_finite_arrive has it.
numbers = st.floats(width=32, allow_nan=False)
small, large = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
scalars = st.dictionaries(texts, numbers, max_size=5)
HARDWARE = {
    "device_type": texts,
    "device_id": texts,
    "total_memory_gb": numbers,
    "available_memory_gb": numbers,
    "temperature_celsius": st.none() | numbers,
    "utilization_percent": numbers,
    "compute_capability": small,
}
SEED = {
    "seed_id": texts,
    # A stage of a newer version is kept as a number.
    "stage": st.integers(0, 30),
    "gradient_norm": numbers,
    "learning_rate": numbers,
    "layer_depth": small,
    "metrics": scalars,
    "age_epochs": small,
    "risk_score": numbers,
}
PACKET = {
    "version": st.just(1),
    "current_epoch": small,
    "validation_accuracy": numbers,
    "validation_loss": numbers,
    "timestamp_ns": large,
    "hardware_context": st.none() | st.builds(HardwareContext, **HARDWARE),
    "training_metrics": scalars,
    "seed_states": st.lists(st.builds(SeedState, **SEED), max_size=4),
    "packet_id": texts,
    "global_step": large,
    "training_loss": numbers,
    "source_subsystem": texts,
    "training_run_id": texts,
    "experiment_name": texts,
}


@pytest.mark.parametrize(
    ("kind", "drawn"), [(HardwareContext, HARDWARE), (SeedState, SEED), (SystemStatePacket, PACKET)]
)
def test_every_field_is_drawn(kind, drawn):
    """A field that is added to a message is part of the round trip below."""
    assert list(drawn) == [field.name for field in kind.DESCRIPTOR.fields]


@settings(max_examples=40)
@given(st.builds(SystemStatePacket, **PACKET))
def test_a_packet_comes_back_as_it_was(packet):
    """Every field of packet, device and seeds; equal packets give equal bytes."""
    data = serialize(packet)
    back = deserialize(data)

    assert back == packet
    assert serialize(back) == data


def test_values_that_are_not_finite_arrive():
    """A run in trouble has such losses, and the strategy must see them."""
    packet = SystemStatePacket(version=1, training_loss=float("nan"), validation_loss=float("-inf"))
    back = deserialize(serialize(packet))

    assert back.training_loss != back.training_loss
    assert back.validation_loss == float("-inf")


def test_the_order_of_a_map_does_not_change_the_bytes():
    """Bytes may be compared and hashed."""
    names = [f"metric{n}" for n in range(20)]
    one, other = (SystemStatePacket(version=1, training_metrics=dict.fromkeys(o, 1.0)) for o in (names, names[::-1]))

    assert serialize(one) == serialize(other)


def test_fields_of_a_newer_version_are_kept():
    """In the packet and in a seed: what is handed on has what was not understood."""
    # Field 150 as a number, field 16 of the seed as a text.
    seed = SeedState(seed_id="s").SerializeToString() + b"\x82\x01\x03new"
    data = b"\x08\x01" + b"\x42" + bytes([len(seed)]) + seed + b"\xb0\x09\x07"
    back = deserialize(serialize(deserialize(data)))

    assert [(one.field_number, one.data) for one in UnknownFieldSet(back)] == [(150, 7)]
    assert [(one.field_number, one.data) for one in UnknownFieldSet(back.seed_states[0])] == [(16, b"new")]


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_version_is_refused_both_ways(version):
    """Also a packet without one; the error names the breaker that it is a failure of."""
    packet = SystemStatePacket(version=version, packet_id="p")
    for refused in (lambda: serialize(packet), lambda: deserialize(packet.SerializeToString())):
        with pytest.raises(VersionMismatch, match=f"{version or 'no version'}.*writes version 1 only") as caught:
            refused()
        assert caught.value.found == version
        assert caught.value.BREAKER in WITH_BREAKER


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x08\x01\x4a\x05ab", b"\x08\x01\x4a\x02\xff\xfe", b"\x0f", b"not a packet"]
)
def test_bytes_that_are_no_packet_are_refused(data):
    """Cut off, not UTF-8, an unknown wire type, a text: all with one type of error."""
    with pytest.raises(MessageRefused, match=f"These {len(data)} bytes are no SystemStatePacket"):
        deserialize(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    """No other error comes out."""
    try:
        packet = deserialize(data)
    except MessageRefused:
        return
    assert packet.version == 1


def test_too_much_is_refused_both_ways():
    """More than 64 KiB is not even parsed; 64 KiB are allowed. At most 100 seeds."""
    packet = SystemStatePacket(version=1)
    packet.experiment_name = "x" * (BYTES_MAX - 6)
    assert len(serialize(packet)) == BYTES_MAX
    packet.experiment_name += "x"
    many = SystemStatePacket(version=1, seed_states=[SeedState()] * (SEEDS_MAX + 1))
    for wrong, what in ((packet, f"{BYTES_MAX + 1} bytes"), (many, "101 seeds")):
        with pytest.raises(MessageRefused, match=what):
            serialize(wrong)
        with pytest.raises(MessageRefused, match=what):
            deserialize(wrong.SerializeToString())


def test_a_command_follows_the_same_rules():
    """The answer's bytes are checked as the packet's are."""
    command = AdaptationCommand(version=1, command_id="c", annotations={"reason": "plateau"})

    assert decode(AdaptationCommand, encode(command)) == command
    with pytest.raises(VersionMismatch, match="AdaptationCommand has version 3"):
        decode(AdaptationCommand, AdaptationCommand(version=3).SerializeToString())
