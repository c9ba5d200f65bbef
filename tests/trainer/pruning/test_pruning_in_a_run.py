"""Masks and compactions in a run: they act at their steps, and a run that was cut short ends as one that was not."""

from __future__ import annotations

import msgspec
import pytest
import torch
from msgspec.structs import replace

from tests.trainer.pruning.in_a_run import (
    AFTER,
    EPOCHS,
    FIRST,
    GRACE,
    LIFE,
    SECOND,
    WINDOW,
    compaction,
    fixed_masks,
    masks,
    release,
    scripted,
)
from tests.trainer.pruning.training import masked_values
from tests.trainer.tasks import pruned, pruned_module
from tests.trainer.tasks.pruned_module import Module
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.pruning.plan import joined
from tolariad.trainer.seeds import find_blueprint

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")


MODULE = pruned_module.__file__


@pytest.fixture
def trained(daemon_in, configure):
    """Train with the orders of a script; each cut ends a trainer after that step. Return daemon and last setup."""

    def train(name, *cuts, task="Pruned", life=LIFE, orders=(), epochs=EPOCHS, **more):
        kind = getattr(pruned, task).kind
        daemon = daemon_in(name, epochs, script_orders=scripted(life, kind), waiting=orders)
        for cut in cuts:
            daemon.exit_after_step = cut
            daemon.train_here(configure(task, **more))
            assert daemon.last_step >= cut
        setup = daemon.train_here(configure(task, **more))
        assert daemon.ended
        daemon.reruns()
        assert daemon.of(m.AuditDiffered, m.LrViolationDetected) == []
        return daemon, setup

    return train


def undisturbed(trained, *, life=LIFE, orders=(), task="Pruned"):
    """Return the last checkpoint of a run that nothing cut short. The same run is trained once in this process."""
    key = task, life, msgspec.json.encode(orders)
    if key not in _undisturbed:
        _undisturbed[key] = trained("calm", life=life, orders=orders, task=task)[0].files("end")
    return _undisturbed[key]


_undisturbed = {}


def test_masked_weights_are_zero_until_they_are_removed(trained):
    """In the model, the average and every moment, to the bit; the compacted model trains on, and is masked again."""
    _, setup = trained("run")
    held = setup.pruner.masked[-1].plan.masks

    assert [one.cycle for one in setup.pruner.masked] == [4]
    assert (setup.model.first.out_features, setup.model.last.out_features, setup.model.head.in_features) == (11, 9, 9)
    names = {id(one): name for name, one in setup.model.named_parameters()}
    state = setup.optimizer.state
    for tensors in (
        dict(setup.model.named_parameters()),
        setup.average.tensors,
        {names[id(one)]: entries["exp_avg"] for one, entries in state.items()},
        {names[id(one)]: entries["exp_avg_sq"] for one, entries in state.items()},
    ):
        found = masked_values(tensors, held)
        assert found
        assert all(not one.count_nonzero() for one in found)
    assert setup.model.last.weight.count_nonzero() > 20


@pytest.mark.sample(2)
@pytest.mark.parametrize("cuts", [(2,), (5,), (9, 12), (13,), (15, 21), (10, 19, 25), (22,), (27,)])
def test_a_run_that_was_cut_short_ends_as_one_that_was_not(trained, cuts):
    """Its checkpoints lie before and after masks, a release and a compaction; each trainer goes on from one."""
    assert trained("cut", *cuts)[0].files("end") == undisturbed(trained)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("Clips", {}),
        ("Parts", {}),
        ("Updates", {}),
        ("Cautious", {}),
        ("Seeded", {}),
        ("Pruned", {"accumulate": 2, "batch_size": 3, "epochs": 4}),
        ("Pruned", {"precision": "bf16"}),
        ("Pruned", {"precision": "fp16"}),
        ("Pruned", {"ema": {}}),
        ("Pruned", {"optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01}}),
        ("Groups", {"learning_rate": {"policy": "onecycle"}}),
        ("Groups", {"precision": "fp16", "accumulate": 2, "batch_size": 3, "epochs": 4}),
        ("Transposed", {"optimizer": {"name": "rmsprop", "momentum": 0.5, "centered": True}}),
        ("Transposed", {"precision": "bf16", "optimizer": {"name": "adagrad"}}),
        ("Tied", {"optimizer": {"name": "cautious_adamw", "live_mean": True}}),
        ("Tied", {"optimizer": {"name": "adam", "amsgrad": True}, "precision": "fp16"}),
    ],
)
def test_other_ways_to_train_resume_with_masks_too(trained, task, options):
    """A task that clips, several optimizers, several updates in a step, accumulation, half precision, no average."""
    calm = trained("calm", task=task, **options)[0]
    assert trained("cut", 9, 15, 21, task=task, **options)[0].files("end") == calm.files("end")


