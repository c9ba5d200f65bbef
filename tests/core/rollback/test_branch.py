"""P12: a rollback restores what was known at its target. Every other field is declared with a reason."""

from __future__ import annotations

import random

import msgspec
import pytest
from msgspec.structs import replace

from tests.core.rated import RatedWorld
from tests.core.rollback.fates import FATES, paths
from tests.core.rollback.test_rollback import rolled_back
from tests.core.simulate import ValidatingWorld, World, find, tick_until, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tests.core.snapped import SnappedWorld
from tests.core.test_lifecycle import KEEP_BEST
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding, Signal, Verdict
from tolariad.core.state.branch import PARTS
from tolariad.core.state.run_state import RunState, apply, capture, fold

POLICY = {"checkpoint_every_epochs": 1, "checkpoint_gap_s": 0.0, "deaths_max": 1000, "keep_last": 3, **KEEP_BEST}
LEAVES = (m.StepCompleted, m.StepSkipped, m.ValidationBegun, m.EpochFinished, m.EpochStarted)


def default_of(slice_: str, name: str) -> object:
    """The value with which a run begins."""
    return getattr(getattr(RunState(), slice_), name)


def found(state: RunState, path: tuple[str, str]) -> object:
    """One field; written out, since a NaN is not equal to itself."""
    return msgspec.msgpack.encode(getattr(getattr(state, path[0]), path[1]))


class Observer:
    """Remembers every state at every place of the living line, without any bound, and holds each rollback to it."""

    def __init__(self) -> None:
        self.state = RunState()
        self.left: dict[tuple[int, int, int], RunState] = {}
        self.expected: dict[str, RunState] = {}
        self.rollbacks = self.from_memory = self.to_the_start = self.again = self.forgotten = 0
        # Those that were copied at a place where the fold had been before.
        self.passed: set[str] = set()

    def look(self, event: object, where: str) -> None:
        before, self.state = self.state, apply(self.state, event)
        place = (before.progress.step, *before.progress.place)
        match event:
            case m.StateCopied(id=id_):
                copied = (event.step, event.epoch, event.batch)
                # A trainer that is started again at an epoch's beginning stands there as any other does.
                is_passed = copied in self.left and (copied != place or event.batch > 0)
                self.passed |= {id_} if is_passed else set()
                self.expected[id_] = self.left[copied] if is_passed else before
                assert copied in self.left or copied == place, f"{where}: a copy at {copied}, where nobody ever stood"
            case m.RolledBack(epoch=epoch, batch=batch):
                self._compare(before, event, where)
                self.left = {at: one for at, one in self.left.items() if at[1:] < (epoch, batch)}
            case m.ValidationBegun(batch=batch) if batch:
                pass  # It belongs to its place, which is left later.
            case _ if isinstance(event, LEAVES):
                self.left.setdefault(place, before)

    def _compare(self, before: RunState, event: m.RolledBack, where: str) -> None:
        after, expected = self.state, self.expected[event.checkpoint]
        where = f"{where}: {event.rollback} to {event.checkpoint} at step {event.step}"
        assert (after.progress.step, after.progress.place) == (event.step, (event.epoch, event.batch)), where
        if event.checkpoint in before.copies.held:
            differing = [one for one in paths(None) if found(after, one) != found(expected, one)]
            assert differing == [], where
        else:
            # Copied in a re-run, at a place of which nothing is kept any more since a rollback that went there or near.
            assert event.checkpoint in self.passed, where
            self.forgotten += 1
        begun = [(slice_, getattr(getattr(after, slice_), name), name) for slice_, name in paths(st.Fate.ANEW)]
        assert [one for one in begun if one[1] != default_of(one[0], one[2])] == [], where
        survived = [one for one in paths(st.Fate.SURVIVES) if found(after, one) != found(before, one)]
        assert survived == [], where
        self.rollbacks += 1
        self.again += event.checkpoint in self.passed
        self.from_memory += event.checkpoint.startswith("s")
        self.to_the_start += event.step == 0


