"""Budgets against what was measured: overruns are events and feed breakers; none of them ever discards a weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace

from tests.core.facts import daemon_started, environment, run_started
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.calc.health.histogram import Bucket, Histogram, bucket_of
from tolariad.core.calc.settings.model import Breaker, Settings
from tolariad.core.calc.settings.reading import read_settings
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, fold
from tolariad.telemetry.histograms import BudgetHistograms

SECOND = 10**9
CHECKPOINT = m.CheckpointRef(id="c000001", step=0, epoch=1, batch=0, manifest="ee")


def tally(budget: str, *values: float, limit: float | None = None) -> m.BudgetHistogram:
    limit = BUDGETS[budget].limit if limit is None else limit
    counts = tuple(Bucket(*item) for item in sorted(Counter(map(bucket_of, values)).items()))
    over = sum(value > limit for value in values)
    return m.BudgetHistogram(budget=budget, count=len(values), breaches=over, worst=max(values), counts=counts)


class Told:
    """A run in its middle; reports are decided, stamped and folded at a clock of the test's."""

    def __init__(self, parameters: int = 10, **policy: object) -> None:
        self.mono = SECOND
        self.state = fold(
            RunState(), (run_started(**{"epochs": 99, "checkpoint_every_epochs": 99, **policy}), daemon_started())
        )
        self.events: list[m.Event] = []
        # A budget's histogram is no state; what was measured is added up from the events.
        self.histograms = BudgetHistograms(self.state.overruns)
        self.record(m.TrainerStarted(incarnation=1, pid=9, start_ticks=1, boot_id="b"))
        context = environment()
        self.record(
            m.ExecutionContextRecorded(
                incarnation=1, environment=context, hash="aa", parameters=parameters, steps_per_epoch=4
            )
        )
        self.record(m.TrainingStarted(incarnation=1, step=0))
        self.record(m.CheckpointBegun(id="c000001", reason=m.CheckpointReason.START))
        self.record(committed("c000001"))

    def record(self, *events: m.Event) -> None:
        """Events that nobody decided on: only stamped and folded."""
        ready = [replace(event, wall=self.mono, mono=self.mono) for event in events]
        self.state = fold(self.state, ready)
        self._keep(ready)

    def _keep(self, events: Iterable[m.Event]) -> None:
        for event in events:
            self.events.append(event)
            self.histograms.add(event)

    @property
    def by_budget(self) -> Mapping[str, Histogram]:
        """Return the measured values."""
        return self.histograms.by_budget

    def give(self, given: m.Input) -> list[m.Event]:
        """The events that came of it."""
        decided = decide(self.state, given, m.Now(wall=self.mono, mono=self.mono))
        self.state = decided.state
        self._keep(decided.events)
        return list(decided.events)

    def report(self, report: object, later_s: float = 1.0) -> list[m.Event]:
        """The events that came of it."""
        self.mono += int(later_s * SECOND)
        return self.give(m.ReportReceived(incarnation=1, report=report))

    def epoch(self, *tallies: m.BudgetHistogram, later_s: float = 1.0) -> list[m.Event]:
        number = self.state.progress.epoch_finished + 1
        return self.report(m.EpochReport(epoch=number, step=self.state.progress.step, tallies=tallies), later_s)


# Of a checkpoint of the very beginning.
THERE = {"step": 0, "epoch": 1, "batch": 0, "manifest": "ee", "pieces": ()}


def committed(id_: str, seconds: float = 0.1, **spans: float) -> m.CheckpointCommitted:
    return m.CheckpointCommitted(id=id_, **THERE, size=1, seconds=seconds, spans=m.CheckpointSpans(**spans))


def written(told: Told, seconds: float, **spans: float) -> list[m.Event]:
    """One more checkpoint, ordered and reported."""
    id_ = told.state.checkpoints.next_id
    told.record(m.CheckpointBegun(id=id_, reason=m.CheckpointReason.ORDERED))
    spanned = m.CheckpointSpans(**spans)
    return told.report(m.CheckpointWrittenReport(id=id_, **THERE, seconds=seconds, spans=spanned))


def exceeded(events: list[m.Event]) -> list[tuple[str, float, int]]:
    return [(one.budget, one.value, one.times) for one in events if isinstance(one, m.BudgetExceeded)]


def entered(events: list[m.Event]) -> list[str]:
    return [one.why for one in events if isinstance(one, m.ConservativeModeEntered)]


