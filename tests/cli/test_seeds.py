"""`tolaria seeds list|germinate|advance|cull`, `tolaria why RUN seed`, and the line of `tolaria status`."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_orders import in_background
from tolariad.core import messages as m
from tolariad.core.calc.seeds.gates import SeedMeasure
from tolariad.core.calc.seeds.stages import Stage

SLOTS = (m.SlotFound("trunk", 3), m.SlotFound("neck", 5))
KNOWN = ("bottleneck", "conv", "low_rank")


@pytest.fixture
def grown(live_run):
    """A live run whose model has two slots, at step 12; its blueprints are known."""
    live_run.do(live_run.recorder.record, m.SeedSlotsRegistered(slots=SLOTS, blueprints=KNOWN))
    return live_run


def obey(served, refused=""):
    """The trainer at its boundary: the order acts before step 13, or not."""
    (waiting,) = served.recorder.state.boundary.waiting
    measure = SeedMeasure(slot=waiting.order.slot, stage=waiting.order.stage, gradient_norm=0.5, learning_rate=0.01)
    germinates = waiting.order.stage is Stage.GERMINATED and not refused
    served.recorder.report(
        m.SeedMovedReport(
            order=waiting.cause.seq,
            applied_before_step=13,
            refused=refused,
            measure=None if refused else measure,
            example=(1, 8) if germinates else (),
            dtype="float32" if germinates else "",
            parameters_added=40 if germinates else 0,
        )
    )


def order(tolaria, grown, *words, refused=""):
    """Give an order; the trainer answers it."""
    trainer = in_background(grown, lambda state: state.boundary.waiting, lambda: obey(grown, refused))
    said = tolaria("seeds", *words, "--dir", grown.path.parent)
    trainer.join()
    return said


def rows_of(tolaria, grown):
    return tolaria("seeds", "list", "--dir", grown.path.parent, "--json").json


def rows(tolaria, grown):
    return {row["slot"]: row for row in rows_of(tolaria, grown)["slots"]}


def test_the_list_has_a_row_a_slot(tolaria, grown):
    """Also with `tolaria seeds` alone; the same as JSON; nothing is there yet."""
    said = tolaria("seeds", "list", "--dir", grown.path.parent)
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[0] == ["slot", "stage", "alpha", "norm", "lr", "params", "epochs", "seed"]
    assert lines[1:] == [["trunk", "DORMANT", "0", *"-----"], ["neck", "DORMANT", "0", *"-----"]]
    for words in (("--dir", grown.path.parent, "seeds"), ("seeds", "--dir", grown.path.parent)):
        assert tolaria(*words).out == said.out
    assert tolaria("seeds", "--dir", grown.path.parent, "list").out == said.out
    assert tolaria("seeds", "--dir", grown.path.parent, "--json").json == rows_of(tolaria, grown)
    table = tolaria("seeds", "list", "--dir", grown.path.parent, "--json").json
    assert (table["step"], table["germinations"], table["blueprints"]) == (12, 0, list(KNOWN))
    assert [(row["slot"], row["layer_depth"], row["number"]) for row in table["slots"]] == [
        ("trunk", 3, None),
        ("neck", 5, None),
    ]


def test_a_germination_waits_until_it_acts_and_names_the_step(tolaria, grown):
    """Recorded, done, from which step on; the list then has blueprint, parameters, giver and reason."""
    said = order(tolaria, grown, "germinate", "trunk", "--blueprint", "low_rank", "--set", "rank=4", "--reason", "why")
    assert said.code == 0, said.err
    assert "seeds germinate: recorded as event" in said.out
    assert "done by OrderActed:MoveSeed" in said.out
    assert "from step 13 on" in said.out
    row = rows(tolaria, grown)["trunk"]
    assert (row["stage"], row["number"], row["blueprint"], row["parameters"]) == ("GERMINATED", 1, "low_rank", 40)
    assert (row["gradient_norm"], row["learning_rate"], row["moved_step"], row["moved_why"]) == (0.5, 0.01, 13, "why")
    assert row["born_step"] == 13
    assert grown.recorder.state.seeds.seed("trunk").parameters == {"rank": 4.0}
    shown = tolaria("seeds", "list", "--dir", grown.path.parent).out
    assert "low_rank (no. 1); GERMINATED from step 13" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 120


def test_a_seed_is_advanced_and_culled(tolaria, grown):
    """A pending move is in the list; a culled slot says when it is free again."""
    order(tolaria, grown, "germinate", "trunk", "--blueprint", "conv")
    assert tolaria("seeds", "advance", "trunk", "--no-wait", "--dir", grown.path.parent).code == 0
    assert rows(tolaria, grown)["trunk"]["waiting"] == "TRAINING"
    grown.do(obey, grown)
    assert rows(tolaria, grown)["trunk"]["stage"] == "TRAINING"
    said = order(tolaria, grown, "cull", "trunk", "--reason", "it is worse")
    assert said.code == 0, said.err
    row = rows(tolaria, grown)["trunk"]
    epochs = grown.recorder.state.progress.epoch_finished
    assert (row["stage"], row["waiting"], row["free_after"]) == ("CULLED", "EMBARGOED", epochs + 5)
    assert (row["alpha"], row["parameters"]) == (0.0, None)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("germinate", "trunc", "--blueprint", "conv"), 4, "did you mean trunk?"),
        (("germinate", "trunk", "--blueprint", "botleneck"), 4, "did you mean bottleneck?"),
        (("germinate", "trunk", "--blueprint", "./mine.py:Mine"), 4, "`seeds.blueprints` of the configuration"),
        (("advance", "trunk"), 4, "slot trunk is empty"),
        (("cull", "nowhere"), 4, "there are trunk, neck"),
        (("germinate", "trunk"), 2, "--blueprint"),
        (("germinate", "trunk", "--blueprint", "conv", "--set", "rank"), 2, "rank=4"),
        (("germinate", "trunk", "--blueprint", "conv", "--set", "rank=nan"), 2, "finite number"),
        (("grow", "trunk"), 2, "no command and no run 'grow'"),
    ],
)
def test_a_refused_order_says_why_and_changes_nothing(tolaria, grown, words, code, why):
    """Exit 4 if the run refuses it, 2 if the command line is wrong."""
    said = tolaria("seeds", *words, *(("--dir", grown.path.parent) if words[0] != "grow" else ()))
    assert (said.code, why in " ".join(said.err.split())) == (code, True), said.err
    assert grown.recorder.state.boundary.waiting == ()


def test_a_gate_that_fails_is_the_outcome_of_the_order(tolaria, grown):
    """Exit 1, with the gate's sentence."""
    why = "the seed has been in TRAINING for 3 updates; it needs 30"
    order(tolaria, grown, "germinate", "trunk", "--blueprint", "conv")
    said = order(tolaria, grown, "advance", "trunk", refused=why)
    assert said.code == 1
    assert why in " ".join(said.out.split())
    assert rows(tolaria, grown)["trunk"]["stage"] == "GERMINATED"


