"""Moves of seeds, as boundary orders: judged by the gate of the new stage, made, and answered.

Promises: a move that its gate refuses changes nothing. A move is judged once: in a re-run, and after a restart, it is
repeated. The groups of a new optimizer are reported immediately after the move that brought it.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.core.calc.seeds.effect import judge_effect
from tolariad.core.calc.seeds.gates import GATES, Gate, judge
from tolariad.core.calc.seeds.ledger import ShapeChange, changes_shape, germinated, removed
from tolariad.core.calc.seeds.stages import Stage, is_legal
from tolariad.failpoints import reached
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.orders.numbered import Kind, OrderRefused
from tolariad.trainer.seeds.effect import measure_effect
from tolariad.trainer.seeds.measuring import measure, measure_isolated, measure_new, measure_slot, measure_standing
from tolariad.trainer.seeds.sanity import sanity

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.core.calc.seeds.gates import SeedMeasure
    from tolariad.trainer.parts.part import Orders, Trained
    from tolariad.trainer.seeds.plots import Plot
    from tolariad.trainer.setup import Setup

_log: Final = logging.getLogger(__name__)


class SeedHandler:
    """Carries out the moves of one trainer. `orders`: how, by kind."""

    def __init__(self, setup: Setup, trained: Trained) -> None:
        self._setup, self._garden = setup, setup.garden
        self._position, self._reshaped = trained.position, trained.reshaped
        self._beat = lambda: trained.link.reporter.beat(Activity.VALIDATE)
        self.orders: Orders = {
            # A new move was answered: an optimizer may have come or gone.
            m.MoveSeed: Kind(self._move, repeat=self._make, after=trained.regrouped)
        }

    def _move(self, order: m.MoveSeed) -> m.SeedMovedReport:
        """Judge a move and make it. Raises OrderRefused, with nothing changed."""
        plot = self._garden.plots.get(order.slot)
        if plot is None:
            known = ", ".join(self._garden.plots) or "none"
            raise OrderRefused(f"the model has no slot {order.slot!r}; its slots: {known}")
        if order.stage is Stage.TERMINATED or not is_legal(plot.stage, order.stage):
            raise OrderRefused(f"the slot is {plot.stage.name}; it cannot move to {order.stage.name}")
        # An order outlives a rollback, after which the slot may hold an older seed.
        if order.stage is not Stage.GERMINATED and order.number != plot.number:
            raise OrderRefused(f"the order is for seed {order.number} of the run; the slot holds seed {plot.number}")
        reached("seed_move")
        if order.stage is Stage.GERMINATED:
            return self._germinate(plot, order)
        step = self._position().step
        if order.stage is Stage.CULLED:
            # The module may be broken: a cull must not run it.
            measured = measure_slot(plot, step)
        else:
            measured = self._tried(lambda: measure_isolated(self._setup, plot, step))
        self._judge(order.stage, measured)
        if order.errors:
            measured = replace(measured, effect=self._tried(lambda: measure_effect(self._setup, plot.slot, self._beat)))
            if why := judge_effect(measured.effect, order.errors):
                raise OrderRefused(f"gate {Gate.G4_SYSTEM_IMPACT.name}: {why}")
        self._make_or_refuse(order)
        return m.SeedMovedReport(order=0, applied_before_step=0, measure=measured)

    def _germinate(self, plot: Plot, order: m.MoveSeed) -> m.SeedMovedReport:
        """Build the seed aside, judge it, and plant an equal one."""
        if not plot.input_dtype:
            waiting = "wait for the first step"
            if made := self._position().step:
                waiting = f"in {made} steps the model never called the module at this place; choose another"
            raise OrderRefused(f"slot {plot.name} has seen no input yet, so no seed fits it; {waiting}")
        order = _filled(order, plot)
        measured = self._tried(lambda: self._judged(plot, order))
        source = self._tried(lambda: self._garden.source_of(order.blueprint))
        self._make_or_refuse(order)
        return m.SeedMovedReport(
            order=0,
            applied_before_step=0,
            example=order.example,
            dtype=order.dtype,
            parameters_added=measured.parameters,
            measure=measured,
            source=source,
        )

    def _judged(self, plot: Plot, order: m.MoveSeed) -> SeedMeasure:
        """Build a seed like the one that is ordered, and judge it."""
        module = self._garden.build(json.loads(_germination(order).arguments))
        why = sanity(module, plot.slot.example(order.example, order.dtype), self._setup.model)
        if why:  # safety: insane-seed-refused
            raise OrderRefused(f"gate {Gate.G0_SANITY.name}: {why}")
        measured = measure_new(self._setup, plot, module)
        self._judge(order.stage, measured)
        return measured

    def _judge(self, stage: Stage, measured: SeedMeasure) -> None:
        gate = GATES.get(stage)
        why = judge(gate, measured, self._setup.settings.seeds.gates) if gate is not None else ""
        if gate is not None and why:  # safety: gate-stops-move
            raise OrderRefused(f"gate {gate.name}: {why}")

    def _make_or_refuse(self, order: m.MoveSeed) -> None:
        self._tried(lambda: self._make(order))
        if changes_shape(order.stage):
            self._reshaped()

    def _tried(self, call: Callable[[], Any]) -> Any:
        """Call a function that may run the code of a blueprint or of its module. Raises OrderRefused if it fails."""
        try:
            return call()
        except OrderRefused:
            raise
        except SetupRefused as refused:
            raise OrderRefused(str(refused)) from refused
        except Exception as error:
            _log.exception("a seed's blueprint raised")
            raise OrderRefused(f"the blueprint, or its module, raised {type(error).__name__}: {error}") from error

    def _make(self, order: m.MoveSeed) -> None:
        """Make a move: a new one that was judged, or one of a script."""
        step, plot = self._position().step, self._garden.plot(order.slot)
        if order.stage is Stage.GERMINATED:
            self._setup.ledger.order(*_germination(order), before_step=step + 1)
        else:
            if order.stage is Stage.CULLED:
                self._setup.ledger.order(*removed(order.slot, order.number), before_step=step + 1)
            plot.enter(order.stage, step, order.blend_steps, order.learning)
        if order.stage in (Stage.GERMINATED, Stage.CULLED):
            self._setup.watch.begin_anew()
        reached("seed_moved")
        _log.info("seed %s: %s after step %d", plot.name, order.stage.name, step)


def measured(setup: Setup, step: int) -> tuple[SeedMeasure, ...]:
    """Return the measurements of every seed with a module after step `step`."""
    return tuple(_measured(setup, plot, step) for plot in setup.garden.growing)


def _measured(setup: Setup, plot: Plot, step: int) -> SeedMeasure:
    try:
        return measure(setup, plot, step)
    except Exception:  # noqa: BLE001 - any code of the user's; the run goes on
        _log.exception("seed %s cannot be measured: its module raised", plot.name)
        return measure_standing(setup, plot, step)


def _filled(order: m.MoveSeed, plot: Plot) -> m.MoveSeed:
    """Return the order with the input shape of the slot. An order of a script has it already."""
    return replace(order, example=plot.input_shape, dtype=plot.input_dtype)


def _germination(order: m.MoveSeed) -> ShapeChange:
    """Return the ledger's entry of a germination, from which the same seed can be built."""
    return germinated(
        order.slot,
        order.number,
        blueprint=order.blueprint,
        parameters=order.parameters,
        example=order.example,
        dtype=order.dtype,
        warmup_steps=order.warmup_steps,
    )
