"""Weights within sources: one per row, or one per group of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.functional import mirror_descent
from steelyard.methods.job import Job
from steelyard.methods.tawt import evidence
from steelyard.methods.tawt.options import TAWTOptions
from steelyard.tasks import Batch, Kind, Role, Suite, cut, labelled

CHUNK = 256
"""Rows of each source in one forward."""

DRAWN = 16 * CHUNK
"""Rows of each source that are drawn at once, none of them twice."""


@dataclass(frozen=True, eq=False)
class Units:
    """What has a weight: rows or groups of rows of all sources, numbered through.

    Attributes:
        of: The unit of each training row, ``LongTensor[n_t]``, by source.
        sizes: How many rows each unit has, ``[U]``.
    """

    of: Mapping[str, Tensor]
    sizes: Tensor

    @classmethod
    def make(cls, suite: Suite, sources: tuple[str, ...], options: TAWTOptions) -> Units:
        """The units of a suite's sources."""
        found, start = {}, 0
        for name in sources:
            own = _numbered(suite, name, options)
            found[name] = own + start
            start += int(own.max()) + 1
        every = torch.cat(list(found.values())) if found else torch.zeros(0, dtype=torch.long)
        return cls(found, torch.bincount(every).float())

    def start(self, mixture: Tensor, device: torch.device) -> Tensor:
        """Weights ``[U]`` under which each source has its part of the mixture and its rows count the same."""
        weights = torch.zeros_like(self.sizes)
        for part, own in zip(mixture.cpu(), self.of.values(), strict=True):
            weights[own] = part * self.sizes[own] / len(own)
        return weights.to(device)

    def mixture(self, weights: Tensor) -> Tensor:
        """Each source's sum of its units' weights, ``[S]``."""
        units = [torch.unique(own).to(weights.device) for own in self.of.values()]
        return torch.stack([weights[own].sum() for own in units])

    def row_weights(self, weights: Tensor) -> dict[str, Tensor]:
        """By source what each row's loss is multiplied with, ``[n_t]`` with mean 1."""
        per_row = weights / self.sizes.to(weights)
        rows = {name: per_row[own.to(weights.device)] for name, own in self.of.items()}
        return {name: values / values.mean() for name, values in rows.items()}


def _numbered(suite: Suite, name: str, options: TAWTOptions) -> Tensor:
    """The unit of each training row of a source, from 0 without gaps."""
    rows = suite[name].rows[Role.TRAIN]
    if options.level == "example":
        return torch.arange(len(rows))
    if options.groups is not None:
        given = torch.tensor(options.groups.get(name, [0] * len(rows)))
        if len(given) != len(rows):
            raise SteelyardError(f"method 'tawt', groups of {name!r}: {len(given)} for {len(rows)} training rows")
    elif suite[name].kind is Kind.CLASSIFICATION and isinstance(rows.labels, Tensor):
        given = rows.labels
    else:
        raise SteelyardError(
            f"method 'tawt', level 'group': the rows of {name!r} have no class to group by; say which: groups = {{…}}"
        )
    places: Tensor = torch.unique(given, return_inverse=True)[1]
    return places


def updated(job: Job, weights: Tensor, units: Units, direction: Mapping[str, Tensor], options: TAWTOptions) -> Tensor:
    """Eq. 2.8 with a weight per unit: ω_u ← ω_u·exp(η·c·z_u), renormalised; ``[U]``."""
    found, slopes = looked_at(job, weights, units, direction, options)
    gradient = torch.zeros_like(weights, dtype=torch.float64)
    gradient[found] = -options.c * slopes
    return mirror_descent(weights, gradient.to(weights), options.eta, options.floor / len(weights))


def begin(state: evidence.State, weights: Tensor) -> None:
    """No slopes yet."""
    state["units"], state["units_prior"] = weights, weights.clone()
    for name in ("units_total", "units_squares", "units_seen"):
        state[name] = torch.zeros_like(weights)


