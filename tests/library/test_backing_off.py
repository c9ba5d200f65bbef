"""A rollback by the detector reduces rates in a real run; trainer and recorder agree on every later rate."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.library.test_detection import EPOCHS, Glitching, plain, train_long
from tests.recorded import of
from tolariad.core import messages as m
from tolariad.trainer import build


def test_the_steps_after_the_rollback_are_made_at_the_share_that_is_configured(tmp_path, monkeypatch):
    """Each rate is half of what the same step had before; nothing else changed a rate."""
    monkeypatch.setattr(build, "reads_late", lambda settings, device: True)
    dataset = Glitching(96 + 25, 12, float("nan"))
    events = train_long(tmp_path / "run", model=plain(), epochs=EPOCHS, dataset=dataset, rollback={"rate_factor": 0.5})
    back, changed = of(events, m.RolledBack)[0], of(events, order_events.acted(m.SetRate))
    rates = {(e.branch, e.step): e.lr for e in of(events, m.StepCompleted)}
    first = changed[0].applied_before_step

    assert of(events, m.RollbackBegun)[0].rate_factor == of(events, m.RatesBackedOff)[0].factor == 0.5
    assert first == back.step + 1
    assert rates[back.branch, first] == pytest.approx(rates[back.parent, first] / 2)
    assert of(events, m.LrViolationDetected) == []
