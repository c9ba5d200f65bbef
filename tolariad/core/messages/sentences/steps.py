"""The sentences for steps, epochs and validations."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import counted, listed
from tolariad.core.messages.sentences.givers import Sentences


def _skipped(e: m.StepSkipped) -> str:
    batch = f"batch {e.batch} of epoch {e.epoch}"
    norm = "" if e.grad_norm < 0 else f", its gradient norm {e.grad_norm:.6g}"
    figures = f"its loss is {e.loss:.6g}{norm}"
    match e.reason:
        case m.SkipReason.QUARANTINED:
            return f"Skipped {batch}: it is in quarantine."
        case m.SkipReason.OVERFLOW:
            return f"Made no update from {batch}: fp16 gradients overflowed. The loss scale is lowered."
        case m.SkipReason.SPIKE:
            return f"Skipped {batch}: {figures}, far above the usual values."
        case m.SkipReason.NON_FINITE:
            return f"Skipped {batch}: {figures}."


def _stepped(e: m.StepCompleted) -> str:
    norm = "" if e.grad_norm < 0 else f", gradient norm {e.grad_norm:.6g}"
    return f"Step {e.step} of epoch {e.epoch}: loss {e.loss:.6g}{norm}, learning rate {e.lr:.6g}."


def _place(e: m.ValidationBegun | m.ValidationFinished) -> str:
    return f"after step {e.step}, in epoch {e.epoch}" if e.batch else f"after epoch {e.epoch}"


def _validated(e: m.ValidationFinished) -> str:
    named = (f"{name} {value:.6g}" for name, value in e.metrics.items())
    return f"Validation {_place(e)}: {listed(named) or 'no metrics'} ({counted(e.samples, 'sample')})."


def _improved(e: m.ValidationImproved) -> str:
    return f"{f'Step {e.step}' if e.batch else f'Epoch {e.epoch}'} is the best so far: {e.metric} {e.value:.6g}."


def _digested(e: m.ParametersDigested) -> str:
    where = f"in checkpoint {e.checkpoint}" if e.checkpoint else f"after step {e.step}"
    return f"The state {where} has digests of {counted(len(e.tensors), 'tensor')}."


SENTENCES: Final[Sentences] = {
    m.StepCompleted: _stepped,
    m.ParametersDigested: _digested,
    m.MetricsNamed: lambda e: f"The steps have metrics: {listed(e.names)}.",
    m.StepSkipped: _skipped,
    m.EpochStarted: "Epoch {e.epoch} began.",
    m.EpochFinished: "Epoch {e.epoch} ended at step {e.step}: mean loss {e.train_loss:.6g}, {e.seconds:.3g} s.",
    m.ValidationBegun: lambda e: f"The validation {_place(e)} began.",
    m.ValidationFinished: _validated,
    m.ValidationAborted: "The validation of epoch {e.epoch} did not end{why}",
    m.ValidationImproved: _improved,
    m.LimitReached: "The training ended at step {e.step} of epoch {e.epoch}, by the limit on {e.limit.value}.",
}
