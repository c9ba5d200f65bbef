"""The rules of announced stages: orders, what the training's code says, and changes that announce themselves."""

from __future__ import annotations

from typing import Protocol

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.settings.changes import is_announced
from tolariad.core.calc.text.phrases import listed
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(st.HasRun, st.HasProgress, st.HasBoundary, Protocol):
    """The slices that the rules of stages read."""


def order(state: Reads, command: m.AnnounceStage) -> m.OrderGiven | m.Refusal:
    """Accept an announcement, or refuse it."""
    phase = state.run.phase
    if not command.text.strip():
        return m.Refusal("Refused", "the text is empty; say what changed, so that `tolaria why RUN stage` can tell it")
    if phase in st.TERMINAL or phase is st.Phase.STOPPING:
        return m.Refusal("WrongPhase", f"the run is {phase.value}; this needs a run that trains or will")
    if len(state.boundary.waiting) >= st.WAITING_MAX:
        return m.Refusal("Refused", f"{st.WAITING_MAX} orders wait for their boundary already")
    return m.OrderGiven(order=m.BeginStage(why=command.text))


def acts(state: Reads, order: m.BeginStage, _: m.BoundaryOrderReport) -> m.Acts:
    """Return the order with the epoch in which the stage begins."""
    return m.Acts(order, m.StageBegan(epoch=state.progress.place[0]))


def began(state: Reads, report: m.StageReport, _: At[Reads]) -> Decision:
    """Record a stage that the training's code or the configuration announced. Nobody ordered it, so it has no key."""
    acted = m.OrderActed(
        order=m.BeginStage(why=report.why),
        applied_before_step=report.applied_before_step,
        number=state.boundary.acted + 1,
        outcome=m.StageBegan(epoch=report.epoch),
        by=report.by,
    )
    return Decision((acted,))


def of_end(state: Reads, _: m.EndOrdered, __: At[Reads]) -> Decision | None:
    """Another end announces itself."""
    return _announced(state, "another end of the training was ordered")


def of_configuration(state: Reads, event: m.ConfigChanged, _: At[Reads]) -> Decision | None:
    """A change of keys that change the training announces itself, to the next trainer."""
    keys = [key for key in event.keys if is_announced(key)]
    return _announced(state, f"the configuration changed: {listed(keys)}") if keys else None


def _announced(state: Reads, why: str) -> Decision | None:
    # A run without a step has no level yet, so there is nothing to begin anew.
    if not state.progress.step or len(state.boundary.waiting) >= st.WAITING_MAX:
        return None
    return Decision((m.OrderGiven(order=m.BeginStage(why=why), why=why),))
