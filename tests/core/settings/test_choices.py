"""Settings that take a word, a number or a section, and settings of seeds that contradict each other."""

from __future__ import annotations

import pytest

from tolariad.core.calc.seeds.notes import seed_notes
from tolariad.core.calc.settings.copies import SnapshotEvery
from tolariad.core.calc.settings.reading import ConfigError, read_settings
from tolariad.core.calc.settings.rules import read_resolved, resolved_json


@pytest.mark.parametrize(
    ("given", "every"),
    [
        (None, SnapshotEvery()),
        ({}, SnapshotEvery()),
        (500, SnapshotEvery(steps=500)),
        ({"steps": 500}, SnapshotEvery(steps=500)),
        ({"seconds": 1.5}, SnapshotEvery(seconds=1.5)),
        ({"steps": 500, "seconds": 60}, SnapshotEvery(steps=500, seconds=60.0)),
    ],
)
def test_snapshots_come_by_steps_and_by_seconds(given, every):
    """A number alone is steps, as it always was. The resolved form reads back."""
    settings = read_settings({"snapshots": {"every": given}})

    assert settings.snapshots.every == every
    assert read_resolved(resolved_json(settings)) == settings


@pytest.mark.parametrize(
    ("given", "path"),
    [(0, "steps"), ("x", "steps"), ({"seconds": 0}, "seconds"), ({"second": 1}, "second"), ([1], ""), (2.5, "steps")],
)
def test_another_cadence_of_snapshots_is_refused_by_its_key(given, path):
    """The key that is wrong, within the section or in its short form."""
    with pytest.raises(ConfigError) as caught:
        read_settings({"snapshots": {"every": given}})

    assert [one.path for one in caught.value.problems] == [f"snapshots.every.{path}".rstrip(".")]


@pytest.mark.parametrize("throttle", ["auto", None, 0.5, 100.0])
def test_a_throttle_is_auto_nothing_or_a_number(throttle):
    """And nothing else: the message says what there is."""
    assert read_settings({"checkpoint": {"throttle_mb_s": throttle}}).checkpoint.throttle_mb_s == throttle
    for wrong in (0, -1, "fast"):
        with pytest.raises(ConfigError, match="must be one of auto, null, a number above 0"):
            read_settings({"checkpoint": {"throttle_mb_s": wrong}})


@pytest.mark.parametrize(
    ("seeds", "notes"),
    [
        ({}, []),
        ({"stage_weights": {"PROBATIONARY": 1.0}}, ["`seeds.evaluate: train` lets it learn"]),
        ({"stage_weights": {"PROBATIONARY": 1.0}, "evaluate": "train"}, []),
        ({"stage_weights": {"FOSSILIZED": 0.5}}, ["`seeds.fossil: train` lets it learn"]),
        ({"stage_weights": {"PROBATIONARY": 0.0, "TRAINING": 2.0}}, []),
    ],
)
def test_a_weight_for_a_seed_that_does_not_learn_is_said(seeds, notes):
    """Fine-tuning needs both keys."""
    found = list(seed_notes(read_settings({"seeds": seeds})))

    assert len(found) == len(notes)
    assert all(said in note for said, note in zip(notes, found, strict=True))
