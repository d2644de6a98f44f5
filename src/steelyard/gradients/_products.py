"""Inner products of one batch's task gradients with another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.gradients._result import TaskGradients

    Metric = Callable[[str, Tensor | None], Tensor | float]

_CHUNK = 1 << 15  # pairs of sparse entries that are multiplied at a time


def inner_products(first: TaskGradients, second: TaskGradients, metric: Metric | None = None) -> Tensor:
    """⟨first_t, P second_j⟩ for all pairs, at the cost of what the gradients hold.

    Args:
        first: S gradients over a scope.
        second: T gradients over the same scope, of the same model on other rows or at other parameters.
        metric: the diagonal P, if it is not the identity: called with a parameter's name and, where only some rows
            of the parameter matter, their indices ``LongTensor[n]``; returns P there, shaped like them, or a number.

    Returns:
        Tensor[S, T]; parameters that one of the sides has no gradient for count as zero.
    """
    left, right = first.stored(), second.stored()
    total: Tensor | None = None
    for name in left.keys() & right.keys():
        one, other = left[name], right[name]
        if one.is_sparse and other.is_sparse:
            found = _sparse(one, other, name, metric)
        else:
            one, other = (v.to_dense() if v.is_sparse else v for v in (one, other))
            scale = 1.0 if metric is None else metric(name, None)
            found = one.flatten(1) @ _scaled(other, scale).flatten(1).t()
        total = found if total is None else total + found
    if total is None:
        raise ValueError("the gradients have no parameter in common")
    return total


def _scaled(rows: Tensor, scale: Tensor | float) -> Tensor:
    return rows if isinstance(scale, float) and scale == 1.0 else rows * scale


def _sparse(first: Tensor, second: Tensor, name: str, metric: Metric | None) -> Tensor:
    """Both sides [T, V, d]: every entry of the one with the other's entries of the same id, some at a time."""
    tasks, ids = first.indices()
    order = second.indices()[1].argsort()
    others, sorted_ids = second.indices()[0][order], second.indices()[1][order]
    low = torch.searchsorted(sorted_ids, ids)
    counts = torch.searchsorted(sorted_ids, ids, right=True) - low
    mine = torch.repeat_interleave(counts)
    start = counts.cumsum(0) - counts
    theirs = (low - start)[mine] + torch.arange(len(mine), device=ids.device)
    total = first.values().new_zeros(first.shape[0] * second.shape[0])
    for one, other in zip(torch.split(mine, _CHUNK), torch.split(theirs, _CHUNK), strict=True):
        rows = second.values()[order[other]]
        if metric is not None:
            rows = _scaled(rows, metric(name, ids[one]))
        found = torch.linalg.vecdot(first.values()[one], rows)
        total.index_add_(0, tasks[one] * second.shape[0] + others[other], found)
    return total.reshape(first.shape[0], second.shape[0])
