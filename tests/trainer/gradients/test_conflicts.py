"""The rules for gradients in conflict, against the explicit form on vectors and against TorchJD."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tests.trainer.gradients.models import conflicts as in_conflict
from tests.trainer.gradients.models import explicit_pcgrad, projected
from tolariad.trainer.gradients.conflicts import RULES, Compared, ConflictLimits, average, count, pcgrad, priority

ANY = ConflictLimits(0.0, 1e-8)
# g1 and g2 of two tasks, and the gradient that each method makes of them. Source: measured, and the papers.
PAIR = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)


def compared(rows, *, has_host=True, orders=None, ranks=None, factors=None) -> Compared:
    """Return the view that the rules have of these gradients. `orders`: those that are drawn, one after the other."""
    seeds = len(rows) - has_host
    orders = iter(orders or [list(range(seeds))] * seeds)
    return Compared(
        gram=(rows @ rows.T).numpy(),
        has_host=has_host,
        factors=factors or [1.0] * len(rows),
        ranks=ranks or list(range(int(has_host), len(rows))),
        draw=lambda _: next(orders),
    )


def combined(rule, rows, limits=ANY, **options):
    """The gradient that a rule makes."""
    return torch.from_numpy(rule(compared(rows, **options), limits)) @ rows


@pytest.mark.parametrize(
    ("rule", "has_host", "expected"),
    [
        (pcgrad, False, (0.5, 1.5)),
        (pcgrad, True, (1.0, 1.0)),
        (priority, True, (1.0, 1.0)),
        (average, True, (0.0, 0.5)),
    ],
)
def test_two_gradients_have_their_known_result(rule, has_host, expected):
    """Each method gives the closed form for two tasks; with a host only the seed is projected."""
    assert combined(rule, PAIR, has_host=has_host).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("threshold", [0.0, -0.2, -0.5])
@pytest.mark.parametrize("has_host", [True, False])
def test_pcgrad_is_its_explicit_form(threshold, has_host):
    """In float64 the combination of rows equals the projections of vectors to 1e-12, for 1 to 5 seeds."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    torch.manual_seed(seed)
    fired = 0
    for _ in range(200):
        seeds, size = draw.randint(1, 5), draw.randint(12, 40)
        # A common direction makes strong agreement and strong conflicts frequent.
        rows = torch.randn(seeds + has_host, size, dtype=torch.float64)
        rows += 1.5 * torch.randn(seeds + has_host, 1, dtype=torch.float64) * torch.randn(size, dtype=torch.float64)
        rows *= 10 ** draw.uniform(-8, 8)
        orders = [draw.sample(range(seeds), seeds) for _ in range(seeds)]
        host, others = (rows[0], list(rows[1:])) if has_host else (None, list(rows))
        expected = explicit_pcgrad(host, others, orders, threshold)

        found = combined(pcgrad, rows, ConflictLimits(threshold, 0.0), has_host=has_host, orders=orders)

        assert (found - expected).norm() <= 1e-12 * rows.norm()
        fired += not torch.allclose(expected, rows.sum(0))
    assert fired > 20


def test_pcgrad_without_a_host_is_torchjds(monkeypatch):
    """TorchJD's PCGrad on the same orders gives the same gradient."""
    aggregation = pytest.importorskip("torchjd.aggregation", reason="TorchJD is not installed (extra aggregators)")
    torch.manual_seed(11)
    for size in (2, 3, 5):
        rows = torch.randn(size, 7, dtype=torch.float64)
        orders = [torch.randperm(size) for _ in range(size)]
        given = iter(orders)
        monkeypatch.setattr(torch, "randperm", lambda _, given=given: next(given))
        expected = aggregation.PCGrad()(rows)
        monkeypatch.undo()

        found = combined(pcgrad, rows, has_host=False, orders=[order.tolist() for order in orders])

        assert (found - expected).abs().max() < 1e-12


def test_host_priority_is_torchjds_own_extension():
    """For one seed, the rule equals a weighting that is written with TorchJD's own classes."""
    aggregation = pytest.importorskip("torchjd.aggregation", reason="TorchJD is not installed (extra aggregators)")

    class HostFirst(aggregation.Weighting):
        def forward(self, gramian):
            share = torch.where(gramian[1, 0] < 0, gramian[1, 0] / gramian[0, 0], 0.0)
            return torch.stack([1.0 - share, torch.ones_like(share)])

    aggregator = aggregation.GramianWeightedAggregator(HostFirst())
    torch.manual_seed(12)
    for _ in range(20):
        rows = torch.randn(2, 5, dtype=torch.float64)

        assert (combined(pcgrad, rows) - aggregator(rows)).abs().max() < 1e-12


