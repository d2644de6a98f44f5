"""Which sources belong together, found with fewer runs than there are sources times seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import SteelyardError
from steelyard.studies.statistics import CONFIDENCE, Estimate

Trial = tuple[Sequence[str], int, float]
"""A group of sources, the seed, and the target's dev metric (higher is better)."""


def plan(sources: Sequence[str], seeds: Sequence[int], budget: int) -> list[tuple[list[str], int]]:
    """None and all, then random groups, each followed by all the others, so that every source is in half of the runs.

    Args:
        sources: The sources.
        seeds: The seeds, which pairs of groups take in turns.
        budget: How many runs.
    """
    least = len(sources) + min(len(seeds), -(-budget // 2)) + 2
    if budget < least:
        raise SteelyardError(f"a budget of {budget} runs is too small for {len(sources)} sources; it takes {least}")
    generator = np.random.default_rng(len(sources))
    found: list[tuple[list[str], int]] = []
    while len(found) < budget:
        order = generator.permutation(len(sources)).tolist()
        size = int(generator.integers(1, max(2, len(sources)))) if found else 0
        seed = seeds[len(found) // 2 % len(seeds)]
        found += [([sources[i] for i in sorted(half)], seed) for half in (order[:size], order[size:])]
    return found[:budget]


@dataclass(frozen=True)
class Search:
    """What each source adds to a random group of others.

    Attributes:
        effects: By source: its coefficient in a linear model of the dev metric, with its interval.
        group: The sources whose coefficient is above zero, the most helpful first.
        runs: How many runs this is from.
    """

    effects: dict[str, Estimate]
    group: tuple[str, ...]
    runs: int

    @classmethod
    def of(cls, sources: Sequence[str], trials: Sequence[Trial]) -> Search:
        """Least squares of the metric on which sources were there, with a level for each seed.

        It is the surrogate model of Li, Nguyen and Zhang 2023, *Identification of Negative Transfers in Multitask
        Learning Using Surrogate Models*: linear in the sources, fitted to random groups.
        """
        effects = least_squares(sources, trials)
        group = sorted((s for s in sources if effects[s].mean > 0), key=lambda s: -effects[s].mean)
        return cls(effects, tuple(group), len(trials))


def least_squares(sources: Sequence[str], trials: Sequence[Trial]) -> dict[str, Estimate]:
    """Each source's coefficient, with Student's interval and the p-value of its being zero."""
    from scipy import stats

    seeds = sorted({seed for _, seed, _ in trials})
    design = np.array([[s in group for s in sources] + [seed == t for t in seeds] for group, seed, _ in trials], float)
    values = np.array([value for *_, value in trials])
    free = len(trials) - design.shape[1]
    if free < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        raise SteelyardError(
            f"{len(trials)} runs do not tell {len(sources)} sources apart; give the search a larger budget"
        )
    inverse = np.linalg.inv(design.T @ design)
    found = inverse @ design.T @ values
    noise = float(((values - design @ found) ** 2).sum()) / free
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, free))
    effects = {}
    for place, source in enumerate(sources):
        mean, error = float(found[place]), math.sqrt(noise * inverse[place, place])
        p = float(2 * stats.t.sf(abs(mean) / error, free)) if error > 0 else float(mean == 0)
        effects[source] = Estimate(mean, mean - reach * error, mean + reach * error, math.sqrt(noise), len(trials), p)
    return effects