def test_what_the_trainer_measured_is_added_up():
    """Epoch by epoch; a quantile is over all of them."""
    told = Told()
    told.epoch(tally("lr_step", 0.1, 0.2), tally("epoch_boundary", 3.0))
    told.epoch(tally("lr_step", 0.4))
    histograms = told.by_budget

    assert (histograms["lr_step"].count, histograms["lr_step"].breaches, histograms["lr_step"].worst) == (3, 0, 0.4)
    assert histograms["epoch_boundary"].count == 1
    assert not exceeded(told.events)


def test_an_overrun_is_an_event_after_what_told_of_it():
    """With the worst value, the limit, its unit and how often; its cause is the measuring event's own."""
    told = Told()
    events = told.epoch(tally("lr_step", 6.0, 9.0, 0.1))
    (found,) = [one for one in events if isinstance(one, m.BudgetExceeded)]

    assert (found.budget, found.value, found.limit, found.unit, found.times) == ("lr_step", 9.0, 5.0, "ms", 2)
    assert type(events[events.index(found) - 1]).__name__ == "BudgetsMeasured"


def test_three_slow_boundaries_in_a_row_make_the_run_careful_and_nothing_else():
    """Two and a quick one do not; no rollback, no checkpoint rejected, no trainer ended."""
    told = Told()
    for slow in (True, True, False, True, True):
        assert not entered(told.epoch(tally("epoch_boundary", 40.0 if slow else 4.0)))
    last = told.epoch(tally("epoch_boundary", 40.0))

    assert entered(last) == ["3 epoch boundaries in a row over their budget"]
    assert not any(isinstance(one, m.RollbackBegun | m.CheckpointRejected | m.RunFrozen) for one in told.events)
    assert told.state.stability.conservative


def test_with_act_false_overruns_are_only_recorded():
    """`budgets.act: false`: the events are there, the mode is not entered, no breaker is fed."""
    told = Told(budgets_act=False)
    for _ in range(5):
        told.epoch(tally("epoch_boundary", 40.0), tally("lr_step", 9.0))

    assert len(exceeded(told.events)) == 10
    assert not entered(told.events)
    assert told.state.overruns.breakers == {}


def test_a_breaker_of_a_budget_opens_by_overruns_in_a_row_and_says_its_name():
    """Three by default; an epoch within the budget in between starts the count again."""
    told = Told()
    for slow in (True, True, False, True, True):
        told.epoch(tally("lr_step", 9.0 if slow else 0.1))
    assert not told.state.stability.conservative

    assert entered(told.epoch(tally("lr_step", 9.0))) == ["open breaker: lr_step"]


def test_breakers_have_their_rules_by_name():
    """`breakers: {lr_step: {failures: 1}}` opens at the first."""
    settings = Settings(breakers={"lr_step": Breaker(failures=1, reset_s=5.0), "lr": Breaker()})
    told = Told(breakers=st.breakers_of(settings))

    assert st.breakers_of(settings) == {"lr_step": m.BreakerLimits(failures=1, reset_s=5.0, probes=1)}
    assert entered(told.epoch(tally("lr_step", 9.0))) == ["open breaker: lr_step"]


def test_a_slow_boundary_makes_an_epoch_unhealthy():
    """The mode is left after three healthy epochs in a row and five minutes; a slow boundary starts the count again."""
    told = Told()
    for _ in range(3):
        told.epoch(tally("epoch_boundary", 40.0))
    for boundary in (4.0, 4.0, 40.0, 4.0, 4.0):
        told.epoch(tally("epoch_boundary", boundary), later_s=400.0)
        assert told.state.stability.conservative
    told.epoch(tally("epoch_boundary", 4.0), later_s=400.0)

    assert not told.state.stability.conservative


def test_shares_of_the_runs_cost_are_shown_and_lead_to_nothing():
    """Throughput lost and memory held beyond their budgets: breaches are counted, no event, no breaker."""
    told = Told()
    for _ in range(4):
        told.epoch(tally("training_degradation", 30.0), tally("memory_overhead", 90.0))

    assert told.by_budget["training_degradation"].breaches == 4
    assert not exceeded(told.events)
    assert not entered(told.events)


