"""Boundary orders of two kinds in a real trainer: repeated from a script, sent, and counted in its checkpoints."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.boundary.toys import Turn
from tolariad.channel import pair
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import TrainerEffect
from tolariad.storage import read_manifest
from tolariad.storage.manifest import decode_manifest
from tolariad.trainer import loop
from tolariad.trainer.checkpoints.restore import load
from tolariad.trainer.orders import Kind
from tolariad.trainer.step import rerun

GROUP = "default"


class _Order(msgspec.Struct, frozen=True, array_like=True):
    effect: TrainerEffect | Turn


class _ScriptOrder(msgspec.Struct, frozen=True, array_like=True):
    before_step: int
    after_epoch: int
    number: int
    order: m.SetRate | Turn


class _Script(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[m.ScriptStep, ...] = ()
    validations: dict[int, dict[str, float]] = {}
    within: dict[int, dict[str, float]] = {}
    skips: tuple[m.StepSkipped, ...] = ()
    orders: tuple[_ScriptOrder, ...] = ()
    changes: tuple[m.ScriptChange, ...] = ()
    digests: tuple[m.ScriptDigest, ...] = ()


@pytest.fixture
def turned(monkeypatch):
    """The kind is one more member of two unions, and one more handler. The orders that acted, each with its step."""
    done: list[tuple[str, int, int]] = []
    monkeypatch.setattr(pair, "_decode_order", msgspec.msgpack.Decoder(_Order))
    monkeypatch.setattr(rerun, "_decoder", msgspec.msgpack.Decoder(_Script))
    plain = loop.BoundaryOrders

    def with_the_kind(acted, link, *took):
        orders = plain(acted, link, *took)
        orders.obey_by({Turn: Kind(lambda order: done.append((order.knob, order.to, link.progress.step + 1)))})
        return orders

    monkeypatch.setattr(loop, "BoundaryOrders", with_the_kind)
    return done


def answers(daemon):
    return [report for report in daemon.reports if isinstance(report, m.BoundaryOrderReport)]


def test_orders_of_two_kinds_go_through_script_checkpoint_and_restart(turned, daemon_in, configured):
    """Numbered in one list: those that a checkpoint contains act in no later trainer, the others once in each."""
    daemon = daemon_in("run", 1, checkpoint_every_epoch=False, exit_after_step=5)
    configuration = configured("digits", epochs=1)
    daemon.train_here(configuration)
    group = daemon.reports[0].groups[0].name
    at = daemon.committed[-1].step
    first = m.SetRate(group=group, value=0.002, curve=0.003, cause=50), Turn(knob="left", to=1, cause=40)
    daemon.script_orders = tuple(_ScriptOrder(at + 1, 0, number, one) for number, one in enumerate(first, 1))
    for number in range(1, daemon.last_step + 1):
        daemon.steps.pop(number, None) if number > at else None
    daemon.waiting = (
        Turn(knob="right", to=2, cause=60),
        m.SetRate(group=group, value=0.001, cause=55),
        m.SetRate(group="nobody", value=0.001, cause=56),
        Turn(knob="right", to=2, cause=60),
        Turn(knob="left", to=1, cause=40),
    )
    daemon.reports.clear()
    daemon.checkpoint_after_step, daemon.exit_after_step = at + 2, at + 4
    daemon.train_here(configuration)

    before = at + 1
    assert turned == [("left", 1, before), ("right", 2, before)]
    assert [(one.order, one.applied_before_step, bool(one.refused)) for one in answers(daemon)] == [
        (60, before, False),
        (55, before, False),
        (56, before, True),
    ]
    taken = daemon.committed[-1]
    assert taken.orders == 4
    assert taken.step >= at + 2
    assert daemon.steps[before].lr == 0.001
    folder = daemon.run_dir / "checkpoints" / taken.id
    held = load(folder, taken.manifest)
    assert (held.state["orders"], held.acted) == (4, (50, 40, 60, 55, 56))

    # The next trainer starts from that checkpoint: its script holds all four, and two of them are sent again.
    more = m.SetRate(group=group, value=0.001, curve=0.003, cause=55), Turn(knob="right", to=9, cause=70)
    every = (first[0], first[1], Turn(knob="right", to=2, cause=60), *more)
    daemon.script_orders = tuple(_ScriptOrder(before, 0, n, one) for n, one in enumerate(every, 1))
    daemon.waiting = (Turn(knob="right", to=2, cause=60), Turn(knob="right", to=9, cause=70))
    daemon.reports.clear()
    turned.clear()
    daemon.exit_after_step = daemon.last_step + 1
    trained = daemon.train_here(configuration)

    assert turned == [("right", 9, taken.step + 1)]
    assert answers(daemon) == []
    assert trained.acted.count == 5


def test_a_checkpoint_and_a_manifest_of_before_are_read(daemon_in, configured):
    """An older trainer counted orders beside the rates, and wrote a high-water mark into the manifest."""
    daemon = daemon_in("run", 1, checkpoint_every_epoch=False, exit_after_step=3)
    daemon.train_here(configured("digits", epochs=1))
    taken = daemon.committed[-1]
    folder = daemon.run_dir / "checkpoints" / taken.id
    manifest = read_manifest(folder, taken.manifest)
    older = {**msgspec.json.decode((folder / "manifest.json").read_bytes()), "applied_cause": 17}

    assert decode_manifest(msgspec.json.encode(older)) == manifest