def accumulated(
    job: Job, state: evidence.State, units: Units, direction: Mapping[str, Tensor], options: TAWTOptions
) -> Tensor:
    """ω_u ∝ exp(strength·e_u), e_u being what all looks say of a unit (`effects`); ``[U]``."""
    found, slopes = looked_at(job, state["units"], units, direction, options)
    slopes = slopes.to(state["units_total"])
    for name, new in (("units_total", slopes), ("units_squares", slopes.square()), ("units_seen", 1.0)):
        state[name] = options.memory * state[name]
        state[name][found] += new
    floor = options.floor / len(state["units"])
    return mirror_descent(state["units_prior"], -effects(state), options.strength, floor)


def effects(state: evidence.State) -> Tensor:
    """How far each unit is from the others, in standard deviations, shrunk by the evidence: ``[U]``.

    As `evidence.shrunk`, with the looks' noise pooled over all units that were looked at more than once: one look at a
    row is mostly noise, and weights that followed it would train on that noise. A unit not seen yet is at 0.
    """
    seen = state["units_seen"]
    mean = state["units_total"] / seen.clamp(min=1e-9)
    known, often = seen > 0, seen > 1
    none = torch.zeros_like(mean)
    if int(known.sum()) < 2 or not bool(often.any()):
        return none
    spread = mean[known].var()
    noise = (state["units_squares"] - seen * mean.square())[often].sum() / (seen - 1)[often].sum()
    trust = 1 - (noise.clamp(min=0) / seen[known]).mean() / spread
    if not bool(spread > 0) or not bool(trust > 0):
        return none
    return torch.where(known, trust * (mean - mean[known].mean()) / spread.sqrt(), 0.0)


def looked_at(
    job: Job, weights: Tensor, units: Units, direction: Mapping[str, Tensor], options: TAWTOptions
) -> tuple[Tensor, Tensor]:
    """One look at a random part of the rows (``fresh``): which units it saw, ``[U]``, and their z_u.

    z_u is the mean slope ⟨∇L_0, ∇ℓ_i⟩ of the unit's rows, all from row slopes: no gradient of a single row is ever
    formed. With ``dot`` it is that number (less the mean of those seen), else it is divided by their standard
    deviation, so that losses on another scale give the same weights.
    """
    total = torch.zeros_like(weights, dtype=torch.float64)
    seen = torch.zeros_like(total)
    left = math.ceil(options.fresh * max(len(own) for own in units.of.values()))
    while left > 0:
        batch = job.draw(Role.TRAIN, min(left, DRAWN), tuple(units.of))
        for piece in cut(batch, math.ceil(min(left, DRAWN) / CHUNK)):
            _look(job, piece, units, direction, options, total, seen)
        left -= DRAWN
    found = seen > 0
    slopes = total[found] / seen[found]
    slopes = slopes - slopes.mean()
    if options.signal != "dot":
        spread = slopes.square().mean().sqrt()
        slopes = torch.where(spread > 0, slopes / spread, 0.0)
    return found, slopes


def _look(
    job: Job,
    batch: Batch,
    units: Units,
    direction: Mapping[str, Tensor],
    options: TAWTOptions,
    total: Tensor,
    seen: Tensor,
) -> None:
    """Adds one probe's slopes, and how many rows they are of, to the units' sums."""
    sources = tuple(units.of)
    with job.probe(batch, options.scope, sources) as probe:
        if probe.rows is None:
            raise SteelyardError(
                f"method 'tawt', level {options.level!r}: the sources need rows of their own, all of one shape; "
                "use level 'task'"
            )
        slopes = probe.row_slopes(direction).double()
    for member in batch.parts[0].members:
        given = labelled(member.labels).reshape(len(member.labels), -1)
        rows = given.any(1)
        # A probe's loss is a mean over labels: a row's own slope is its share times their number.
        own = slopes[member.rows][rows] * given.sum() / given[rows].sum(1)
        index = torch.arange(len(rows)) if member.index is None else member.index
        unit = units.of[member.task].to(total.device)[index[rows]]
        total.index_add_(0, unit, own.to(total))
        seen.index_add_(0, unit, torch.ones_like(own).to(seen))
