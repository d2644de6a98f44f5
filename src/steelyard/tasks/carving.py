"""Carving rows of one role out of another, so that a method gets the roles it needs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from steelyard.tasks.kinds import Kind, labelled
from steelyard.tasks.rows import Ragged, Rows
from steelyard.tasks.task import Role, Suite


def carve(
    suite: Suite, role: Role, out_of: Role, fraction: float, seed: int, tasks: Iterable[str] | None = None
) -> Suite:
    """A suite in which some rows of ``out_of`` have become rows of ``role``.

    Rows that several tasks share stay shared; the draw is seeded, and stratified by class where a task has rows of
    its own and enough of them. A task with two labels or more keeps one on either side. A task that has rows of
    ``role`` already, or has no two labelled rows of ``out_of``, is left as it is.

    Args:
        suite: The suite; it is not changed.
        role: The new role.
        out_of: The role that loses rows; it keeps at least one.
        fraction: The share of the rows that moves, at least one row.
        seed: The seed of the draw.
        tasks: The tasks to carve; by default all.
    """
    chosen = set(suite.tasks if tasks is None else tasks)
    carved: dict[int, tuple[Tensor, Tensor, Rows, Rows]] = {}
    made = []
    for name, task in suite.tasks.items():
        rows = task.rows.get(out_of)
        if name not in chosen or rows is None or role in task.rows or int(_has_label(rows).sum()) < 2:
            made.append(task)
            continue
        key = id(rows.inputs)
        if key not in carved:
            moved, kept = _split(rows, task.kind, fraction, torch.Generator().manual_seed(seed))
            carved[key] = (moved, kept, rows.select(moved), rows.select(kept))
        moved, kept, first_moved, first_kept = carved[key]
        data = dict(task.rows)
        data[role] = _with_inputs(rows.select(moved), first_moved)
        data[out_of] = _with_inputs(rows.select(kept), first_kept)
        made.append(task.with_rows(data))
    return suite.with_tasks(made)


def _with_inputs(rows: Rows, like: Rows) -> Rows:
    """The same rows with another's inputs object, which is how rows are known to be shared."""
    return Rows(like.inputs, rows.labels, rows.origin, rows.lines)


def _split(rows: Rows, kind: Kind, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows that move and rows that stay, each in the old order."""
    n = len(rows)
    order = torch.randperm(n, generator=generator)
    count = min(n - 1, max(1, round(fraction * n)))
    if kind is Kind.CLASSIFICATION and isinstance(rows.labels, Tensor):
        # Take the rows whose rank within their class comes first, in proportion: every class gives its share.
        labels = rows.labels[order]
        rank = torch.empty(n)
        for value in torch.unique(labels).tolist():
            places = (labels == value).nonzero()[:, 0]
            rank[places] = (torch.arange(len(places)) + 0.5) / len(places)
        order = order[rank.argsort(stable=True)]
    order = _with_labels_on_both_sides(order, count, _has_label(rows))
    moved = order[:count].sort().values
    stays = torch.ones(n, dtype=torch.bool)
    stays[moved] = False
    return moved, stays.nonzero()[:, 0]


def _has_label(rows: Rows) -> Tensor:
    """Which rows have a label at all, ``BoolTensor[N]``."""
    if isinstance(rows.labels, Ragged):
        number = torch.repeat_interleave(torch.arange(len(rows)), rows.labels.lengths)
        return torch.zeros(len(rows)).index_add_(0, number, labelled(rows.labels.values).float()) > 0
    given = labelled(rows.labels)
    return given.flatten(1).any(1) if given.dim() > 1 else given


def _with_labels_on_both_sides(order: Tensor, count: int, given: Tensor) -> Tensor:
    """The order with a labelled row swapped in before, or after, the first ``count``, where there is none."""
    places = given[order].nonzero()[:, 0]
    first, last = int(places[0]), int(places[-1])
    order = order.clone()
    if first >= count:
        order[[count - 1, first]] = order[[first, count - 1]]
    elif last < count:
        order[[count, last]] = order[[last, count]]
    return order
