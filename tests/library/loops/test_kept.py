"""What a loop of one's own keeps: dicts, lists in them, and generators go on where they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Subset

from tests.library.loops.programs import Loop, configured, loader
from tests.library.small import EPOCHS, STEPS_PER_EPOCH, bits, data, network
from tolariad import Tolaria
from tolariad.trainer.errors import SetupRefused

STEPS = EPOCHS * STEPS_PER_EPOCH
MAKERS = {
    "python": lambda: random.Random(1),
    "numpy": lambda: np.random.default_rng(1),
    "legacy": lambda: np.random.RandomState(1),
    "torch": lambda: torch.Generator().manual_seed(1),
}


def drawn_from(generator):
    """Draw a number from a generator of any kind."""
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator).item()
    return generator.random()


def test_a_dict_that_is_kept_has_its_items_again_after_a_stop(tmp_path):
    """The same object, with the items of the checkpoint: values that changed, keys that came and went."""

    def start(steps):
        mine = {"count": 0, "first": True}
        loop = Loop(tmp_path / "run", lambda loop: loop.run.stop() if loop.step == steps else None)
        loop.run.keep("mine", mine)

        def count(loop, after=loop.after):
            mine["count"] += 1
            mine.pop("first", None)
            mine[("epoch", loop.seen[-1])] = torch.tensor(mine["count"])
            after(loop)

        loop.after = count
        loop.go()
        return mine

    assert start(10) == {"count": 10, ("epoch", 1): torch.tensor(8), ("epoch", 2): torch.tensor(10)}
    assert start(None) == {"count": STEPS} | {
        ("epoch", number + 1): torch.tensor(8 * number + 8) for number in range(3)
    }


@pytest.mark.parametrize("made", [torch.zeros, np.zeros])
def test_an_array_in_a_kept_dict_goes_on_under_its_own_name(tmp_path, made):
    """A program adds to the array, and not to the dict: a restore fills the same memory."""

    def start(steps):
        counts = made(3)
        loop = Loop(tmp_path / "run")

        def count(loop):
            counts[loop.seen[-1] - 1] += 1
            if loop.step == steps:
                loop.run.stop()

        loop.after = count
        loop.run.keep("mine", {"counts": counts})
        loop.go()
        return counts.tolist()

    assert start(10) == [8, 2, 0]
    assert start(None) == [8, 8, 8]


def test_a_list_in_a_kept_dict_goes_on_under_its_own_name(tmp_path):
    """A program appends to the list, and not to the dict: a restore fills the same list. A dict in the dict, too."""

    def start(steps):
        losses, seen = [], {}
        loop = Loop(tmp_path / "run")

        def count(loop):
            losses.append(loop.step)
            seen[loop.seen[-1]] = len(losses)
            if loop.step == steps:
                loop.run.stop()

        loop.after = count
        loop.run.keep("mine", {"losses": losses, "seen": seen})
        loop.go()
        return losses, seen

    assert start(10) == ([*range(1, 11)], {1: 8, 2: 10})
    assert start(None) == ([*range(1, 11), *range(1, 15)], {1: 8, 2: 16, 3: 24})


@pytest.mark.parametrize(
    ("kind", "where"),
    [*((kind, "in a dict") for kind in MAKERS), ("torch", "itself"), ("torch", "in a dict of a dict")],
)
def test_a_generator_that_is_kept_goes_on_where_it_was(tmp_path, kind, where):
    """Python's, NumPy's and torch's own ones: the program draws from the same object after a restart."""

    def start(steps):
        generator, drawn = MAKERS[kind](), []
        loop = Loop(tmp_path / "run")

        def draw(loop):
            drawn.append(drawn_from(generator))
            if loop.step == steps:
                loop.run.stop()

        loop.after = draw
        mine = {"itself": generator, "in a dict": {"own": generator}, "in a dict of a dict": {"a": {"own": generator}}}
        loop.run.keep("mine", mine[where])
        loop.go()
        return drawn

    calm = MAKERS[kind]()
    assert [*start(10), *start(None)] == [drawn_from(calm) for _ in range(STEPS)]


def test_a_checkpoint_of_another_kind_of_generator_is_refused(tmp_path):
    """By name, before training: a stream that begins anew would be silently another one."""
    first = Loop(tmp_path / "run", lambda loop: loop.run.stop() if loop.step == 10 else None)
    first.run.keep("mine", random.Random(1))
    first.go()
    again = Loop(tmp_path / "run")
    again.run.keep("mine", np.random.default_rng(1))
    with pytest.raises(SetupRefused, match="mine: the checkpoint holds the state of no numpy Generator"):
        again.go()


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_a_tensor_in_a_kept_dict_goes_on_under_its_own_name(tmp_path, kind):
    """It is filled again, as lists are. One whose shape has changed is replaced, and so is one of the model."""

    def start(steps):
        average = torch.zeros(3) if kind == "tensor" else np.zeros(3)
        loop = Loop(tmp_path / "run", lambda loop: loop.run.stop() if loop.step == steps else None)
        kept = {"average": average, "grown": average[:1], "best": dict(loop.model.named_parameters())["0.weight"].data}
        loop.run.keep("mine", kept)

        def count(loop, after=loop.after):
            average[...] += 1
            kept["grown"] = average[:2] * 1
            kept["best"] = torch.zeros_like(kept["best"])
            after(loop)

        loop.after = count
        loop.go()
        assert kept["average"] is average
        return average.tolist(), kept["grown"].tolist(), bits(loop.model)

    assert start(10)[:2] == ([10.0] * 3, [10.0] * 2)
    assert start(None) == ([float(STEPS)] * 3, [float(STEPS)] * 2, bits(Loop(tmp_path / "calm").go().model))


@pytest.mark.parametrize("at", [2, 7])
def test_what_an_epoch_begins_with_is_drawn_again_without_a_second_draw(tmp_path, at):
    """A loop that goes on in mid-epoch draws its subset again. Generators and the data set are as they were then."""

    def start(run_dir, stops=0):
        model, rows, rng = network(), Subset(data(), list(range(48))), np.random.default_rng(4)
        run = Tolaria(configured(), run_dir=run_dir).run(model, None, loader(of=rows))
        run.keep("rng", rng)
        step = 0
        torch.manual_seed(5)
        random.seed(6)
        for _ in run.epochs(EPOCHS):
            rows.indices = rng.permutation(96)[:48].tolist()
            random.shuffle(rows.indices)
            for inputs, targets in run.batches():
                run.step(cross_entropy(model(inputs + torch.randn(()) * random.random()), targets))
                step += 1
                if step == stops:
                    run.stop()
        return bits(model)

    whole = start(tmp_path / "whole")
    start(tmp_path / "run", at)
    assert start(tmp_path / "run") == whole