def test_a_checkpoint_is_held_against_its_budget_and_its_parts():
    """For the whole what it waited for on purpose does not count; a throttled one says nothing of its parts."""
    told = Told()
    slow = written(told, 12.0, model=5.0, optimizer=1.0, write=0.1)
    throttled = written(told, 60.0, model=50.0, throttled=55.0)

    assert exceeded(slow) == [("checkpoint", 12.0, 1), ("checkpoint_model", 5.0, 1)]
    assert exceeded(throttled) == []
    assert told.by_budget["checkpoint"].count == 3


def test_a_larger_model_has_more_time():
    """Budgets of checkpoints and of the full tier are for 1 B parameters and grow with it; the fast tier's do not."""
    small, large = Told(parameters=10), Told(parameters=4_000_000_000)

    assert small.state.overruns.limit_of("checkpoint") == 10.0
    assert large.state.overruns.limit_of("checkpoint") == 40.0
    assert large.state.overruns.limit_of("full_rollback") == 48.0
    assert large.state.overruns.limit_of("fast_rollback") == 500.0
    assert large.state.overruns.limit_of("rollback_deadline") == 120.0


def go_back(
    told: Told, tier: m.Tier, commit_s: float, confirm_s: float, prepare_s: float = 0.01, heard_s: float = 0.0
) -> list[m.Event]:
    told.record(
        m.RollbackBegun(rollback="r0001", checkpoint="c000001", tier=tier, from_step=0, from_branch=0, to_step=0)
    )
    told.report(m.RollbackHeardReport(rollback="r0001"), heard_s)
    told.report(m.RollbackPreparedReport(rollback="r0001", participants=("training",), seconds=prepare_s))
    return told.report(m.RolledBackReport(rollback="r0001", step=0, commit_s=commit_s, confirm_s=confirm_s))


@pytest.mark.parametrize(
    ("tier", "commit_s", "over"),
    [
        (m.Tier.FULL, 13.0, [("full_rollback", 13.05)]),
        (m.Tier.FULL, 2.0, []),
        (m.Tier.FAST, 0.1, []),
        (m.Tier.FAST, 0.6, [("fast_commit", 600.0), ("fast_rollback", 660.0)]),
    ],
)
def test_a_rollback_is_held_against_its_tiers_budget(tier, commit_s, over):
    """The full tier's time is from COMMIT to verified, the fast tier's is all phases. An overrun is only reported."""
    told = Told()
    events = go_back(told, tier, commit_s, 0.05)
    found = [(name, pytest.approx(value)) for name, value, _ in exceeded(events)]

    assert over == found
    assert "RolledBack" in [type(one).__name__ for one in events]
    assert told.by_budget["rollback_deadline"].worst == pytest.approx(2.0)
    assert told.state.overruns.breakers == {}


def test_a_rollback_that_an_emergency_led_to_is_its_answer():
    """Each level has its own deadline: SEVERE from raised to restored, MAJOR from raised to where the run trains on."""
    severe, major = Told(), Told()
    severe.record(m.EmergencyRaised(level=m.Level.SEVERE, why="loss"))
    events = go_back(severe, m.Tier.FAST, 0.1, 0.05)
    major.record(m.EmergencyRaised(level=m.Level.MAJOR, why="loss"))
    late = go_back(major, m.Tier.FULL, 5.0, 0.05, heard_s=3.0)

    assert severe.by_budget["emergency_severe"].worst == pytest.approx(2000.0)
    assert [name for name, _, _ in exceeded(events)] == ["emergency_severe"]
    assert major.by_budget["emergency_major"].worst == pytest.approx(3.0)
    assert exceeded(late) == [], "what it takes once it has begun is the tier's"
    assert [one.budget for one in major.events if isinstance(one, m.BudgetExceeded)] == ["emergency_major"]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (m.TrainerGone(incarnation=1, reason=m.DeathReason.KILLED), 1),
        (m.Opened(mode=m.StartMode.EXPLICIT, facts=(daemon_started(),)), 0),
    ],
)
def test_a_halt_is_held_against_its_budget_until_the_trainer_is_gone(given, count):
    """300 ms are an event and nothing more; a trainer that went with its daemon says nothing of that."""
    told = Told()
    told.record(m.EmergencyRaised(level=m.Level.CRITICAL, why="smoke"), m.RunFrozen(why="smoke"))
    told.mono += 3 * SECOND // 10
    ended = told.give(given)
    told.mono += 60 * SECOND
    told.record(
        m.RunResumed(origin=m.Origin.COMMAND), m.TrainerStarted(incarnation=2, pid=9, start_ticks=1, boot_id="b")
    )
    told.record(m.TrainerDied(incarnation=2, reason=m.DeathReason.EXIT, step=0))

    histogram = told.by_budget.get("emergency_critical", Histogram())
    assert (histogram.count, histogram.worst) == (count, pytest.approx(300.0 * count))
    assert [one.budget for one in ended if isinstance(one, m.BudgetExceeded)] == ["emergency_critical"] * count
    assert not any(isinstance(one, m.ConservativeModeEntered) for one in ended)


