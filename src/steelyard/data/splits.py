"""Splits and draws of rows: stratified, seeded, and grouped so that no document leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.tasks import Inputs, Kind, Ragged, labelled

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUANTILES = 10


def strata(labels: Inputs, kind: Kind) -> NDArray[np.int64]:
    """A stratum per row: its class, its rarest label, or the tenth of the values that it lies in.

    Rows without a label are a stratum of their own; tagging has one stratum, besides the unlabelled.
    """
    if isinstance(labels, Ragged):
        given = np.add.reduceat(np.append(labelled(labels.values).numpy(), 0), labels.offsets[:-1].numpy()).astype(
            bool
        ) & (labels.lengths.numpy() > 0)
        return np.where(given, 0, -1)
    values = labels.numpy()
    if kind is Kind.CLASSIFICATION:
        return np.where(values >= 0, values, -1)
    if kind is Kind.MULTILABEL:
        frequency = np.nansum(values, 0)
        rarity = np.where(np.nan_to_num(values) > 0, frequency, np.inf)
        chosen = np.where(np.isfinite(rarity.min(1)), rarity.argmin(1), values.shape[1])
        return np.where(np.isnan(values).all(1), -1, chosen)
    first = values if values.ndim == 1 else values[:, 0]
    given = np.isfinite(first)
    if not given.any():
        return np.full(len(first), -1)
    parts = min(QUANTILES, max(int(given.sum()) // 5, 1))
    edges = np.quantile(first[given], np.linspace(0, 1, parts + 1)[1:-1])
    return np.where(given, np.searchsorted(edges, np.nan_to_num(first)), -1)


def draw(groups: NDArray[np.int64], count: int, seed: int, name: str = "") -> NDArray[np.int64]:
    """``count`` rows, each stratum in proportion and, if there is room, at least one of each.

    Unlabelled rows (stratum -1) are drawn only when the labelled ones run out.
    """
    generator = _generator(seed, name)
    labelled_rows = np.flatnonzero(groups >= 0)
    pool = labelled_rows if len(labelled_rows) >= count else np.arange(len(groups))
    sizes = np.bincount(groups[pool] + 1)
    names = np.flatnonzero(sizes) - 1
    sizes = sizes[names + 1]
    count = min(count, len(pool))
    exact = sizes * (count / len(pool))
    share = np.floor(exact).astype(int)
    if count >= len(names):
        share = np.maximum(share, 1)
    order = np.lexsort((generator.random(len(names)), share - exact))
    while share.sum() < count:
        for k in order:
            if share.sum() < count and share[k] < sizes[k]:
                share[k] += 1
    while share.sum() > count:
        share[np.argmax(share)] -= 1
    chosen = [generator.permutation(pool[groups[pool] == n])[:k] for n, k in zip(names, share, strict=True)]
    return np.sort(np.concatenate(chosen))


def hold_out(
    groups: NDArray[np.int64],
    fraction: float,
    seed: int,
    name: str = "",
    documents: Any = None,
    twins: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two disjoint sets of rows, ``(kept, held out)``.

    Args:
        groups: The stratum of each row. Only labelled rows are held out; a class never loses its last row.
        fraction: The share to hold out; at least one row if no class is lost by it.
        seed: The same seed gives the same rows.
        name: Draws of different names are independent.
        documents: A value per row that may not stand on both sides.
        twins: A number per row, the same for rows with equal inputs. They stay on one side, unless what is held out
            would then be less than half or more than twice of what was asked for.
    """
    everything = np.arange(len(groups))
    eligible = np.flatnonzero(groups >= 0)
    if len(eligible) < 2 or fraction == 0:
        return everything, everything[:0]
    if documents is not None:
        held = _by_document(groups, fraction, seed, documents)
    elif twins is not None:
        held = _by_twins(groups, fraction, seed, name, twins)
    else:
        held = _by_row(groups, fraction, seed, name)
    return np.delete(everything, held), np.sort(held)


def _by_row(groups: NDArray[np.int64], fraction: float, seed: int, name: str) -> NDArray[np.int64]:
    eligible = np.flatnonzero(groups >= 0)
    protected = np.zeros(int(groups.max()) + 1, dtype=np.int64)
    order = _generator(seed, f"{name}/keep").permutation(eligible)
    protected[groups[order]] = order
    free = eligible[protected[groups[eligible]] != eligible]
    wanted = max(round(fraction * len(eligible)), 1)
    rows: NDArray[np.int64] = free[draw(groups[free], wanted, seed, name)] if len(free) else free
    return rows


def _by_twins(
    groups: NDArray[np.int64], fraction: float, seed: int, name: str, twins: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draws distinct rows, each for all of its twins; if that misses the fraction by far, rows as they are."""
    names, owner = np.unique(twins, return_inverse=True)
    if len(names) == len(groups):
        return _by_row(groups, fraction, seed, name)
    given = groups >= 0
    labels = np.bincount(owner[given], minlength=len(names))
    kinds = np.where(labels > 0, _majority(groups[given], owner[given], len(names)), -1)
    held = np.isin(owner, _by_row(kinds, fraction, seed, name))
    lost = np.setdiff1d(groups[held], groups[~held])
    held &= ~np.isin(owner, owner[np.isin(groups, lost)])
    wanted = max(fraction * given.sum(), 1)
    if wanted / 2 <= held.sum() <= 2 * wanted:
        return np.flatnonzero(held)
    return _by_row(groups, fraction, seed, name)


def _by_document(groups: NDArray[np.int64], fraction: float, seed: int, documents: Any) -> NDArray[np.int64]:
    """Whole documents, the strata that most of their rows lie in each in proportion."""
    _, owner = np.unique(np.asarray(documents, dtype=str), return_inverse=True)
    sizes = np.bincount(owner)
    if len(sizes) < 2:
        return np.empty(0, dtype=np.int64)
    kinds = _majority(groups, owner, len(sizes))
    order = np.random.default_rng(seed).permutation(len(sizes))
    taken = np.zeros(len(sizes), dtype=bool)
    for kind in np.unique(kinds):
        own = order[kinds[order] == kind]
        reached = sizes[own].cumsum()
        quota = fraction * sizes[own].sum()
        taken[own[: np.abs(np.append(0, reached) - quota).argmin()]] = True
    if not taken.any():
        taken[order[sizes[order].argmin()]] = True
    if taken.all():
        taken[order[sizes[order].argmax()]] = False
    held = taken[owner]
    lost = np.setdiff1d(groups[held], groups[~held])
    held &= ~np.isin(owner, owner[np.isin(groups, lost)])
    return np.flatnonzero(held)


def _majority(groups: NDArray[np.int64], owner: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The stratum that most rows of each document lie in."""
    pairs, rows = np.unique(np.stack([owner, groups], 1), axis=0, return_counts=True)
    best = np.zeros(count, dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    best[pairs[order, 0]] = pairs[order, 1]
    return best


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, *name.encode()])
