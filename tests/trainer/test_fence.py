"""No checkpoint is ahead of the journal: a capture waits until its step is durable."""

from __future__ import annotations

import time

from tolariad.trainer.checkpoints.save import Saver

# Captures without a fence, many times over.
HELD_S = 0.3


def test_a_checkpoint_is_captured_only_when_its_step_is_durable(daemon_in, configured, monkeypatch):
    """Step reports may be in flight for a minute here: the gate allows that, the fence does not."""
    daemon = daemon_in("run", 1, checkpoint_every_epoch=False, checkpoint_after_step=8, hold_durable_after=5)
    capture, captured, ordered = Saver.capture, [], []

    def watched(saver, position):
        # The steps that are durable then, and those held back.
        captured.append((position.step, daemon.hold_durable_after))
        return capture(saver, position)

    def lag_then_catch_up(it):
        it.end.page.set_lag_ns(60_000_000_000)
        if it.last_step >= 8:
            ordered.append(time.monotonic())
        if ordered and time.monotonic() - ordered[0] > HELD_S:
            it.hold_durable_after = None

    monkeypatch.setattr(Saver, "capture", watched)
    daemon.train_here(configured("digits", epochs=1), lag_then_catch_up)

    start, ordered_one, end = captured
    assert (start[0], end[0]) == (0, daemon.last_step)
    assert ordered_one[0] >= 8
    assert ordered_one[1] is None, "it was captured while its step was not durable"