def disturb(world: World, draw: random.Random, rollbacks: float, steps: float) -> None:
    """Change something that a run knows, or roll back to a drawn place; the two shares say how often."""
    state = world.state
    world.accuracy[draw.choice((1, 2, 3))] = draw.choice((0.02, 0.2, 0.5, 0.7, 0.9))
    alive = world.trainer is not None and state.trainer.began and state.progress.rerun is None
    kind = draw.random()
    if kind < rollbacks:
        memory = [one.id for one in state.snapshots.promoted]
        disk = [one.id for one in state.checkpoints.catalogue if one.is_target]
        to = draw.choice(memory if memory and draw.random() < 0.7 else [*disk, *disk[-1:], ""])
        world.command(
            m.Rollback(to=to)
            if to
            else m.Rollback(step=draw.choice((0, state.progress.step)), tier=draw.choice(list(m.Tier)))
        )
    elif kind < rollbacks + 0.02 and alive:
        report = m.Told(event=m.LrViolationDetected(step=state.progress.step + 1, group="body", what="it was changed"))
        world.give(m.ReportReceived(incarnation=state.trainer.incarnation, report=report))
    elif kind < rollbacks + 0.04 and alive and state.progress.batch:
        at = {"step": state.progress.step, "epoch": state.progress.epoch, "batch": state.progress.batch}
        shift = Verdict(Finding.SHIFT, Signal.LOSS, 3.0, 1.0, 2.0)
        report = m.InstabilityReport(verdict=shift, first_batch=1, late=True, **at)
        world.give(m.ReportReceived(incarnation=state.trainer.incarnation, report=report))
    elif kind < steps:
        world.tick()
    else:
        world.anything()


@pytest.mark.parametrize("kind", [World, SnappedWorld, RatedWorld, ValidatingWorld])
def test_whatever_is_drawn_a_rollback_restores_every_field_or_says_why_not(kind, seed):
    """Deaths, restarts, skipped batches, damaged files and falling accuracies, in both tiers, also to the start."""
    counts = dict.fromkeys(("rollbacks", "from_memory", "to_the_start", "again", "forgotten"), 0)
    # Of the rollbacks in a world with snapshots only some go to one: such worlds must be more.
    for offset in range(24 if kind is SnappedWorld else 14):
        draw, observer = random.Random(seed + offset), Observer()
        world = kind(seed + offset, **POLICY)
        world.goes_back, seen = True, 0
        for _ in range(600):
            if world.exit is not None:
                break
            disturb(world, draw, *((0.02, 0.0) if offset % 2 else (0.06, 0.75)))
            for event in world.events[seen:]:
                observer.look(event, f"seed {seed + offset}")
            seen = len(world.events)
            assert len(world.state.copies.held) <= st.CATALOGUE_MAX + len(world.state.snapshots.kept) + 17
        assert observer.state == world.state
        for name in counts:
            counts[name] += getattr(observer, name)
    print(f"seed {seed}: {counts}")

    assert counts["rollbacks"] > 40
    assert counts["to_the_start"] > 5
    assert counts["forgotten"] * 10 < counts["rollbacks"]
    assert counts["from_memory"] > 3 or kind is not SnappedWorld


def test_every_field_belongs_to_a_branch_or_says_what_a_rollback_does_with_it():
    """A new field joins the part of its slice in the Branch, or its description gives the reason why not."""
    assert [f"{one.slice}.{one.name}: {one.why!r}" for one in FATES if len(one.why) < 8] == []
    assert set(PARTS) == {slice_ for slice_, _ in paths(None)}
    assert sum(len(part.__struct_fields__) for part in PARTS.values()) == len(paths(None)) > 20


def test_what_is_restored_begins_as_its_slice_begins():
    """If nothing was kept for the target, a field gets its default: its value at the start of a run."""
    for slice_, name in paths(None):
        assert getattr(getattr(st.Branch(), slice_), name) == default_of(slice_, name), f"{slice_}.{name}"