@pytest.mark.parametrize("rule", [pcgrad, priority])
def test_the_host_never_climbs_at_threshold_zero(rule):
    """The sum never has a smaller inner product with the host's gradient than the host's own, whatever the order."""
    torch.manual_seed(13)
    for _ in range(200):
        rows = torch.randn(5, 4, dtype=torch.float64)
        orders = [torch.randperm(4).tolist() for _ in range(4)]

        total = combined(rule, rows, orders=orders)

        assert total @ rows[0] >= (rows[0] @ rows[0]) * (1 - 1e-7)


def test_priority_protects_the_more_important_seed():
    """The seed of lower rank gives way, that of higher rank keeps its gradient."""
    rows = torch.cat([torch.zeros(1, 2, dtype=torch.float64), PAIR])

    first = combined(priority, rows, ranks=[1, 2])
    second = combined(priority, rows, ranks=[2, 1])

    assert first.tolist() == pytest.approx((PAIR[0] + projected(PAIR[1], PAIR[0])).tolist())
    assert second.tolist() == pytest.approx((PAIR[1] + projected(PAIR[0], PAIR[1])).tolist())


def test_the_average_is_by_factors_and_only_in_conflict():
    """Gradients that agree are added up; those in conflict give their mean, by the factors."""
    agreeing = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

    assert combined(average, agreeing, factors=[1.0, 0.5]).tolist() == [2.0, 1.0]
    assert combined(average, PAIR, factors=[1.0, 0.5]).tolist() == pytest.approx([0.0, 1 / 1.5])


@pytest.mark.parametrize("rule", RULES.values())
@pytest.mark.parametrize("power", [-300, -20, 0, 20, 300])
def test_the_scale_of_gradients_changes_nothing(rule, power):
    """Gradients times a power of two give exactly the same coefficients, also if they are tiny."""
    torch.manual_seed(14)
    rows = torch.randn(4, 6, dtype=torch.float64)

    expected = rule(compared(rows), ANY)

    assert (rule(compared(rows * 2.0**power), ANY) == expected).all()


def test_a_zero_gradient_conflicts_with_nothing():
    """A zero row makes no division by zero, and changes nothing for the others."""
    rows = torch.cat([PAIR, torch.zeros(1, 2, dtype=torch.float64)])

    assert count(compared(rows).gram, ANY) == 1
    for rule in (pcgrad, priority):
        assert combined(rule, rows).tolist() == pytest.approx(combined(rule, PAIR).tolist())
    zero_host = torch.cat([torch.zeros(1, 2, dtype=torch.float64), PAIR])
    assert combined(pcgrad, zero_host).tolist() == pytest.approx([0.5, 1.5])


def test_a_seed_against_the_host_leaves_the_host_alone():
    """A seed whose gradient is the host's, reversed, vanishes. The rest of it makes no noise."""
    rows = torch.stack([PAIR[0], -3 * PAIR[0], PAIR[1]])

    assert combined(pcgrad, rows).tolist() == pytest.approx([1.0, 1.0], abs=1e-12)


def test_the_sources_threshold_passes_over_most_conflicts():
    """A cosine of -0.49 with a seed twice as large climbs the host's loss at -0.5. The same pair conflicts at 0."""
    rows = torch.tensor([[1.0, 0.0], [-0.49 * 3, (1 - 0.49**2) ** 0.5 * 3]], dtype=torch.float64)
    source = ConflictLimits(-0.5, 1e-8)

    assert in_conflict(rows[1], rows[0], 0.0)
    assert count(compared(rows).gram, source) == 0
    assert combined(pcgrad, rows, source) @ rows[0] < 0
    assert combined(pcgrad, rows, ANY) @ rows[0] >= 1 - 1e-12


def test_epsilon_is_relative():
    """Orthogonal gradients with a rounding error are no conflict, at any scale."""
    for scale in (1e-12, 1.0, 1e12):
        gram = np.array([[1.0, -1e-12], [-1e-12, 1.0]]) * scale**2

        assert count(gram, ANY) == 0
        assert count(gram, ConflictLimits(0.0, 0.0)) == 1