OF_MODULE, MORE_OF_MODULE = {"net.0": (2, 5, 11)}, {"net.0": (0, 7)}


def test_a_lightning_module_is_masked_compacted_and_resumed(daemon_in, configured):
    """Its own forward is what the compaction is tried on."""
    orders = (
        masks(1, OF_MODULE, kind=Module, cause=101),
        compaction(1, OF_MODULE, kind=Module, recorded=False, cause=102),
    )
    more = (9, lambda kind, cause: masks(2, MORE_OF_MODULE, kind=kind, gone=[[OF_MODULE]], cause=cause))
    third = replace(scripted((more,), Module)[0], number=3)
    new = daemon_in("new", 2, waiting=orders, script_orders=(third,))
    setup = new.train_here(configured(f"lightning:{MODULE}:Module", epochs=2))
    (compacted,) = new.of(m.ModelCompactedReport)
    assert compacted.difference <= 1e-5
    assert setup.model.net[0].out_features == 13
    assert setup.model.net[0].weight[0].count_nonzero() == 0

    life = ((1, lambda kind, cause: orders[0]), (1, lambda kind, cause: replace(orders[1], removal=compacted.removal)))
    cut = daemon_in("cut", 2, script_orders=scripted((*life, more), Module))
    for step in (6, 11):
        cut.exit_after_step = step
        cut.train_here(configured(f"lightning:{MODULE}:Module", epochs=2))
    cut.train_here(configured(f"lightning:{MODULE}:Module", epochs=2))
    assert cut.files("end") == new.files("end")


def test_new_orders_act_before_the_next_update_and_say_what_they_did(trained):
    """The answers hold all that a re-run needs: the same orders in a script give the same run."""
    new = (
        masks(1, FIRST, cause=101),
        masks(2, SECOND, cause=102),
        release(2, cause=103),
        masks(3, SECOND, cause=104),
        compaction(3, FIRST, SECOND, recorded=False, cause=105),
        masks(4, AFTER, gone=[[FIRST, SECOND]], cause=106),
    )
    daemon, setup = trained("new", life=(), orders=new)
    applied, released, (compacted,) = (
        daemon.of(kind) for kind in (m.MasksAppliedReport, m.MasksReleasedReport, m.ModelCompactedReport)
    )

    assert [(one.order, one.applied_before_step) for one in applied] == [(101, 1), (102, 1), (104, 1), (106, 1)]
    # 3 rows of 6 + 1 numbers, their norm's scale and shift; 2 rows of 16 + 1; columns of the layers that read them.
    assert applied[0].parameters == 3 * (7 + 2) + (2 * 17 + 3 * 10) + 2 * 3
    assert [one.parameters for one in released] == [applied[1].parameters]
    assert compacted.removal == compaction(3, FIRST, SECOND).removal
    assert compacted.parameters_before == sum(one.numel() for one in pruned.Body().parameters())
    assert compacted.parameters == sum(one.numel() for one in setup.model.parameters())
    assert compacted.bytes < compacted.bytes_before
    assert compacted.step_s > 0.0 < compacted.step_s_before
    assert compacted.difference <= 1e-5
    recorded = tuple((1, make) for _, make in LIFE)
    assert daemon.files("end") == trained("again", life=recorded)[0].files("end")


def wrong(order, **fields):
    """Return the order with other fields."""
    return replace(order, **fields)