def test_rates_stand_as_at_the_target_once_the_trainer_says_so():
    """They lie in the checkpoint: the trainer that stands there says what they are, with the epoch's sums."""
    world = RatedWorld(0, **POLICY)
    until(world, 2 * STEPS_PER_EPOCH)
    world.lr_set("head", 0.05)
    until(world, 2 * STEPS_PER_EPOCH + 2)
    world.command(m.Checkpoint())
    tick_until(world, lambda: find(world, m.StateCopied)[-1].batch == 4, "a copy amid the third epoch")
    there = world.state
    world.lr_set("head", 0.01)
    until(world, 3 * STEPS_PER_EPOCH)
    changed = world.state.rates
    rolled_back(world, to=find(world, m.StateCopied)[-1].id)
    tick_until(world, lambda: not world.state.rates.stale, "the word on where rates stand")

    assert changed.groups != there.rates.groups
    assert changed.changes != there.rates.changes
    assert world.state.rates == there.rates
    assert world.state.progress.epoch_loss_sum == there.progress.epoch_loss_sum > 0
    assert world.state.progress.epoch_first_step == there.progress.epoch_first_step


def test_a_death_and_a_restart_from_an_older_checkpoint_restore_nothing():
    """Steps that are run again are no rollback: what was learnt since the checkpoint stays known."""
    world = World(0, checkpoint_every_epochs=100)
    world.accuracy.update({1: 0.8, 2: 0.4, 3: 0.4})
    until(world, 2 * STEPS_PER_EPOCH + 2)
    before = world.state
    world.restart_daemon()
    tick_until(world, lambda: find(world, m.RerunFinished), "a re-run")

    assert find(world, m.RerunFinished)[-1].first == 1
    assert (world.state.progress.metrics, world.state.progress.best_accuracy) == ({"accuracy": 0.4}, 0.8)
    assert world.state.instability.accuracy == before.instability.accuracy
    assert world.state.copies == before.copies


@pytest.mark.parametrize("leaves", LEAVES[:4])
def test_a_finding_after_the_best_validation_belongs_to_its_place(leaves):
    """The finding comes a step late. After two epochs the state is copied there in a re-run, and put back."""
    finding = {"finding": Finding.SHIFT, "signal": Signal.LOSS, "value": 3.0, "baseline": 1.0, "limit": 2.0}
    figures, over = {"loss": 1.0, "grad_norm": 1.0}, {"steps": 1, "train_loss": 1.0, "seconds": 0.1}
    step = {"lr": 0.01, "rates": 1, "branch": 0, **figures}
    here = {"epoch": 1, "step": 1, "batch": 1}
    left = {
        m.StepCompleted: m.StepCompleted(epoch=1, step=2, batch=2, **step),
        m.StepSkipped: m.StepSkipped(epoch=1, step=2, batch=2, reason=m.SkipReason.OVERFLOW, **figures),
        m.ValidationBegun: m.ValidationBegun(epoch=1, step=1),
        m.EpochFinished: m.EpochFinished(epoch=1, step=1, **over),
    }
    events = [
        m.EpochStarted(epoch=1),
        m.StepCompleted(**here, **step),
        m.ValidationImproved(**here, metric="accuracy", value=0.9),
        m.InstabilityDetected(**here, **finding),
        left[leaves],
        m.EpochFinished(epoch=1, step=1, **over),
        m.EpochStarted(epoch=2),
        m.StepCompleted(epoch=2, step=2, batch=1, **step),
        m.InstabilityDetected(epoch=2, step=2, batch=1, **finding),
        m.EpochFinished(epoch=2, step=2, **over),
        m.CheckpointBegun(id="c000001", reason=m.CheckpointReason.ORDERED),
        m.StateCopied(id="c000001", **here),
    ]
    there = fold(RunState(), events)
    back = m.RolledBack(rollback="r0001", checkpoint="c000001", branch=1, parent=0, **here)

    assert there.snapshots.unhealthy_step == 2
    assert apply(there, back).snapshots.unhealthy_step == 1


def test_an_accuracy_of_the_branch_that_was_left_judges_nobody():
    """The average begins again where the run does: an accuracy that is low at the start is no collapse."""
    world = World(0, **POLICY)
    world.accuracy.update({1: 0.9, 2: 0.9, 3: 0.9})
    until(world, 3 * STEPS_PER_EPOCH)
    average = world.state.instability.accuracy
    rolled_back(world, step=0)

    assert average == pytest.approx(0.9)
    assert (world.state.instability.accuracy, world.state.instability.validations) == (None, 0)


