"""Seeds in a real run: what they bring, against the host alone and against its final size from the start.

`make study` prints the table that stands in docs/growing.md.
"""

from __future__ import annotations

import os

import pytest
import torch

from tests.study.growing import (
    DEFAULT,
    HEAD,
    HELD_OUT,
    SETTINGS,
    WIDENING,
    Grown,
    compared,
    network,
    parts,
    row,
    with_modules,
)

SEEDS = (1, 2, 3, 4, 5)
EPOCHS = 60


def test_the_final_size_is_the_host_with_the_grown_modules():
    """At its first step it computes what the host does, with the parameters of both."""
    host, seeds = network(1), (("early", WIDENING), ("late", WIDENING))
    final = with_modules(network(1), seeds, 1)
    images = torch.rand(5, 64)

    assert sum(one.numel() for one in final.parameters()) == sum(one.numel() for one in host.parameters()) + 2 * 660
    assert torch.equal(final(images), host(images))


def test_no_digit_is_in_two_parts():
    """Train, validate and test are all the digits, each once."""
    sizes = [len(part) for part in parts(1)]
    rows = torch.cat([torch.column_stack(part.tensors) for part in parts(1)])

    assert sizes == [1797 - 2 * HELD_OUT, HELD_OUT, HELD_OUT]
    assert len(rows.unique(dim=0)) == 1797


def test_a_row_has_the_mean_and_the_spread():
    """Of two runs of different size."""
    runs = [Grown(0.9, 0.5, 358, 1.0, 1, ()), Grown(0.92, 0.3, 1018, 3.0, 1, (("a", "b"),))]

    assert row("x", runs) == "| x | 91.00 % ± 1.41 | 0.400 | 358 to 1018 | 2.0 s | 1 of 2 |"


@pytest.mark.study
def test_the_default_policy_grows_seeds_that_stay(quick_path):
    """Five seeds. The table is printed whatever it shows; at least one seed must be in its model at the end."""
    torch.set_num_threads(1)
    found: dict[str, list[Grown]] = {}
    for seed in SEEDS[: int(os.environ.get("TOLARIA_STUDY_SEEDS", len(SEEDS)))]:
        for name, one in compared(quick_path, seed, EPOCHS).items():
            found.setdefault(name, []).append(one)
            print(f"seed {seed}, {name}: {one}", flush=True)
    print("\n".join([HEAD, *(row(name, runs) for name, runs in found.items())]))

    assert any(one.seeds for one in found[DEFAULT])
    assert all(one.germinated == 0 for name in found if name not in SETTINGS for one in found[name])
    sizes = [[one.parameters for one in found[name]] for name in (DEFAULT, "final size from the start")]
    assert sizes[0] == sizes[1]
