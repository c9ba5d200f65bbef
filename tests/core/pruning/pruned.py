"""The simulated run with pruning: an analysis that may fail or lie, and a trainer that masks and compacts."""

from __future__ import annotations

from collections import deque

from tests.core.rated import RatedTrainer, RatedWorld
from tolariad.core import messages as m
from tolariad.core.calc.pruning.analysis import AnalysisRequest
from tolariad.core.calc.pruning.plan import PlannedShare, PrunePlan
from tolariad.core.calc.pruning.schedule import parameters_allowed
from tolariad.core.calc.pruning.units import joined, without
from tolariad.core.calc.pruning.verdict import PruningDecision, Trip, WindowAction

# Units of each group before any pruning; each is one channel.
WIDTHS = {"a": 60, "b": 40}
TOTAL = sum(WIDTHS.values())
# Parameters that go with a unit of each group, and those of the model, of which some belong to no unit.
WEIGHTS = {"a": 3, "b": 7}
PARAMETERS = sum(WIDTHS[name] * WEIGHTS[name] for name in WIDTHS) + 40
PLAN = PrunePlan(
    transition_epoch=0,
    interval=1,
    budgets=(PlannedShare(0, 0.1),),
    caps=(PlannedShare(0, 0.15), PlannedShare(2, 0.3)),
    grace_steps=0,
    window_steps=2,
    # The accuracy of these runs moves by itself.
    accuracy_drop=0.5,
    spread_factor=0.0,
    timeout_s=10.0,
)
SPEED = Trip(threshold="training_speed_threshold", limit=0.9, measured=0.5, action=WindowAction.RELEASE)
NORM = Trip(threshold="gradient_norm_threshold", limit=5.0, measured=9.0, action=WindowAction.ROLLBACK)


def parameters_of(units):
    return sum(len(ones) * WEIGHTS[name] for name, ones in units.items())


class PrunedTrainer(RatedTrainer):
    """`sets` and `gone` are a part of its state: units masked by cycle, units removed by group.

    `trips` are exceeded in the next window that ends.
    """

    def __init__(self, *given, saved_masks, trips, **more):
        super().__init__(*given, **more)
        self.sets: dict[int, dict[str, tuple[int, ...]]] = {}
        self.gone: dict[str, int] = {}
        # Cycle, and the last update of its window; a part of the state.
        self.watch: tuple[int, int] | None = None
        self.told: set[tuple[int, int]] = set()
        self.saved_masks, self.trips = saved_masks, trips

    def width(self, group):
        return WIDTHS[group] - self.gone.get(group, 0)

    def _answer(self, order):
        if not isinstance(order, m.MaskUnits | m.ReleaseMasks | m.CompactModel):
            super()._answer(order)
            return
        given = {"order": order.cause, "applied_before_step": self.step + 1, "refused": self._refused(order)}
        if not given["refused"]:
            self.repeat(order)
            self.applied += 1
        match order:
            case m.MaskUnits():
                report = m.MasksAppliedReport(
                    parameters=parameters_of(order.units) + 1,
                    pruned_parameters=parameters_of(order.units),
                    model_hash="ab",
                    accuracy_now=0.9,
                    accuracy_masked=0.88,
                    **given,
                )
            case m.ReleaseMasks():
                report = m.MasksReleasedReport(parameters=9, **given)
            case _:
                left = PARAMETERS - sum(WEIGHTS[name] * count for name, count in self.gone.items())
                before = left if given["refused"] else left + parameters_of(order.units)
                report = m.ModelCompactedReport(removal="{}", parameters_before=before, parameters=left, **given)
        self.todo.append(report)

    def _refused(self, order):
        masked = joined(self.sets.values())
        match order:
            case m.MaskUnits():
                bad = [name for name, ones in order.units.items() if ones[-1] >= self.width(name)]
                return f"{bad[0]} has no such unit" if bad or without(order.units, masked) != order.units else ""
            case m.ReleaseMasks():
                return "" if order.cycle in self.sets else f"cycle {order.cycle} has no masks"
            case _:
                return "" if order.units == masked else "other units are masked"

    def repeat(self, order):
        match order:
            case m.MaskUnits():
                self.sets = {**self.sets, order.cycle: order.units}
                self.watch = order.cycle, self.step + order.grace_steps + order.window_steps
            case m.ReleaseMasks():
                assert order.cycle in self.sets, (order, self.sets)
                self.sets = {cycle: units for cycle, units in self.sets.items() if cycle != order.cycle}
            case m.CompactModel():
                assert order.units == joined(self.sets.values()), (order, self.sets)
                self.gone = {
                    name: self.gone.get(name, 0) + len(order.units.get(name, ()))
                    for name in {**self.gone, **order.units}
                }
                self.sets = {}
            case _:
                super().repeat(order)

    def _train(self, durable):
        report = super()._train(durable)
        self._report_window()
        return report

    def _rerun(self):
        report = super()._rerun()
        if not self.script:
            self._report_window()
        return report

    def _report_window(self):
        if self.watch is not None and self.step >= self.watch[1] and self.watch not in self.told:
            self.told.add(self.watch)
            trips, self.trips[:] = tuple(self.trips), []
            watched = m.PruneWatchReport(cycle=self.watch[0], step=self.step, trips=trips, norm_ratio=1.0)
            self.todo.append(watched)

    def _begin(self, order):
        if order.checkpoint is not None and order.checkpoint.id in self.saved_masks:
            self.sets, self.gone, self.watch = self.saved_masks[order.checkpoint.id]
        super()._begin(order)
        self._watch_again()

    def _roll_back(self, to):
        self.sets, self.gone, self.watch = self.saved_masks[to.id]
        self.later = deque(one for one in self.later if not isinstance(one, m.MaskUnits))
        super()._roll_back(to)
        self._watch_again()

    def _watch_again(self):
        """The report of a window that is over is older than the state that was restored."""
        self.told = {self.watch} if self.watch is not None and self.step >= self.watch[1] else set()

    def _written(self, id_):
        self.saved_masks[id_] = (self.sets, self.gone, self.watch)
        return super()._written(id_)