def test_what_an_older_version_took_restores_the_newest_place_before_it():
    """Such a target has nothing beside it; a run without any such place knows as little as at its beginning."""
    world = until(World(0, **POLICY), 2 * STEPS_PER_EPOCH + 2)
    target = world.state.checkpoints.newest
    older = world.state.copies.held["c000002"]
    held = {id_: one for id_, one in world.state.copies.held.items() if id_ != target.id}
    at = {"step": target.step, "epoch": target.epoch, "batch": target.batch}
    back = m.RolledBack(rollback="r0001", checkpoint=target.id, branch=1, parent=0, **at)
    nearest = apply(replace(world.state, copies=replace(world.state.copies, held=held)), back)
    nothing = apply(replace(world.state, copies=st.Copies()), back)

    assert (target.id, older.step) == ("c000003", STEPS_PER_EPOCH)
    assert nearest.progress.best_accuracy == older.progress.best_accuracy == 0.1
    assert nearest.progress.place == nothing.progress.place == (target.epoch, 0)
    assert nothing.progress.best_accuracy is None


def test_what_is_known_goes_with_the_checkpoint_or_snapshot_it_belongs_to():
    """Given up, damaged, removed, overwritten, left by a rollback, or gone with the daemon."""
    world = SnappedWorld(0, **POLICY)
    until(world, 2 * STEPS_PER_EPOCH + 2)
    snapshots = {id_ for id_ in world.state.copies.held if id_.startswith("s")}
    rejected = apply(world.state, m.CheckpointRejected(id="c000002", file="f", why="w")).copies.held
    removed = apply(world.state, m.CheckpointDeletionBegun(id="c000002", why="w", size=1)).copies.held
    kept = {one.id for one in world.state.snapshots.kept}
    opened = {world.state.snapshots.open.id} if world.state.snapshots.open else set()
    world.restart_daemon()
    gone = {id_ for id_ in world.state.copies.held if id_.startswith("s")}
    rolled_back(tick_until(world, lambda: world.state.run.phase.value == "running", "training"), step=0)

    assert "c000002" not in rejected
    assert "c000002" not in removed
    assert kept <= snapshots <= kept | opened
    assert gone == set()
    assert set(world.state.copies.held) == {"c000001"}


def test_a_thousand_checkpoints_keep_their_captures_small():
    """A capture grows by some hundred bytes for each place that may be gone back to."""
    events = [m.ValidationFinished(epoch=1, step=1, metrics={"loss": 0.5, "accuracy": 0.9}, samples=1, seconds=0.1)]
    for number in range(1, st.CATALOGUE_MAX + 50):
        id_, at = f"c{number:06d}", {"step": number, "epoch": 1, "batch": number}
        events += [
            m.StepCompleted(loss=0.123, grad_norm=1.5, lr=0.01, rates=1, branch=0, **at),
            m.CheckpointBegun(id=id_, reason=m.CheckpointReason.INTERVAL),
            m.StateCopied(id=id_, **at),
            m.CheckpointCommitted(id=id_, manifest="ab" * 32, pieces=(), size=1, seconds=0.1, branch=0, **at),
        ]
    state = fold(RunState(), [m.EpochStarted(epoch=1), *events])
    size = len(capture(state)) - len(capture(replace(state, copies=st.Copies())))

    assert len(state.copies.held) == st.CATALOGUE_MAX
    assert size < 500 * st.CATALOGUE_MAX, f"{size / st.CATALOGUE_MAX:.0f} bytes each"


def test_a_copy_for_nobody_is_not_recorded():
    """Its checkpoint was given up, or nobody ever ordered it."""
    world = until(World(0), 2)
    before = len(world.events)
    report = m.StateCopiedReport(id="c999999", step=2, epoch=1, batch=2)
    world.give(m.ReportReceived(incarnation=world.state.trainer.incarnation, report=report))

    assert len(world.events) == before