def test_why_tells_who_moved_a_seed_and_status_shows_it(tolaria, grown):
    """Of all slots, of one, and before anything happened; `events` has a sentence for each."""
    folder = grown.path.parent
    # The slot of a snapshot is a number: it is another word in the same field.
    snapshot = m.SnapshotBegun(id="s000001", slot=1, branch=0, epoch_finished=0)
    grown.do(grown.recorder.record, m.SnapshotRingOpened(slots=2, slot_bytes=9), snapshot)
    assert "moved no seed" in tolaria("why", folder, "seed").err
    assert "seeds" not in tolaria("status", "--dir", folder).out
    order(tolaria, grown, "germinate", "trunk", "--blueprint", "conv", "--reason", "it stalls")
    order(tolaria, grown, "germinate", "neck", "--blueprint", "conv")

    told = tolaria("why", folder, "seed", "trunk", "--json").json
    assert (told["event"]["type"], told["event"]["order"]["slot"]) == ("OrderActed", "trunk")
    assert [(one["type"], one["actor"]["reason"]) for one in told["causes"]] == [("OrderGiven", "it stalls")]
    assert tolaria("why", folder, "seed", "--json").json["event"]["order"]["slot"] == "neck"
    assert tolaria("why", folder, "seed:trunk", "--json").json["event"] == told["event"]
    nothing = tolaria("why", folder, "seed", "head")
    assert (nothing.code, "no seed in slot 'head' moved" in nothing.err) == (1, True)
    assert tolaria("why", folder, "lr", "trunk").code == 2

    status = tolaria("status", "--dir", folder)
    assert "seeds       trunk GERMINATED, neck GERMINATED" in status.out
    seeds = tolaria("status", "--dir", folder, "--json").json["seeds"]
    assert seeds[0] == {"slot": "trunk", "stage": "GERMINATED", "alpha": 0.0}
    events = tolaria("events", folder, "-t", "Seed", "-t", "MoveSeed").out
    assert "A seed germinated in slot trunk from step 13 on: conv, 40 parameters." in " ".join(events.split())


def test_the_journal_alone_answers_for_a_run_that_is_not_live(tolaria, grown):
    """The list is folded from the journal."""
    order(tolaria, grown, "germinate", "trunk", "--blueprint", "conv")
    live = rows(tolaria, grown)
    grown.close()
    assert json.dumps(rows(tolaria, grown)) == json.dumps(live)
