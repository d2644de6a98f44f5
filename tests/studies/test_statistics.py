"""Intervals cover as often as they say, false positives come at their nominal rate, corrections correct."""

import math

import numpy as np
import pytest
from scipy import stats

from steelyard.studies import Comparison, Results, estimate, holm, paired
from steelyard.studies.comparison import Ground
from steelyard.studies.contestants import Contestant


def test_interval_covers_the_mean_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(2.0, 3.0, (4000, 5))
    covered = np.mean([(found := estimate(list(row))).low <= 2.0 <= found.high for row in draws])
    assert abs(covered - 0.95) < 0.012


def test_false_positives_come_at_the_nominal_rate():
    generator = np.random.default_rng(1)
    common = generator.normal(size=(4000, 6)) * 10  # what both methods share in a seed is taken out by pairing
    first, second = (common + generator.normal(size=(4000, 6)) for _ in range(2))
    p = [paired(dict(enumerate(a)), dict(enumerate(b))).p for a, b in zip(first, second, strict=True)]
    assert abs(np.mean(np.array(p) < 0.05) - 0.05) < 0.012


def test_agrees_with_the_paired_t_test():
    generator = np.random.default_rng(2)
    first, second = generator.normal(size=7), generator.normal(size=7)
    found = paired(dict(enumerate(first)), dict(enumerate(second)))
    reference = stats.ttest_rel(first, second)
    assert found.p == pytest.approx(reference.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(reference.confidence_interval()))


def test_only_common_seeds_are_paired():
    assert paired({0: 1.0, 1: 2.0, 5: 100.0}, {1: 1.0, 0: 0.0, 7: 3.0}).count == 2
    assert math.isnan(paired({0: 1.0}, {1: 1.0}).mean)


def test_few_or_equal_values():
    assert math.isnan(estimate([1.0]).low)
    assert estimate([0.0, 0.0]).p == 1
    assert estimate([0.5, 0.5]).p == 0
    assert estimate([0.5, 0.5]).low == 0.5


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    found = holm([math.nan, 0.02, 0.5])
    assert math.isnan(found[0])
    assert found[1:] == pytest.approx([0.04, 0.5])


def test_holm_keeps_the_family_wise_rate():
    p = np.random.default_rng(3).uniform(size=(4000, 8))
    assert abs(np.mean([min(holm(list(row))) < 0.05 for row in p]) - 0.05) < 0.012


def test_pairing_finds_what_the_spread_of_seeds_would_hide():
    """A gain that is small beside what seeds do: told by pairs most of the time, without them hardly ever."""
    generator = np.random.default_rng(4)
    common = generator.normal(0, 5, (1000, 5))
    first, second = common + 1 + generator.normal(0, 0.3, common.shape), common + generator.normal(0, 0.3, common.shape)
    pairs = [paired(dict(enumerate(a)), dict(enumerate(b))).p for a, b in zip(first, second, strict=True)]
    apart = stats.ttest_ind(first, second, axis=1).pvalue
    assert np.mean(np.array(pairs) < 0.05) > 0.9
    assert np.mean(apart < 0.05) < 0.05


@pytest.mark.parametrize("methods", [1, 4, 10])
def test_a_comparison_of_methods_that_do_nothing_claims_no_more_than_it_may(methods, tmp_path):
    """Family-wise, with what comparisons have: a common control and seeds that move all methods alike."""
    generator = np.random.default_rng(methods)
    names = ["uniform", *(f"m{n}" for n in range(methods))]
    taking_part = [Contestant(name, "uniform", control=name == "uniform") for name in names]
    claims = 0
    for _ in range(400):
        seeds = generator.normal(0, 3, 5)
        cells = [
            ({"method": m, "seed": s}, {"test": seeds[s] + generator.normal(), "steps": 1, "seconds": 1, "peak_mb": 1})
            for m in names
            for s in range(5)
        ]
        ground = Ground("t", "accuracy", "test", higher=True)
        found = Comparison(ground, taking_part, Results(cells), {}, {}, tmp_path)
        claims += any(row.against["uniform"].corrected < 0.05 for row in found.rows if not row.control)
    assert claims / 400 < 0.05 + 0.03
    assert methods > 1 or claims / 400 > 0.02
