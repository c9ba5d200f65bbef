"""Spearman's rank correlation."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tolariad.core.calc.pruning.ranking import rank_correlation

PAIRS = st.lists(st.tuples(st.integers(-5, 5), st.floats(-1e6, 1e6)), min_size=2, max_size=40)


@given(PAIRS)
def test_a_rank_correlation_is_scipys(pairs):
    """Also with many equal values."""
    from scipy import stats  # takes a second to import

    one, other = zip(*pairs, strict=True)
    assume(len(set(one)) > 1 and len(set(other)) > 1)

    assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-9)


def test_a_ranking_that_says_nothing_correlates_with_nothing():
    """All values equal."""
    assert rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0


@pytest.mark.parametrize(("one", "other"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, math.nan], [1.0, 2.0])])
def test_what_cannot_be_ranked_is_refused(one, other):
    """One value, unequal lengths, NaN."""
    with pytest.raises(ValueError, match="a rank correlation needs"):
        rank_correlation(one, other)
