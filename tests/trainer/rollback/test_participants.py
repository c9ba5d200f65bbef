"""Participants of a rollback: asked in both tiers and in order, their states go back, and none of them can hang it."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.checkpoints.own import save
from tolariad.core import messages as m
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.errors import SetupRefused, ToldToExit
from tolariad.trainer.rollback import RollbackCommitted, RollbackHandler, RollbackUnconfirmed
from tolariad.trainer.rollback.participants import Participants
from tolariad.trainer.rollback.snapshot_slots import Slots, growth_of, slot_bytes

AT = Position(step=1, epoch=1, batch=1)
TIERS = pytest.mark.parametrize("tier", list(m.Tier), ids=lambda tier: tier.value)


class Toy:
    """A participant that notes each call. `when` holds a function to run within a call, by the call's name."""

    def __init__(self, name: str, calls: list[tuple[str, str]]) -> None:
        self.name, self.calls, self.when = name, calls, {}
        self.count, self.drawn = 0, torch.zeros(3)

    def move(self) -> None:
        self.count += 1
        self.drawn = self.drawn + torch.tensor([0.1, 1e-30, float("nan")])

    def _note(self, call: str) -> None:
        self.calls.append((self.name, call))
        self.when.get(call, lambda: None)()

    def state_dict(self):
        return {"count": self.count, "drawn": self.drawn}

    def prepare_rollback(self, state):
        self._note("prepare")

    def load_state_dict(self, state):
        self._note("load")
        self.count, self.drawn = state["count"], state["drawn"]

    def abort_rollback(self):
        self._note("abort")