def test_a_rollback_beyond_its_budget_makes_the_run_careful_at_once_by_the_limit_of_its_model():
    """24 s are too long for 1 B parameters, not for four; a breach of one of its phases alone is not enough."""
    small, large, phase = Told(), Told(parameters=4 * 10**9), Told()
    for told in (small, large):
        go_back(told, m.Tier.FULL, 20.0, 4.0)
    go_back(phase, m.Tier.FAST, 0.1, 0.2)

    def careful(told):
        return [one.why for one in told.events if isinstance(one, m.ConservativeModeEntered)]

    assert careful(small) == ["a rollback by the full tier took 24 s, its budget is 12 s"]
    assert (careful(large), careful(phase)) == ([], [])


def test_with_act_false_a_rollback_beyond_its_budget_is_recorded_too():
    """An event, and no mode."""
    told = Told(budgets_act=False)
    found = [name for name, _, _ in exceeded(go_back(told, m.Tier.FULL, 20.0, 4.0))]

    assert found == ["full_rollback"]
    assert not entered(told.events)


def test_what_tells_of_a_run_and_its_disk_opens_no_breaker():
    """Telemetry may not change the run, and a slow disk is not helped by more checkpoints: events, every time."""
    told = Told()
    for _ in range(5):
        told.epoch(tally("journal_append", 90.0), tally("telemetry_put", 90.0), tally("telemetry_batch", 90.0))

    assert len(exceeded(told.events)) == 15
    assert told.state.overruns.breakers == {}
    assert not entered(told.events)


def test_slow_boundaries_are_counted_anew_once_the_run_is_careful():
    """Those that led into it are no reason to stay."""
    told = Told()
    for _ in range(3):
        told.epoch(tally("epoch_boundary", 40.0))

    assert told.state.stability.conservative
    assert told.state.overruns.slow_boundaries == 0


def test_the_parts_of_a_full_rollback_are_held_against_theirs():
    """Those that took time; a snapshot's are no part of the full tier."""
    full, fast = Told(), Told()
    spans = m.RollbackSpans(load=4.0, model=1.0, optimizer=0.5, coordination=0.1)
    for told, tier in ((full, m.Tier.FULL), (fast, m.Tier.FAST)):
        told.record(
            m.RollbackBegun(rollback="r0001", checkpoint="c000001", tier=tier, from_step=0, from_branch=0, to_step=0)
        )
        told.record(
            m.RolledBack(
                rollback="r0001", checkpoint="c000001", branch=1, parent=0, step=0, epoch=1, batch=0, spans=spans
            )
        )
    parts = {name: one.worst for name, one in full.by_budget.items() if name.startswith("full_")}

    assert {name: value for name, value in parts.items() if name != "full_rollback"} == pytest.approx(
        {"full_load": 4.0, "full_model": 1.0, "full_optimizer": 0.5, "full_coordination": 0.1}
    )
    assert full.by_budget["full_load"].breaches == 1
    assert not [name for name in fast.by_budget if name.startswith("full_")]


def test_an_optimizers_rebuild_is_held_against_its_budget():
    """The event says what it took, in milliseconds."""
    told = Told()
    told.record(m.OptimizerRebuildCommitted(optimizer="host", counts=m.RebuildCounts(), elapsed_ms=12.0))

    assert told.by_budget["optimizer_rebuild"].worst == pytest.approx(12.0)


def test_a_limit_that_is_configured_is_the_one_that_holds():
    """Only what differs from the table is recorded with the run."""
    settings = read_settings({"performance": {"epoch_boundary_ms": 50.0}})
    told = Told(budget_limits=st.limits_of(settings))

    assert st.limits_of(Settings()) == {}
    assert st.limits_of(settings) == {"epoch_boundary": 50.0}
    assert told.state.overruns.limit_of("epoch_boundary") == 50.0
