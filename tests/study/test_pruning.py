"""The price of pruning in accuracy: the default schedule against no pruning, and the curve of masked shares.

`make study` prints the tables that stand in docs/pruning.md.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.study.curve import SHARES, WHEN, above, chosen, measured, table
from tests.study.folded import FOLDS, Folded, network, parts
from tests.study.pruning import HEAD, Pair, Run, by_seed, pair, row
from tests.study.study import difference
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.pruning import Prune
from tolariad.trainer.pruning.verify import find_groups
from tolariad.trainer.tasks.digits import Digits

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")

SEEDS = (1, 2, 3, 4, 5)
POINTS = 0.5


def seeds():
    return SEEDS[: int(os.environ.get("TOLARIA_STUDY_SEEDS", len(SEEDS)))]


def test_every_digit_is_tested_once_and_trained_with_by_no_run_that_is_tested_on_it():
    """Five folds: three train, one validates, one tests."""
    images = [torch.cat([part[0] for part in parts(1, fold).values()]) for fold in range(FOLDS)]
    tested = torch.cat([parts(1, fold)["test"][0] for fold in range(FOLDS)])
    sizes = [[len(part[1]) for part in parts(1, fold).values()] for fold in range(FOLDS)]

    assert all(sum(one) == 1797 and max(one[1:]) <= 360 for one in sizes)
    assert all(torch.equal(one.sort(0).values, tested.sort(0).values) for one in images)


def test_the_network_of_the_study_is_the_built_in_cnn():
    """The same parameters, and the same outputs for the same weights."""
    built = Digits().model(Settings(task="digits", task_options={"model": "cnn"}))
    ours = Folded().model(Settings(task_options={"model": "cnn", "seed": 1, "fold": 0}))
    ours.load_state_dict(built.state_dict())
    images = torch.rand(7, 64)

    assert torch.equal(ours.eval()(images), built.eval()(images))


def test_without_floors_the_lowest_scores_are_chosen_wherever_they_are():
    """With the default floors a cycle takes none of the layer of 16, and an eighth of the one of 32."""
    groups = find_groups(network(), (torch.zeros(2, 64),)).groups
    scores = {group.name: tuple(float(unit) for unit in range(group.width)) for group in groups}

    assert [(group.name, group.width) for group in groups] == [("1", 16), ("5", 32)]
    assert chosen(groups, scores, 0.5) == {"1": tuple(range(12)), "5": tuple(range(12))}
    assert chosen(groups, scores, 0.5, Prune()) == {"5": (0, 1, 2, 3)}


def test_a_row_has_differences_of_seeds():
    """Two seeds of two folds: accuracies over all digits of a seed."""
    one = Run(
        right=9,
        tested=10,
        masked={"5": 3},
        channels=48,
        analyses=(),
        failed=0,
        refused=0,
        applied=2,
        passed=1,
        lifted=0,
        undone=1,
        correlations=(),
        reasons=(),
    )

    def made(seed, fold, right):
        pruned = Run(**{**{name: getattr(one, name) for name in one.__struct_fields__}, "right": right})
        return Pair(seed=seed, fold=fold, plain=one, pruned=pruned, same_until=45, masked_from=1)

    pairs = [made(1, 0, 9), made(1, 1, 8), made(2, 0, 9), made(2, 1, 9)]

    assert by_seed(pairs) == ([0.85, 0.9], [0.9, 0.9])
    assert "| 90.00 % | 87.50 % | -2.50 [" in row(pairs)
    assert row(pairs).endswith("| 3.0 (6%), 3 to 3 | 8, 4, 0, 4 |")


@pytest.mark.study
def test_the_default_schedule_costs_at_most_half_a_point(quick_path, template):
    """Five seeds, five-fold: each run by a daemon, with pruning and without, two pairs at a time."""

    def one(of):
        folder = quick_path / "-".join(map(str, of))
        found = pair(folder, template, *of)
        shutil.rmtree(folder)
        print(found, flush=True)
        return found

    with ThreadPoolExecutor(2) as both:
        pairs = list(both.map(one, [(seed, fold) for seed in seeds() for fold in range(FOLDS)]))
    print("\n".join([HEAD.format(len(seeds())), row(pairs)]))

    cost = difference(*by_seed(pairs))
    assert all(one.same_until >= 30 for one in pairs)
    assert all(one.pruned.masked for one in pairs), "a study of pruning prunes"
    assert cost.low >= -POINTS


@pytest.mark.study
def test_fishers_choice_keeps_more_than_a_random_one_at_every_share():
    """Five seeds, five-fold, floors and caps lifted: tables of the accuracy at once and after a short fine-tuning."""
    torch.set_num_threads(1)
    found = {seed: [measured(seed, fold) for fold in range(FOLDS)] for seed in seeds()}
    for when in range(len(WHEN)):
        print("\n".join(table(found, when)))

    against = {share: above(found, "random", share, 0) for share in SHARES}
    assert all(one.low > 0.0 for one in against.values()), against