GOOD = masks(1, FIRST, cause=101)
REFUSED = {
    "no plan": ([wrong(GOOD, plan="{}")], "the text is no plan of units"),
    "other units": ([wrong(GOOD, units={"first": (1,)})], "its plan is of other units"),
    "another hash": ([wrong(GOOD, sha256="0" * 64)], "the masks of its units have SHA-256"),
    "another shape": ([masks(1, AFTER, gone=[[FIRST]], cause=101)], "the model has changed its shape since"),
    "masked already": (
        [GOOD, masks(2, {"first": (4, 11)}, cause=102)],
        "unit 11 of first is masked already, by cycle 1",
    ),
    "a whole layer": (
        [masks(1, {"last": range(6)}, cause=101), masks(2, {"last": range(6, 12)}, cause=102)],
        "head.weight: its mask covers all of dimension 1",
    ),
    "unknown optimizer": ([GOOD], "first.weight cannot be masked: the state of Own is not known", "Foreign"),
    "not masked": ([release(1, cause=101)], "masked: none"),
    "not the newest": ([GOOD, masks(2, SECOND, cause=102), release(1, cause=103)], "has not the newest masks"),
    "nothing to remove": ([compaction(1, FIRST, recorded=False, cause=101)], "no unit is masked"),
    "others are masked": (
        [GOOD, compaction(1, SECOND, recorded=False, cause=102)],
        "other units are masked than those that it names",
    ),
    "needed by now": (
        [GOOD],
        "with them the accuracy falls by 0.1875 from 1.0000 now; at most 0.0750 are allowed",
        "Judged",
    ),
    "its check raises": ([GOOD], "their check on the newer weights raised RuntimeError: no such unit", "Fails"),
    "fixed": (
        [fixed_masks(), wrong(compaction(1, FIRST, recorded=False), cause=102)],
        "the units of first can be masked but not removed: it is so",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_order_that_does_not_fit_changes_nothing(trained, name):
    """It is refused with a sentence, and the run ends as one in which nobody gave it."""
    orders, why, *task = REFUSED[name]
    task = task[0] if task else "Pruned"
    daemon, _ = trained("run", life=(), orders=tuple(orders), task=task)
    (refused,) = [one for one in daemon.reports if getattr(one, "refused", "")]

    assert why in refused.refused
    assert refused.order == orders[-1].cause
    assert daemon.files("end") == undisturbed(trained, life=(), orders=tuple(orders[:-1]), task=task)


def test_masks_are_checked_on_the_newer_weights_before_they_act(trained):
    """Masks within the validation's limit act. A re-run repeats masks without a check."""
    prune = {"validation": {"accuracy_retention": 0.8}}
    daemon, setup = trained("run", 7, life=(), orders=(GOOD,), task="Judged", prune=prune)
    (applied,) = daemon.of(m.MasksAppliedReport)

    assert (applied.accuracy_now, applied.accuracy_masked) == (1.0, 13 / 16)
    assert [one.cycle for one in setup.pruner.masked] == [1]
    # Four batches after each epoch. The check leaves no trace.
    assert float(setup.model.seen) == 4 * EPOCHS


class Germinated(pruned.Slotted):
    """With a seed, through which the graph is traced."""

    def __init__(self):
        super().__init__()
        self.slot.plant(find_blueprint("bottleneck").build(torch.zeros(5, 12)))
        self.slot.enter(Stage.FOSSILIZED)


def test_a_seed_that_is_not_fossilised_is_never_masked_or_cut_around(trained):
    """Masks of its parameters are refused, and so is a compaction while it grows."""
    move = m.MoveSeed(
        slot="s",
        stage=Stage.GERMINATED,
        number=1,
        blueprint="bottleneck",
        example=(5, 12),
        dtype="float32",
        cause=100,
    )
    one = {"first": (2,)}
    orders = (
        masks(1, {"slot.seed.branch.0": (0,)}, kind=Germinated, cause=201),
        masks(2, one, kind=Germinated, cause=202),
        compaction(2, one, kind=Germinated, recorded=False, cause=203),
    )
    daemon, setup = trained("run", life=((1, lambda kind, cause: move),), orders=orders, task="Seeded")
    answers = {answer.order: answer.refused for answer in daemon.reports if isinstance(answer, m.BoundaryOrderReport)}

    assert "belongs to the seed in slot s, which is not fossilised" in answers[201]
    assert answers[202] == ""
    assert "slot s holds a seed that is not a part of the model yet" in answers[203]
    assert [one.cycle for one in setup.pruner.masked] == [2]


def moved(before, stage):
    """Return a move of the seed, for a script."""
    move = m.MoveSeed(slot="s", stage=stage, number=1, blend_steps=2 if stage is Stage.BLENDING else 0)
    if stage is Stage.GERMINATED:
        move = replace(move, blueprint="bottleneck", example=(5, 12), dtype="float32")
    return before, lambda kind, cause: replace(move, cause=cause)


def test_a_fossilised_seed_is_masked_and_cut_with_its_host(trained):
    """Its own optimizer follows, and a restart germinates it wide and cuts it again."""
    stages = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.SHADOWING, Stage.PROBATIONARY, Stage.FOSSILIZED)
    chosen = {"last": (0, 7), "slot.seed.branch.0": (1,)}
    life = tuple(moved(before, stage) for before, stage in zip((1, 2, 3, 6, 8, 10), stages, strict=True))
    life += ((12, lambda kind, cause: masks(1, chosen, kind=Germinated, cause=cause)),)
    life += ((15, lambda kind, cause: compaction(1, chosen, kind=Germinated, cause=cause)),)
    calm, setup = trained("calm", life=life, task="Seeded")

    assert setup.model.slot.seed.branch[0].weight.shape == (2, 10)
    assert setup.model.head.in_features == 10
    assert trained("cut", 13, 18, 24, life=life, task="Seeded")[0].files("end") == calm.files("end")


def test_after_a_compaction_a_slot_waits_for_its_new_input(trained):
    """A seed of the old width would not fit: the next one is built for the shape that the slot then gets."""
    chosen = {"last": (0, 7)}
    life = ((12, lambda kind, cause: masks(1, chosen, kind=kind, cause=cause)),)
    life += ((13, lambda kind, cause: compaction(1, chosen, kind=kind, cause=cause)),)
    _, setup = trained("run", life=life, task="Seeded")
    (plot,) = setup.garden.plots.values()

    assert plot.input_shape == (5, 10)


def test_growth_after_masks_keeps_them_on_their_units(trained):
    """The new units of the layer are live; the masked units stay 0, in the columns that they got too."""
    life = LIFE[:2]
    _, setup = trained("run", life=life, task="Grows")
    model, held = setup.model, setup.pruner.masked

    assert model.head.weight.shape == (3, 15)
    found = masked_values(dict(model.named_parameters()), joined([one.plan for one in held], model).masks)
    assert all(not one.count_nonzero() for one in found)
    assert model.last.weight[12:].count_nonzero() > 20
    assert setup.pruner.displaced["weight:last.weight:0"].shape == (1, 16)
    assert setup.pruner.displaced["weight:head.weight:1"].count_nonzero()


def test_growth_that_moves_masked_units_is_refused(trained):
    """The masks would lie on other units. The model stays as it was."""
    with pytest.raises(SetupRefused, match=r"last\.weight is not 0 any more where it is masked; units are masked"):
        trained("run", life=LIFE[:2], task="Turns")


def test_a_window_that_ends_in_a_rerun_is_reported_before_any_checkpoint(trained, daemon_in, configure):
    """The trainer died between the last step and its report. A checkpoint after it holds a window that is over."""
    life = ((4, lambda kind, cause: masks(1, FIRST, kind=kind, cause=cause)),)
    daemon = daemon_in("run", EPOCHS, script_orders=scripted(life), exit_after_step=3 + GRACE + WINDOW)
    daemon.train_here(configure())
    daemon.reports = [one for one in daemon.reports if not isinstance(one, m.PruneWatchReport)]
    daemon.train_here(configure())
    (rerun,) = [at for at, one in enumerate(daemon.reports) if isinstance(one, m.RerunReport)]
    (told,) = [at for at, one in enumerate(daemon.reports) if isinstance(one, m.PruneWatchReport)]

    # The trainer may have made another step before it was told to die.
    assert daemon.reports[told].step == 3 + GRACE + WINDOW <= daemon.reports[rerun].last
    assert told == rerun + 1


# -- the safety window -------------------------------------------------------------------------------------------------


def test_the_safety_window_is_reported_once(trained):
    """When its updates are made, or as soon as a limit is exceeded; never in a re-run."""
    life = ((4, lambda kind, cause: masks(1, FIRST, kind=kind, cause=cause)),)
    # Four steps are too few for a speed to be compared with that of four others.
    daemon, setup = trained("run", 6, 15, life=life, prune={"safety": {"speed": 0}})
    (found,) = daemon.of(m.PruneWatchReport)

    assert (found.cycle, found.step) == (1, 3 + GRACE + WINDOW)
    assert found.trips == ()
    assert found.norm_ratio > 0.0
    assert setup.pruner.window.last == found.step


def test_a_wait_of_the_training_is_no_speed_that_the_masks_cost(trained):
    """As beside another program. By the clock the steps have a fortieth of their speed, or less."""
    life = ((15, lambda kind, cause: masks(1, FIRST, kind=kind, cause=cause)),)
    prune = {"enabled": True, "safety": {"window_steps": WINDOW}}
    daemon, _ = trained("run", life=life, task="Waits", epochs=2, prune=prune)
    (found,) = daemon.of(m.PruneWatchReport)

    assert found.speed_ratio > 0.2
