"""What may be said of results over seeds: intervals, paired differences, and the price of many comparisons."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        low: The lower end of its confidence interval (Student's t); NaN with fewer than two values.
        high: The upper end.
        sd: The standard deviation over seeds; NaN with fewer than two values.
        count: How many seeds.
        p: The two-sided p-value of a mean of zero (t-test); NaN with fewer than two values.
    """

    mean: float
    low: float
    high: float
    sd: float
    count: int
    p: float = math.nan

    def __str__(self) -> str:
        return f"{self.mean:.4f}{self._reach}"

    @property
    def _reach(self) -> str:
        return "" if math.isnan(self.low) else f" ± {(self.high - self.low) / 2:.4f}"

    @property
    def signed(self) -> str:
        """The same with a sign, for differences."""
        return f"{self.mean:+.4f}{self._reach}"


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The mean of some values with its interval."""
    found = np.asarray(list(values), dtype=np.float64)
    if not len(found):
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0)
    mean, count = float(found.mean()), len(found)
    if count < 2:
        return Estimate(mean, math.nan, math.nan, math.nan, count)
    from scipy.special import stdtr, stdtrit  # what scipy.stats.t is made of, without the second that it takes to load

    sd = float(found.std(ddof=1))
    error = sd / math.sqrt(count)
    reach = float(stdtrit(count - 1, (1 + confidence) / 2)) * error
    p = float(2 * stdtr(count - 1, -abs(mean) / error)) if error > 0 else float(mean == 0)
    return Estimate(mean, mean - reach, mean + reach, sd, count, p)


def paired(
    treated: Mapping[Hashable, float], control: Mapping[Hashable, float], confidence: float = CONFIDENCE
) -> Estimate:
    """The mean of treated - control over the pairs (seeds) that both have, with its interval and p-value."""
    return estimate([value - control[key] for key, value in treated.items() if key in control], confidence)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm's step-down); NaN stays NaN and does not count."""
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    found, highest = [math.nan] * len(p_values), 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        found[place] = highest
    return found
