"""The first point at which two runs differ."""

from __future__ import annotations

import math
import os
import random
import struct

import msgspec
import pytest

from journal import Reader
from tests.forensics.differences.written import events_of_a_run, step_at, with_step, write
from tolariad.cli.diff_words import told
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.forensics.differences.runs import Verdict, compare_runs


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """The events of a run of 30 steps in three epochs."""
    return events_of_a_run(tmp_path_factory.mktemp("run") / "journal")


@pytest.fixture
def compare(tmp_path):
    """Write two journals and compare them."""

    def compared(one, other, **options):
        folders = write(tmp_path / "a", one, **options), write(tmp_path / "b", other, **options)
        with Reader(folders[0]) as a, Reader(folders[1]) as b:
            return compare_runs(a, b)

    return compared


def skip(step):
    """A skipped batch before a step."""
    return m.StepSkipped(step=step, epoch=2, batch=3, loss=9.0, grad_norm=1.0, reason=m.SkipReason.SPIKE)


def order(number, before, value=0.5):
    """A rate that was set."""
    return m.OrderActed(
        order=m.SetRate(group="main", value=value), number=number, applied_before_step=before, outcome=None
    )


def test_a_run_and_its_twin_are_the_same(events, compare):
    """Other times and another process: nothing of the training differs."""
    twin = [msgspec.structs.replace(one, wall=one.wall + 5, mono=one.mono + 7) for one in events]
    found = compare(events, twin)

    assert (found.verdict, found.first, found.equal) == (Verdict.SAME, None, 30 + 3 + 3)
    assert (found.context, found.not_compared) == ((), ())


def test_one_bit_of_one_loss_is_found(events, compare):
    """The step, the field, and both values."""
    loss = struct.unpack("<d", struct.pack("<q", struct.unpack("<q", struct.pack("<d", 0.5))[0] ^ 1))[0]
    found = compare(events, with_step(events, 17, loss=loss))

    assert found.verdict is Verdict.VALUE
    assert (found.first.place, found.first.field) == (("StepCompleted", 0, 17), "loss")
    assert (found.first.a, found.first.b) == (0.5, loss)
    assert found.equal == 16 + 2


def test_the_data_are_named_before_the_loss_that_they_lead_to(events, compare):
    """Other batches give another loss: the cause is the data."""
    events = with_step(events, 17, data=3)
    found = compare(events, with_step(events, 17, data=4, loss=0.25))

    assert (found.verdict, found.first.field) == (Verdict.DATA, "data")


def test_a_nan_is_equal_to_a_nan(events, compare):
    """Its bits depend on the processor, not on the training."""
    quiet, signed = math.nan, struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]

    assert compare(with_step(events, 4, loss=quiet), with_step(events, 4, loss=signed)).verdict is Verdict.SAME


@pytest.mark.parametrize(("extra_in_b", "verdict"), [(True, Verdict.EXTRA), (False, Verdict.MISSING)])
def test_a_skipped_batch_of_one_run_is_extra_or_missing(events, compare, extra_in_b, verdict):
    """The step itself follows in both runs."""
    at = step_at(events, 13)
    longer = [*events[:at], skip(13), *events[at:]]
    found = compare(events, longer) if extra_in_b else compare(longer, events)

    assert (found.verdict, found.first.place) == (verdict, ("StepSkipped", 0, 13, 2, 3))


def test_records_in_another_order_are_said_to_be(events, compare):
    """Both runs have both records."""
    at = step_at(events, 13)
    swapped = [*events[:at], skip(13), skip(14), *events[at:]]
    other = [*events[:at], skip(14), skip(13), *events[at:]]

    assert compare(swapped, other).verdict is Verdict.ORDER


def test_a_run_that_ended_earlier_lacks_the_rest(events, compare):
    """Everything before is equal."""
    found = compare(events, events[: step_at(events, 21)])

    assert (found.verdict, found.first.place) == (Verdict.MISSING, ("StepCompleted", 0, 21))
    assert found.first.seq_b is None


def test_another_configuration_is_said_first(events, compare):
    """The steps differ too, from the first one on; a key that changes no step explains nothing."""
    at = next(n for n, one in enumerate(events) if isinstance(one, m.RunStarted))

    def configured(given, config):
        return [*given[:at], msgspec.structs.replace(given[at], config=config), *given[at + 1 :]]

    one = configured(events, '{"tolaria": {"learning_rate": {"base_lr": 0.1}, "logging": {"level": "info"}}}')
    lower = configured(events, '{"tolaria": {"learning_rate": {"base_lr": 0.2}, "logging": {"level": "info"}}}')
    found = compare(one, with_step(lower, 3, loss=0.25))

    assert (found.verdict, found.first.place) == (Verdict.CONFIG, ("StepCompleted", 0, 3))
    assert [(each.name, each.a, each.b) for each in found.context] == [("learning_rate.base_lr", 0.1, 0.2)]


def test_a_key_that_changes_no_step_is_no_cause(events, compare):
    """It is listed, and the verdict is about the step."""
    at = next(n for n, one in enumerate(events) if isinstance(one, m.RunStarted))
    config = '{"tolaria": {"logging": {"level": "error"}}}'
    quiet = [*events[:at], msgspec.structs.replace(events[at], config=config), *events[at + 1 :]]
    found = compare(events, with_step(quiet, 3, loss=0.25))

    assert found.verdict is Verdict.VALUE
    assert [(each.name, each.matters) for each in found.context] == [("logging.level", False)]


