"""Intervals cover as often as they say, false positives come at their nominal rate, corrections correct."""

import math

import numpy as np
import pytest
from scipy import stats

from steelyard.studies import estimate, holm, paired


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
