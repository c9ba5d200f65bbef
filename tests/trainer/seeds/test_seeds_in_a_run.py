"""Seeds in a run: their moves act at their steps. A run that was interrupted ends as one that was not, to the bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Learning, Stage
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.orders.numbered import OrderRefused
from tolariad.trainer.seeds import SeedSlot
from tolariad.trainer.seeds.handler import SeedHandler
from tolariad.trainer.seeds.plots import Plot

TASK = f"{Path(__file__).parents[1] / 'tasks' / 'seeded.py'}"
STUB = Path(__file__).parents[1] / "lightning" / "stub.py"
HOSTS = Path(__file__).with_name("hosts.py")
STEPS = 10  # of an epoch, at five samples a batch
EPOCHS = 3
_EXAMPLE = (5, 8)
# Slot, stage, and the update that is the first one with it.
MOVES = (
    ("inner", Stage.GERMINATED, 3),
    ("inner", Stage.TRAINING, 4),
    ("outer", Stage.GERMINATED, 6),
    ("outer", Stage.TRAINING, 6),
    ("inner", Stage.BLENDING, 9),
    ("outer", Stage.CULLED, 13),
    ("inner", Stage.SHADOWING, 16),
    ("inner", Stage.PROBATIONARY, 19),
    ("outer", Stage.DORMANT, 21),
    ("inner", Stage.FOSSILIZED, 22),
    ("outer", Stage.GERMINATED, 24),
    ("outer", Stage.TRAINING, 25),
)


def orders(moves=MOVES, blueprint="bottleneck", example=_EXAMPLE, learning=None):
    """The orders of a script: each acts before its update. `example`: the shape of the slots' input.

    `learning`: in which stages a seed is frozen or trains.
    """
    found, germinations, germinated = [], 0, {}
    for number, (slot, stage, before) in enumerate(moves, 1):
        is_new = stage is Stage.GERMINATED
        if is_new:
            germinations += 1
            germinated[slot] = germinations
        order = m.MoveSeed(
            slot=slot,
            stage=stage,
            number=germinated[slot],
            blueprint=blueprint if is_new else "",
            blend_steps=5 if stage is Stage.BLENDING else 0,
            example=example if is_new else (),
            dtype="float32" if is_new else "",
            learning=(learning or {}).get(stage, Learning.TRAIN),
            cause=100 + number,
        )
        found.append(m.ScriptOrder(before, 0, number, order))
    return tuple(found)


@pytest.fixture
def seeded(configured):
    return lambda name="Seeded", **more: configured(
        f"{TASK}:{name}", epochs=EPOCHS, batch_size=5, **{"ema": {"decay": 0.9}, **more}
    )


@pytest.fixture
def trained(daemon_in, seeded):
    """Train with the moves of a script; each cut ends a trainer after that step. Return the daemon."""

    def train(name, *cuts, task="Seeded", moves=MOVES, **more):
        daemon = daemon_in(name, EPOCHS, script_orders=orders(moves))
        for cut in cuts:
            daemon.exit_after_step = cut
            daemon.train_here(seeded(task, **more))
            assert daemon.last_step >= cut
        daemon.train_here(seeded(task, **more))
        assert daemon.ended
        daemon.reruns()
        return daemon

    return train


def test_every_stage_of_a_seed_is_reached(daemon_in, seeded):
    """After the last step one seed is part of the model, and a second one has taken the culled one's place."""
    daemon = daemon_in("run", EPOCHS, script_orders=orders())
    setup = daemon.train_here(seeded())
    plots = setup.garden.plots
    assert {name: plot.stage for name, plot in plots.items()} == {
        "inner": Stage.FOSSILIZED,
        "outer": Stage.TRAINING,
    }
    assert plots["inner"].alpha == 1.0
    assert [owner.name for owner in setup.owners] == ["host", "seed.inner", "seed.outer"]
    assert "seeds-00000.safetensors" in daemon.files("end")


@pytest.mark.sample(2)
@pytest.mark.parametrize("cuts", [(2,), (5,), (10, 12), (13, 20), (8, 18, 23), (26,)])
def test_a_run_that_was_cut_short_ends_as_one_that_was_not(trained, cuts):
    """Its checkpoints hold seeds that train, blend and are fossilised; each trainer builds them again."""
    if not _undisturbed:
        _undisturbed.update(trained("calm").files("end"))
    assert trained("cut", *cuts).files("end") == _undisturbed


# The last checkpoint of the run that nothing cut short: it is trained once in this process.
_undisturbed: dict[str, bytes] = {}


HOST = ("model-00000.safetensors", "optimizer-00000.safetensors", "ema-00000.safetensors")


def test_seeds_that_train_leave_every_bit_of_the_host(trained):
    """Losses, norms, rates and the host's pieces are those of a model without slots, while the seeds learn."""
    moves = [one for one in MOVES if one[1] in (Stage.GERMINATED, Stage.TRAINING) and one[2] < 10]
    grown, bare = trained("grown", moves=moves), trained("bare", task="Unseeded", moves=())
    with_seeds, without = grown.files("end"), bare.files("end")
    assert {name: with_seeds[name] for name in HOST} == {name: without[name] for name in HOST}
    assert with_seeds.keys() - without.keys() == {"seeds-00000.safetensors"}
    assert [grown.steps[step] for step in grown.steps] == [
        report_with(grown.steps[step].rates, bare.steps[step]) for step in bare.steps
    ]


def report_with(rates, report):
    """A step's report with another digest of rates: that of seeds is over more groups."""
    return replace(report, rates=rates)