class Rig:
    """A run of one step with a checkpoint and a snapshot, one further step since, and two participants."""

    def __init__(self, configuration: bytes, root, descriptor: int) -> None:
        self.setup = build(configuration)
        self.calls: list[tuple[str, str]] = []
        self.strategy, self.seeds = Toy("strategy", self.calls), Toy("seeds", self.calls)
        for toy in (self.strategy, self.seeds):
            self.setup.participants.register(toy.name, toy)
        batches = self.setup.train.epoch(1, 0)
        self._step(next(batches))
        self.expected = self.state()
        written = save(self.setup, root, "c000001", AT)
        live = capture(self.setup, AT)
        size = -(-slot_bytes(live, growth=growth_of(live)) // 4096) * 4096
        os.ftruncate(descriptor, size)
        slots = Slots(descriptor, m.Ring(1, size))
        digest = slots.finish(0, slots.copy(0, live), (), "c000001")[1]
        place = {"step": 1, "epoch": 1, "batch": 1}
        self.targets = {
            m.Tier.FULL: m.CheckpointRef(id=written.id, manifest=written.manifest, **place),
            m.Tier.FAST: m.CheckpointRef(id="s000001", manifest=digest, slot=0, **place),
        }
        self._step(next(batches))
        self.reports: list[object] = []
        reporter = SimpleNamespace(report=self.reports.append, beat=lambda activity: None)
        self.inbox = SimpleNamespace(register=lambda kind, handler: None, wait=self._end)
        self.handler = RollbackHandler(
            self.setup, SimpleNamespace(reporter=reporter, inbox=self.inbox), root, lambda: slots
        )

    def _end(self, *_) -> None:
        raise ToldToExit("the daemon said so")

    def _step(self, batch) -> None:
        self.setup.optimizer.zero_grad()
        self.setup.task.loss(self.setup.model, batch).backward()
        self.setup.optimizer.step()
        self.strategy.move()
        self.seeds.move()

    def state(self) -> bytes:
        """The bits of everything."""
        now = capture(self.setup, AT)
        tensors = [(group, name, tensor.clone().numpy().tobytes()) for group, name, tensor in _each(now.tensors)]
        return repr((now.state, tensors)).encode()

    def prepare(self, tier: m.Tier) -> None:
        self.handler.obey(m.PrepareRollback(rollback="r0001", checkpoint=self.targets[tier], tier=tier))

    def commit(self):
        with pytest.raises(RollbackCommitted):
            self.handler.obey(m.CommitRollback(rollback="r0001"))
        return self.handler.commit()

    def of(self, kind: type) -> list:
        return [one for one in self.reports if isinstance(one, kind)]


def _each(groups):
    return [(group, name, tensor) for group, held in groups.items() for name, tensor in held.items()]


@pytest.fixture
def rig(configured, tmp_path):
    """Return such a run. Its time limits are long: two cores are shared with other tests."""
    descriptor = os.memfd_create("ring")

    def make(fast_ms=240_000, full_s=240.0):
        limits = {"fast_path_timeout_ms": fast_ms, "full_path_timeout_s": full_s}
        return Rig(configured("digits", epochs=1, rollback=limits), tmp_path, descriptor)

    yield make
    os.close(descriptor)


@TIERS
def test_both_tiers_ask_in_order_and_put_back_every_bit(rig, tier):
    """All vote before any goes back. The training is last, and the report names all of them."""
    run = rig()
    assert run.state() != run.expected
    run.prepare(tier)
    committed = run.commit()

    assert run.calls == [("strategy", "prepare"), ("seeds", "prepare"), ("strategy", "load"), ("seeds", "load")]
    assert run.state() == run.expected
    (prepared,) = run.of(m.RollbackPreparedReport)
    assert (prepared.participants, prepared.abstained) == (("strategy", "seeds", "training"), ())
    assert committed.report.late == ()
    assert min(committed.report.spans.strategy, committed.report.spans.seeds) > 0.0


def _watch_opens(opened: list[str]) -> None:
    """Note each file that this process opens while `opened` is in `_NOTING`. A hook of the interpreter is for ever."""
    if not _NOTING:
        sys.addaudithook(lambda event, given: event == "open" and [each.append(given[0]) for each in _NOTING])
    _NOTING.append(opened)


_NOTING: list[list] = []


@TIERS
def test_the_fast_tier_opens_no_file_and_the_full_one_does(rig, tier):
    """The interpreter reports each open, of any thread. The full tier shows that the report works."""
    run, opened = rig(), []
    _watch_opens(opened)
    try:
        run.prepare(tier)
        run.commit()
    finally:
        _NOTING.remove(opened)
    mine = [one for one in opened if isinstance(one, str | bytes | os.PathLike)]

    assert run.state() == run.expected
    assert bool(mine) == (tier is m.Tier.FULL), mine


@TIERS
def test_the_fast_tier_needs_no_folder_of_the_run(rig, tier, tmp_path):
    """Without the checkpoints the full tier refuses; the fast one goes back all the same."""
    run = rig()
    (tmp_path / "c000001").rename(tmp_path / "elsewhere")
    run.prepare(tier)
    if tier is m.Tier.FULL:
        assert [one.file for one in run.of(m.RollbackRefusedReport)] == ["manifest.json"]
        assert run.calls == []
        return
    run.commit()
    assert run.state() == run.expected


@TIERS
def test_a_slow_vote_is_not_waited_for_and_counts_for_nothing(rig, tier):
    """It abstains, by name, and goes back when it is free. Until then its state is the target's."""
    run, free = rig(fast_ms=400, full_s=0.4), threading.Event()
    run.strategy.when["prepare"] = lambda: free.wait(60)
    run.prepare(tier)
    committed = run.commit()
    (prepared,) = run.of(m.RollbackPreparedReport)

    assert prepared.abstained[0] == "strategy"
    assert "strategy" not in prepared.participants
    assert prepared.participants[-1] == "training"
    assert committed.report.late[0] == "strategy"
    assert run.strategy.count == 2, "it went back while it was still asked"
    assert run.state() == run.expected, "a capture holds another state than the target's"
    free.set()
    _until(lambda: run.setup.participants.late == ())
    assert run.strategy.count == 1
    assert run.state() == run.expected


def _until(condition) -> None:
    waited = threading.Event()
    for _ in range(6000):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it never came")


@TIERS
def test_a_slow_return_is_recorded_and_the_newest_target_wins(rig, tier):
    """While it hangs a second rollback comes; it then goes to the second target only."""
    run, free = rig(fast_ms=400, full_s=0.4), threading.Event()
    run.seeds.when["load"] = lambda: free.wait(60)
    run.prepare(tier)
    assert "seeds" in run.commit().report.late
    run.seeds.when = {}
    run.prepare(tier)
    assert "seeds" in run.commit().report.late
    free.set()
    _until(lambda: run.setup.participants.late == ())

    assert run.calls.count(("seeds", "load")) == 2
    assert run.state() == run.expected


@TIERS
@pytest.mark.parametrize("how", [SystemExit, KeyboardInterrupt])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_participant_whose_thread_ends_abstains(rig, tier, how):
    """It gave no answer and will give none: nobody waits for the end of its share."""
    run = rig()

    def end():
        raise how

    run.strategy.when["prepare"] = end
    run.prepare(tier)
    run.commit()

    assert [one.abstained for one in run.of(m.RollbackPreparedReport)] == [("strategy",)]
    assert run.state() == run.expected


@TIERS
def test_a_refusal_changes_nothing_and_names_who_refused(rig, tier):
    """The training goes on where it was. Those that were asked hear that it is over, once."""
    run = rig()
    before = run.state()

    def refuse():
        raise RuntimeError("its plan has no step 1")

    run.seeds.when["prepare"] = refuse
    run.prepare(tier)
    run.handler.obey(m.AbortRollback(rollback="r0001"))
    run.handler.obey(m.AbortRollback(rollback="r0001"))
    (refused,) = run.of(m.RollbackRefusedReport)

    assert (refused.participant, refused.file) == ("seeds", "participant seeds")
    assert (refused.why, refused.restored, refused.unfit) == ("its plan has no step 1", False, False)
    assert run.of(m.RollbackPreparedReport) == []
    assert run.state() == before
    assert run.calls[2:] == [("strategy", "abort"), ("seeds", "abort")]
    with pytest.raises(RollbackUnconfirmed):
        run.handler.commit()


@TIERS
def test_one_that_raises_while_it_goes_back_makes_the_target_unusable(rig, tier):
    """By then the live state is invalid, and the report says so; the next target restores it."""
    run = rig()

    def fail():
        raise ValueError

    run.strategy.when["load"] = fail

    def next_target(*_):
        run.strategy.when = {}
        run.prepare(m.Tier.FULL)
        run.handler.obey(m.CommitRollback(rollback="r0001"))

    run.inbox.wait = next_target
    run.prepare(tier)
    committed = run.commit()
    (refused,) = run.of(m.RollbackRefusedReport)

    assert (refused.participant, refused.why, refused.restored) == ("strategy", "ValueError", True)
    assert committed.order.tier is m.Tier.FULL
    assert committed.report.late == ()
    assert run.state() == run.expected


def test_one_that_goes_back_to_another_state_is_found(rig):
    """CONFIRM of the full tier names it; that of the fast tier compares the whole state."""
    run = rig()
    run.seeds.load_state_dict = lambda state: None
    run.prepare(m.Tier.FAST)
    with pytest.raises(ToldToExit):
        run.commit()
    assert [(one.restored, one.participant) for one in run.of(m.RollbackRefusedReport)] == [(True, "")]
    run.prepare(m.Tier.FULL)
    with pytest.raises(RollbackUnconfirmed, match=r"participant seeds\.count is not what checkpoint c000001 holds"):
        run.commit()


def test_one_without_state_in_the_target_stays_as_it_is(rig):
    """It joined after the checkpoint was taken. One that has left is not missed either."""
    run = rig()
    late = Toy("late", run.calls)
    run.setup.participants._seats.pop("seeds")
    run.setup.participants.register("late", late)
    late.move()
    run.prepare(m.Tier.FULL)
    run.commit()

    assert {name for name, _ in run.calls} == {"strategy"}
    assert (run.strategy.count, late.count) == (1, 1)


@pytest.mark.parametrize(
    ("name", "one", "why"),
    [
        ("training", Toy("", []), "taken, or empty"),
        ("", Toy("", []), "taken, or empty"),
        ("plan", object(), "no method state_dict, load_state_dict"),
    ],
)
def test_a_participant_that_cannot_be_one_is_refused(name, one, why):
    """By a sentence that names it."""
    with pytest.raises(ValueError, match=why):
        Participants().register(name, one)


def test_a_state_that_no_checkpoint_can_hold_is_refused_before_training(configured, monkeypatch):
    """As for the task's own state, with the path of the value; and so is a name that is taken."""
    from tolariad.trainer.tasks.digits import Digits

    toy = Toy("plan", [])
    toy.count = {1, 2}
    monkeypatch.setattr(Digits, "participants", lambda self, model: {"plan": toy}, raising=False)
    with pytest.raises(SetupRefused, match=r"participant plan\.count: a builtins\.set"):
        build(configured("digits", epochs=1))
    monkeypatch.setattr(Digits, "participants", lambda self, model: {"training": toy}, raising=False)
    with pytest.raises(SetupRefused, match=r"participants\(model\): 'training' cannot be the name"):
        build(configured("digits", epochs=1))
