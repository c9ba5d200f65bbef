"""The sentences for steps, epochs and validations."""

from __future__ import annotations

from typing import Final

from tolariad.core.steps import words as st
from tolariad.core.text.giver_sentences import Sentences
from tolariad.core.text.phrases import counted, listed


def _skipped(e: st.StepSkipped) -> str:
    batch = f"batch {e.batch} of epoch {e.epoch}"
    norm = "" if e.grad_norm < 0 else f", its gradient norm {e.grad_norm:.6g}"
    figures = f"its loss is {e.loss:.6g}{norm}"
    match e.reason:
        case st.SkipReason.QUARANTINED:
            return f"Skipped {batch}: it is in quarantine."
        case st.SkipReason.OVERFLOW:
            return f"Made no update from {batch}: fp16 gradients overflowed. The loss scale is lowered."
        case st.SkipReason.SPIKE:
            return f"Skipped {batch}: {figures}, far above the usual values."
        case st.SkipReason.NON_FINITE:
            return f"Skipped {batch}: {figures}."


def _stepped(e: st.StepCompleted) -> str:
    norm = "" if e.grad_norm < 0 else f", gradient norm {e.grad_norm:.6g}"
    return f"Step {e.step} of epoch {e.epoch}: loss {e.loss:.6g}{norm}, learning rate {e.lr:.6g}."


def _validated(e: st.ValidationFinished) -> str:
    named = (f"{name} {value:.6g}" for name, value in e.metrics.items())
    return f"Validation after epoch {e.epoch}: {listed(named) or 'no metrics'} ({counted(e.samples, 'sample')})."


SENTENCES: Final[Sentences] = {
    st.StepCompleted: _stepped,
    st.MetricsNamed: lambda e: f"The steps have metrics: {listed(e.names)}.",
    st.StepSkipped: _skipped,
    st.EpochStarted: "Epoch {e.epoch} began.",
    st.EpochFinished: "Epoch {e.epoch} ended at step {e.step}: mean loss {e.train_loss:.6g}, {e.seconds:.3g} s.",
    st.ValidationBegun: "The validation after epoch {e.epoch} began.",
    st.ValidationFinished: _validated,
    st.ValidationAborted: "The validation after epoch {e.epoch} did not end{why}",
    st.ValidationImproved: "Epoch {e.epoch} is the best so far: {e.metric} {e.value:.6g}.",
    st.LimitReached: "The training ended at step {e.step} of epoch {e.epoch}, by the limit on {e.limit.value}.",
}
