"""A snapshot in a memory file is read by another mapping bit for bit, and refused by name after any change."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.storage import CheckpointUnusable
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.files import MODEL_FILE, OPTIMIZER_FILE
from tolariad.trainer.checkpoints.restore import restore, taken_apart
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.rollback.confirm import Confirmation
from tolariad.trainer.rollback.snapshot_slots import Slots, growth_of, slot_bytes, verify

AT = Position(step=2, epoch=1, batch=2)


@pytest.fixture
def trained(configured):
    """Return a run after two steps, and the same run after five."""

    def make(steps):
        setup = build(configured("digits", epochs=1))
        batches = setup.train.epoch(1, 0)
        for _ in range(steps):
            setup.optimizer.zero_grad()
            setup.task.loss(setup.model, next(batches)).backward()
            setup.optimizer.step()
        return setup

    return make


@pytest.fixture
def ring():
    """Return a memory file with space for one or two small snapshots."""
    descriptor = os.memfd_create("ring")

    def make(live):
        size = -(-slot_bytes(live, growth=growth_of(live)) // 4096) * 4096
        os.ftruncate(descriptor, 2 * size)
        return m.Ring(2, size)

    yield descriptor, make
    os.close(descriptor)


def tensors(setup):
    return {
        (group, name): tensor.clone()
        for group, held in capture(setup, AT).tensors.items()
        for name, tensor in held.items()
    }


def test_what_is_copied_is_read_by_another_mapping_and_restores_to_the_bit(trained, ring):
    """A later trainer reads it; further training does not change it."""
    descriptor, make = ring
    setup = trained(2)
    live = capture(setup, AT)
    slots = Slots(descriptor, make(live))
    expected, state = tensors(setup), live.state
    table, digest = slots.finish(1, slots.copy(1, live), (17, 5), "c000003")
    with torch.no_grad():
        for parameter in setup.model.parameters():
            parameter.add_(1.0)

    held = Slots(descriptor, slots.ring).read(1, digest)
    verify(held)
    later = trained(5)
    position = restore(later, taken_apart(held.snapshot))

    assert position == AT
    assert (held.table.acted, held.table.parent, len(table.tensors_xxh3)) == ((17, 5), "c000003", 16 * len(expected))
    found = tensors(later)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert capture(later, AT).state == state


def test_every_changed_byte_is_found_and_named(trained, ring, seed):
    """Random bytes of the slot are changed: in written data it is refused by name, in gaps it has no effect."""
    descriptor, make = ring
    live = capture(trained(2), AT)
    slots = Slots(descriptor, make(live))
    table, digest = slots.finish(0, slots.copy(0, live), (), "")
    places = [row.first + at for rows in table.groups.values() for row in rows if row.size for at in (0, row.size - 1)]
    places += [table.state_first, table.state_first + table.state_size - 1, 0, 8, 16]
    draw = torch.Generator().manual_seed(seed)
    memory = slots.memory(0)
    for place in places:
        bit = 1 << int(torch.randint(0, 8, (), generator=draw))
        memory[place] ^= bit
        with pytest.raises(CheckpointUnusable) as refused:
            verify(slots.read(0, digest))
        assert refused.value.file
        memory[place] ^= bit
    verify(slots.read(0, digest))


def test_a_slot_that_is_being_written_again_cannot_be_read(trained, ring):
    """A trainer that dies during the copy leaves nothing that could be read as a snapshot."""
    descriptor, make = ring
    live = capture(trained(2), AT)
    slots = Slots(descriptor, make(live))
    _, digest = slots.finish(0, slots.copy(0, live), (), "")
    slots.copy(0, live)

    with pytest.raises(CheckpointUnusable, match="table"):
        slots.read(0, digest)
    with pytest.raises(CheckpointUnusable, match="slot 2"):
        slots.read(2, digest)


def test_a_state_that_outgrew_its_slot_is_refused_and_a_smaller_file_too(trained, ring):
    """Both are refused with a sentence; nothing is written outside the slot."""
    descriptor, make = ring
    live = capture(trained(2), AT)
    good = make(live)
    small = Slots(descriptor, m.Ring(4, 8192))
    before = small.memory(1).clone()

    with pytest.raises(ValueError, match="a slot has 8192"):
        small.copy(0, live)
    assert torch.equal(small.memory(1), before)
    with pytest.raises(ValueError, match=str(3 * good.slot_bytes)):
        Slots(descriptor, m.Ring(3, good.slot_bytes))


def test_memory_of_slots_is_given_back_and_taken_again(trained, ring):
    """The system has it meanwhile. The snapshot that stays is whole, and a slot given back takes another one."""
    descriptor, make = ring
    live = capture(trained(2), AT)
    slots = Slots(descriptor, make(live))
    size = slots.ring.slot_bytes

    def held():
        # Rounded: the kernel may count a page more or less than is there.
        return round(os.fstat(descriptor).st_blocks * 512 / size)

    slots.touch()
    _, digest = slots.finish(1, slots.copy(1, live), (), "")
    slots.finish(0, slots.copy(0, live), (), "")
    wait_for(lambda: held() == 2)
    assert slots.held_bytes == 2 * size
    slots.narrow((1,))
    assert held() == 1
    assert slots.held_bytes == size
    verify(slots.read(1, digest))
    with pytest.raises(CheckpointUnusable):
        slots.read(0, digest)

    slots.widen()
    _, again = slots.finish(0, slots.copy(0, live), (), "")
    verify(slots.read(0, again))
    assert held() == 2
    slots.narrow((1,))
    slots.widen()
    slots.touch()
    wait_for(lambda: held() == 2)
    assert slots.held_bytes == 2 * size


def test_a_slot_whose_memory_does_not_come_back_costs_one_snapshot(trained, ring, monkeypatch):
    """It fails by name; nothing is written to memory that the system cannot provide."""
    descriptor, make = ring
    live = capture(trained(2), AT)
    slots = Slots(descriptor, make(live))
    slots.narrow((1,))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as short:
        short.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            slots.copy(0, live)
    assert os.fstat(descriptor).st_blocks * 512 < slots.ring.slot_bytes // 2
    slots.finish(0, slots.copy(0, live), (), "")


@pytest.mark.parametrize("group", [MODEL_FILE, OPTIMIZER_FILE, "state"])
def test_confirm_names_what_was_not_restored_as_it_was_recorded(trained, ring, group):
    """One changed bit of memory is found; otherwise nothing differs."""
    descriptor, make = ring
    setup = trained(2)
    live = capture(setup, AT)
    slots = Slots(descriptor, make(live))
    table, digest = slots.finish(0, slots.copy(0, live), (), "")
    assert list(_restored(trained(4), slots, digest, table)) == []
    if group == "state":
        later = trained(4)
        loaded = taken_apart(slots.read(0, digest).snapshot)
        confirmation = Confirmation()
        restore(later, loaded, confirmation.copy)
        torch.rand(1)
        assert list(confirmation.differing(later, AT, table)) != []
        return
    row = max(table.groups[group], key=lambda one: one.size)
    slots.memory(0)[row.first] ^= 1

    assert list(_restored(trained(4), slots, digest, table)) == [f"{group}: {row.name}"]


def _restored(setup, slots, digest, table):
    confirmation = Confirmation()
    restore(setup, taken_apart(slots.read(0, digest).snapshot), confirmation.copy)
    return confirmation.differing(setup, AT, table)