def test_a_checkpoint_of_a_model_with_empty_slots_has_no_more_files(trained):
    """The tensors are those of the model without slots."""
    empty, bare = trained("empty", moves=()), trained("bare", task="Unseeded", moves=())
    files, others = empty.files("end"), bare.files("end")
    assert files.keys() == others.keys()
    assert all(files[name] == others[name] for name in HOST)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("Clips", {}),
        ("Parts", {}),
        ("Seeded", {"accumulate": 2}),
        ("Seeded", {"precision": "bf16"}),
        ("Seeded", {"precision": "fp16"}),
    ],
)
def test_other_ways_to_train_resume_with_seeds_too(trained, task, options):
    """A task that clips, several optimizers, accumulation, half precision."""
    calm = trained("calm", task=task, **options)
    assert trained("cut", 7, 12, task=task, **options).files("end") == calm.files("end")


LONG = [pytest.param(cuts, marks=pytest.mark.torture) for cuts in ((5,), (17, 22))]


@pytest.mark.parametrize("cuts", [(9, 14), *LONG])
def test_a_lightning_module_has_slots_too(daemon_in, configured, cuts):
    """Attached by the configuration, beside its hooks, its schedule and its cycled momentum; it resumes to the bit."""
    moves = [one for one in MOVES if one[0] == "inner"]

    def trained(name, *cuts):
        daemon = daemon_in(name, 6, script_orders=orders(moves, example=(4, 16)))
        config = configured(f"lightning:{STUB}:Noisy", epochs=6, seeds={"slots": {"inner": "line.0"}})
        for cut in cuts:
            daemon.exit_after_step = cut
            daemon.train_here(config)
        setup = daemon.train_here(config)
        assert setup.garden.plots["inner"].stage is Stage.FOSSILIZED
        daemon.reruns()
        return daemon.files("end")

    assert trained("cut", *cuts) == trained("calm")


def test_a_task_that_clips_does_not_see_the_gradients_of_seeds(trained):
    """So it clips the host as if there were no seeds."""
    moves = [one for one in MOVES if one[1] in (Stage.GERMINATED, Stage.TRAINING) and one[2] < 10]
    grown, empty = trained("grown", task="Clips", moves=moves), trained("empty", task="Clips", moves=())
    assert grown.files("end")[HOST[0]] == empty.files("end")[HOST[0]]


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("Updates", {}, "training_step. So the loss that a seed is to learn from is not known"),
        ("Seeded", {"compile": True}, "slots for seeds, and compile is true"),
        ("Seeded", {"seeds": {"slots": {"more": "lost"}}}, "did you mean slot, last"),
        (
            "Seeded",
            {"seeds": {"optimizer": {"name": "sgd", "groups": [{"match": "*"}]}}},
            "seeds.optimizer.groups: a seed has one parameter group",
        ),
    ],
)
def test_what_cannot_have_seeds_is_refused_before_the_run(seeded, task, options, says):
    """By name, with what to do."""
    with pytest.raises(SetupRefused, match=says):
        build(seeded(task, **options))


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (
            {"stage": Stage.GERMINATED, "number": 2, "slot": "outer", "blueprint": f"{HOSTS}:Shifted"},
            "gate G0_SANITY: the new seed is not the identity",
        ),
        ({"stage": Stage.BLENDING, "number": 1, "slot": "inner", "blend_steps": 2}, "it needs 30"),
        (
            {"stage": Stage.CULLED, "number": 7, "slot": "inner"},
            "the order is for seed 7 of the run; the slot holds seed 1",
        ),
    ],
    ids=["a seed that is not the identity", "too early", "for another seed"],
)
def test_a_move_that_its_gate_refuses_changes_nothing(daemon_in, seeded, refused, why):
    """The run ends as one in which nobody ordered it."""
    moves = [one for one in MOVES if one[0] == "inner"][:2]
    calm, judged = (daemon_in(name, EPOCHS, script_orders=orders(moves)) for name in ("calm", "judged"))
    calm.train_here(seeded())
    judged.train_here(seeded(), also=given_after(6, m.MoveSeed(cause=201, **refused)))
    (answer,) = [one for one in judged.reports if getattr(one, "order", 0) == 201]

    assert why in answer.refused
    assert judged.files("end") == calm.files("end")


def given_after(step, order):
    """Return a function that gives a daemon's order once, after this step."""
    waiting = [order]

    def give(daemon):
        if waiting and daemon.last_step >= step:
            daemon.end.send(waiting.pop())

    return give


def test_a_slot_of_the_configuration_is_attached(seeded):
    """Beside those of the task, in the order of the model's modules."""
    setup = build(seeded(seeds={"slots": {"more": "head"}}))
    assert list(setup.garden.plots) == ["inner", "outer", "more"]


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (0, "has seen no input yet, so no seed fits it; wait for the first step"),
        (7, "in 7 steps the model never called the module at this place; choose another"),
    ],
)
def test_a_slot_without_an_input_says_what_to_do(steps, says):
    """Before the first step it is too early; after that the slot is at a place that the model does not call."""
    handler = SimpleNamespace(_position=lambda: Position(step=steps, epoch=1, batch=steps))
    plot = Plot(SeedSlot("lost"), "lost.seed")
    order = m.MoveSeed(slot="lost", stage=Stage.GERMINATED, number=1, cause=1)

    with pytest.raises(OrderRefused, match=says):
        SeedHandler._germinate(handler, plot, order)
