"""Inner products of one batch's task gradients with another's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from steelyard.gradients._result import TaskGradients

Metric = Callable[[str, Tensor | None], Tensor | float]
"""A diagonal: from a parameter's name, and indices of its rows or None, to its entries there."""

_CHUNK = 1 << 15  # pairs of sparse entries that are multiplied at a time
_BLOCK = 1 << 22  # numbers in two dense blocks of entries


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
    total = products_of(first.stored(), second.stored(), metric)
    if total is None:
        raise ValueError("the gradients have no parameter in common")
    return total


def products_of(left: Mapping[str, Tensor], right: Mapping[str, Tensor], metric: Metric | None) -> Tensor | None:
    """As `inner_products`, of gradients by name, dense or sparse; None if they have no name in common."""
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
    return total


def _scaled(rows: Tensor, scale: Tensor | float) -> Tensor:
    return rows if isinstance(scale, float) and scale == 1.0 else rows * scale


def _sparse(first: Tensor, second: Tensor, name: str, metric: Metric | None) -> Tensor:
    """Both sides [T, V, d]: ids of many tasks in dense blocks, the others' entries pair by pair."""
    counts = [torch.bincount(side.indices()[1], minlength=first.shape[1]) for side in (first, second)]
    pairs = counts[0] * counts[1]
    # A block holds a row for every task, whether it has the id or not; so much do so many pairs hold.
    often = (pairs > 0) & (2 * pairs >= first.shape[0] + second.shape[0])
    rare = (pairs > 0) & ~often
    common, left, right = often.nonzero().squeeze(1), _where(first, rare), _where(second, rare)
    return _paired(first, left, second, right, name, metric) + _in_blocks(first, second, common, name, metric)


def _where(side: Tensor, ids: Tensor) -> Tensor:
    """The entries whose id is one of these, given as BoolTensor[V]."""
    return ids[side.indices()[1]].nonzero().squeeze(1)


def _in_blocks(first: Tensor, second: Tensor, ids: Tensor, name: str, metric: Metric | None) -> Tensor:
    """The share of some ids: dense blocks [tasks, ids, d] of both sides, some ids at a time."""
    total = first.values().new_zeros(first.shape[0], second.shape[0])
    at = torch.full((first.shape[1],), -1, device=ids.device)
    step = max(1, _BLOCK // (first.shape[2] * sum(total.shape)))
    for some in torch.split(ids, step):
        at[some] = torch.arange(len(some), device=ids.device)
        one, other = _block(first, at, len(some)), _block(second, at, len(some))
        if metric is not None:
            other = _scaled(other, metric(name, some))
        total.addmm_(one.flatten(1), other.flatten(1).t())
        at[some] = -1
    return total


def _block(side: Tensor, at: Tensor, count: int) -> Tensor:
    """The entries whose id has a place, ``[tasks, count, d]``."""
    tasks, ids = side.indices()
    inside = (at[ids] >= 0).nonzero().squeeze(1)
    block = side.values().new_zeros(side.shape[0], count, side.shape[2])
    block[tasks[inside], at[ids[inside]]] = side.values()[inside]
    return block


def _paired(first: Tensor, left: Tensor, second: Tensor, right: Tensor, name: str, metric: Metric | None) -> Tensor:
    """Some entries of the one with those of the other that have the same id, some at a time."""
    (tasks, ids), (others, other_ids) = first.indices()[:, left], second.indices()[:, right]
    order = other_ids.argsort()
    low = torch.searchsorted(other_ids[order], ids)
    counts = torch.searchsorted(other_ids[order], ids, right=True) - low
    mine = torch.repeat_interleave(counts)
    start = counts.cumsum(0) - counts
    theirs = order[(low - start)[mine] + torch.arange(len(mine), device=ids.device)]
    total = first.values().new_zeros(first.shape[0] * second.shape[0])
    for one, other in zip(torch.split(mine, _CHUNK), torch.split(theirs, _CHUNK), strict=True):
        rows = second.values().index_select(0, right[other])
        if metric is not None:
            rows = _scaled(rows, metric(name, ids[one]))
        found = first.values().index_select(0, left[one]).mul_(rows).sum(1)  # several times as fast as vecdot
        total.index_add_(0, tasks[one] * second.shape[0] + others[other], found)
    return total.reshape(first.shape[0], second.shape[0])