def test_an_order_of_one_run_comes_before_the_step_that_shows_it(events, compare):
    """It acted before step 11; the loss differs at step 14."""
    at = step_at(events, 11)
    ordered = [*events[:at], order(1, 11), *events[at:]]
    found = compare(events, with_step(ordered, 14, loss=0.25))

    assert (found.verdict, found.first.place) == (Verdict.EXTRA, ("OrderActed", "SetRate", 11))
    assert not found.first.timed


@pytest.mark.parametrize("changed_in_b", [True, False])
def test_a_stage_that_a_changed_configuration_announced_names_its_keys(events, compare, changed_in_b):
    """One run was started again with another end, and both configurations are the same in the end."""
    at = step_at(events, 11)
    begins = m.BeginStage(why="the configuration changed: stop.steps")
    keys = ("logging.level", "stop.steps")
    policy = next(one.policy for one in events if isinstance(one, m.RunStarted))
    changed = m.ConfigChanged(config="{}", config_hash="0" * 64, policy=policy, keys=keys)
    given = m.OrderGiven(order=begins, why=begins.why, cause=at + 1)
    acted = m.OrderActed(
        order=begins,
        number=1,
        applied_before_step=11,
        outcome=m.StageBegan(epoch=2),
        cause=at + 2,
        by=m.BY_CONFIGURATION,
    )
    restarted = [*events[:at], changed, given, acted, *events[at:]]
    found = compare(events, restarted) if changed_in_b else compare(restarted, events)

    assert (found.verdict, found.first.place) == (Verdict.CONFIG, ("OrderActed", "BeginStage", 11))
    assert found.first.keys == ("stop.steps",)
    name = "b" if changed_in_b else "a"
    assert told(found, ("a", "b")).startswith(f"the configuration of {name} changed under way (stop.steps). That first")


def test_a_stage_that_the_program_announced_is_extra(events, compare):
    """No configuration changed."""
    at = step_at(events, 11)
    begins = m.OrderActed(
        order=m.BeginStage(why="unfrozen"), number=1, applied_before_step=11, outcome=m.StageBegan(epoch=2)
    )
    found = compare(events, [*events[:at], begins, *events[at:]])

    assert (found.verdict, found.first.keys) == (Verdict.EXTRA, ())


def test_an_order_with_another_value_is_found_without_a_step_that_differs(events, compare):
    """To the end of both runs nothing else differs."""
    at = step_at(events, 11)
    found = compare([*events[:at], order(1, 11, 0.5), *events[at:]], [*events[:at], order(1, 11, 0.25), *events[at:]])

    assert (found.verdict, found.first.field, found.first.a, found.first.b) == (Verdict.VALUE, "value", 0.5, 0.25)


def test_masks_that_came_at_another_step_are_the_machines(events, compare):
    """An analysis takes as long as the machine lets it."""

    def masked(step):
        at = step_at(events, step)
        order = m.MoveSeed(slot="s", stage=Stage.GERMINATED)
        return [*events[:at], m.OrderActed(order=order, number=1, applied_before_step=step, outcome=None), *events[at:]]

    found = compare(masked(11), masked(12))

    assert (found.verdict, found.first.field, found.first.timed) == (Verdict.VALUE, "before_step", True)


def test_a_norm_that_one_run_did_not_measure_makes_no_run_equal(events, compare):
    """It fails closed: nothing else differs, and still they are not called the same."""
    found = compare(events, with_step(events, 5, grad_norm=m.NOT_MEASURED))

    assert (found.verdict, found.first) == (Verdict.INCOMPARABLE, None)
    assert "gradient norm" in found.not_compared[0]


def test_a_gap_makes_no_run_equal(events, compare):
    """Events were lost in a repair."""
    gap = m.GapRecorded(
        first_seq=9, last_seq=9, file="x", offset=0, segments=0, damage="frame", why="by order", checkpoints_seen=1
    )
    found = compare(events, [*events, gap])

    assert found.verdict is Verdict.INCOMPARABLE
    assert "lost in a repair" in found.not_compared[0]


def test_wherever_the_difference_is_it_is_found(tmp_path_factory, tmp_path):
    """Runs of several thousand records over many segments, of which the search reads a few."""
    seed = int(os.environ.get("TOLARIA_SEED", random.randrange(2**32)))
    print(f"TOLARIA_SEED={seed}")
    draw = random.Random(seed)
    long = many_steps(draw.randrange(5000, 9000))
    write(tmp_path / "a", long, segment_bytes=256 * 1024)
    for number in range(3):
        step = draw.randrange(1, long[-1].step + 1)
        other = with_step(long, step, loss=0.125)
        # The other run has more events before the place, so its captures lie at other records.
        notes = [m.DataNoted(why="x" * draw.randrange(300))] * draw.randrange(3000)
        at = draw.randrange(step_at(other, step) + 1)
        write(tmp_path / f"b{number}", [*other[:at], *notes, *other[at:]], segment_bytes=256 * 1024)
        with Reader(tmp_path / "a") as a, Reader(tmp_path / f"b{number}") as b:
            found = compare_runs(a, b)

        assert (found.verdict, found.first.place) == (Verdict.VALUE, ("StepCompleted", 0, step))
        assert found.equal == step - 1


def many_steps(count):
    """The records of so many steps, without a run around them."""
    return [
        m.StepCompleted(wall=n, mono=n, step=n, epoch=1, batch=n, loss=1.0 / n, grad_norm=1.0, lr=0.1, rates=1)
        for n in range(1, count + 1)
    ]