class PrunedWorld(RatedWorld):
    """A world that prunes by PLAN. `lies`: analyses fail, find too much, or refuse. `removed`: importance files."""

    def __init__(self, seed, **policy):
        self.saved_masks, self.trips = {}, []
        self.asked: list[AnalysisRequest] = []
        self.cancelled: list[int] = []
        self.removed: list[str] = []
        self.swept: list[m.SweepImportance] = []
        self.lies = False
        given = {"prune": PLAN, "deaths_max": 1000, "checkpoint_every_epochs": 1, "checkpoint_gap_s": 0.0}
        super().__init__(seed, **{**given, **policy})

    def new_trainer(self, incarnation):
        given = incarnation, self.environment, self.accuracy, self.broken
        more = {"saved_masks": self.saved_masks, "trips": self.trips}
        return PrunedTrainer(*given, saved=self.saved, owing=self.owing, **more)

    def _do(self, effect):
        match effect:
            case m.AnalyzeCheckpoint():
                self.asked.append(effect.request)
                self.due.append(self.answer_to(effect.request))
            case m.CancelAnalysis(cycle=cycle):
                self.cancelled.append(cycle)
                # Sometimes the answer is on its way already.
                if self.random.random() < 0.5:
                    self.due = type(self.due)(one for one in self.due if not isinstance(one, m.AnalysisReply))
            case m.RemoveImportance(files=files):
                self.removed += files
            case m.SweepImportance():
                self.swept.append(effect)
            case _:
                super()._do(effect)

    def answer_to(self, request):
        """Return what an analysis says; sometimes that it failed, sometimes too much, if it lies."""
        kind = self.random.random() if self.lies else 1.0
        if kind < 0.1:
            return m.AnalysisReply(cycle=request.cycle, why="the process ended by SIGKILL")
        decision = self.random.choice(list(PruningDecision)) if self.lies else PruningDecision.GO
        allowed = parameters_allowed(request.share, request.cap, PARAMETERS, request.pruned)
        allowed //= 2 if decision is PruningDecision.CONDITIONAL_GO else 1
        units = self.chosen(request, allowed + max(WEIGHTS.values()) if kind < 0.2 else allowed)
        return m.AnalysisReply(
            cycle=request.cycle,
            found=m.PruneAnalyzed(
                cycle=request.cycle,
                decision=decision,
                reasons=() if decision is PruningDecision.GO else ("It was drawn.",),
                units=units,
                sha256=f"{hash((request.cycle if kind > 0.3 else 0, str(units))) & 0xFFFFFF:06x}" if units else "",
                channels=sum(map(len, units.values())),
                total=TOTAL,
                pruned_parameters=parameters_of(units),
                total_parameters=PARAMETERS,
                spread=float("nan") if 0.2 <= kind < 0.25 else 0.01,
                importance=request.output,
                importance_size=100,
                seconds=0.1,
            ),
        )

    def chosen(self, request, parameters):
        """Return drawn live units: as many as fit into so many parameters."""
        live = [
            (name, unit)
            for name, width in WIDTHS.items()
            for unit in range(width - request.removed.get(name, 0))
            if unit not in request.masked.get(name, ()) and unit not in request.avoid.get(name, ())
        ]
        taken = []
        for name, unit in self.random.sample(live, len(live)):
            if WEIGHTS[name] <= parameters:
                parameters -= WEIGHTS[name]
                taken.append({name: (unit,)})
        return joined(taken)

    def anything(self):
        kind = self.random.random()
        orders = (m.PruneAnalyze, m.PruneApply, m.PruneCompact, m.PruneDisable, m.PruneEnable)
        if kind < 0.12:
            self.command(self.random.choices(orders, (4, 4, 3, 1, 3))[0](id=self._id()))
        elif kind < 0.15:
            self.trips[:] = [self.random.choice((SPEED, NORM))]
        else:
            super().anything()


def assert_agrees(world, where=""):
    """The trainer's masks and its width are the journal's, and a window that is open will be reported."""
    pruning = world.state.pruning
    if pruning.window is not None and not pruning.window.is_watched:
        assert world.trainer.watch not in world.trainer.told, where
    assert {one.cycle: one.units for one in pruning.sets} == world.trainer.sets, where
    assert {name: count for name, count in pruning.removed.items() if count} == {
        name: count for name, count in world.trainer.gone.items() if count
    }, where
