"""The core that a disk interrupts, found in trees like /sys and /proc."""

from __future__ import annotations

import pytest

from tolariad.supervisor.interrupts import device_core, disk_core


class Tree:
    """A machine of four cores with one PCI disk `vda`, as files."""

    def __init__(self, root):
        self.sys, self.proc = root / "sys", root / "proc"
        self.disk = self.sys / "devices" / "pci0" / "virtio1" / "block" / "vda"
        self.disk.mkdir(parents=True)
        (self.disk / "device").symlink_to(self.disk.parents[1])
        (self.sys / "dev" / "block").mkdir(parents=True)
        self.name("254:0", self.disk)
        self.proc.mkdir()

    def name(self, numbers, block):
        (self.sys / "dev" / "block" / numbers).symlink_to(block)

    def interrupts(self, **rows):
        """Set the interrupts, as in irq36=(counts of the four cores, core)."""
        lines = ["           CPU0       CPU1       CPU2       CPU3"]
        for row, (counts, core) in rows.items():
            number = row.removeprefix("irq")
            (self.sys / "devices" / "pci0" / "msi_irqs").mkdir(exist_ok=True)
            (self.sys / "devices" / "pci0" / "msi_irqs" / number).touch()
            (self.proc / "irq" / number).mkdir(parents=True)
            (self.proc / "irq" / number / "effective_affinity_list").write_text(f"{core}\n")
            lines.append(f" {number}: " + " ".join(str(count) for count in counts) + "  PCI-MSIX  virtio1-req.0")
        (self.proc / "interrupts").write_text("\n".join([*lines, "NMI:  0 0 0 0  Non-maskable interrupts"]))

    def core(self, major=254, minor=0):
        return device_core(major, minor, self.sys, self.proc)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_one_queue_interrupts_one_core(tree):
    """The configuration interrupt, which comes once at boot, is ignored."""
    tree.interrupts(irq35=((1, 0, 0, 0), 0), irq36=((0, 9000, 0, 0), 1))
    assert tree.core() == 1


def test_a_partition_and_a_mapped_device_lead_to_their_disk(tree):
    """`vda3` is a partition of `vda`; `dm-0` has it as its only slave."""
    tree.interrupts(irq36=((0, 0, 700, 0), 2))
    partition = tree.disk / "vda3"
    partition.mkdir()
    (partition / "partition").write_text("3\n")
    tree.name("254:3", partition)
    mapped = tree.sys / "devices" / "virtual" / "dm-0"
    (mapped / "slaves").mkdir(parents=True)
    (mapped / "slaves" / "vda3").symlink_to(partition)
    tree.name("253:0", mapped)

    assert tree.core(254, 3) == 2
    assert tree.core(253, 0) == 2


def test_a_queue_for_every_core_interrupts_whoever_asked(tree):
    """In that case no core is better than another."""
    tree.interrupts(irq40=((900, 0, 0, 0), 0), irq41=((0, 800, 0, 0), 1), irq42=((0, 0, 850, 0), 2))
    assert tree.core() is None


def test_what_cannot_be_told_is_none(tree, tmp_path):
    """An unknown device, no interrupts, a mask of several cores, or a missing folder."""
    assert tree.core() is None
    assert tree.core(0, 41) is None
    tree.interrupts(irq36=((5, 5, 0, 0), "0-1"))
    assert tree.core() is None
    assert disk_core(tmp_path / "nowhere") is None
