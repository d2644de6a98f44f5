"""Smaller training sets, by number or in proportion to the target's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from steelyard.data import splits
from steelyard.errors import SteelyardError
from steelyard.tasks import Role, Rows, Suite, Task


def with_sizes(suite: Suite, sizes: Mapping[str, int | float], seed: int = 0) -> Suite:
    """The same suite with smaller training sets, each class in proportion.

    Tasks that share rows, and are given the same size, share those that are kept.

    Args:
        suite: Any suite.
        sizes: By task, a number of rows (``500``), or a ratio to the target's rows (``8.0``, a float): to those
            that the target keeps. A target's own ratio is the share of its rows that it keeps.
        seed: Of the draw.

    Raises:
        SteelyardError: If a task is not there, or has fewer rows than are asked for.
    """
    unknown = sorted(set(sizes) - set(suite.tasks))
    if unknown:
        raise SteelyardError(f"sizes: there is no task {unknown[0]!r}, only {', '.join(suite.tasks)}")
    counts = _counts(suite, sizes)
    drawn: dict[tuple[int, int], tuple[Tensor, Rows]] = {}
    tasks = []
    for name, task in suite.tasks.items():
        data = dict(task.rows)
        if name in counts:
            data[Role.TRAIN] = _shrunk(task, counts[name], seed, drawn)
        tasks.append(task.with_rows(data))
    return suite.with_tasks(tasks)


def _counts(suite: Suite, sizes: Mapping[str, int | float]) -> dict[str, int]:
    """How many rows each of the tasks keeps."""
    base = suite[suite.target].size() if suite.target else None
    own = sizes.get(suite.target) if suite.target else None
    if base is not None and own is not None:
        base = round(own * base) if isinstance(own, float) else own
    counts = {}
    for name, size in sizes.items():
        if isinstance(size, float) and base is None:
            raise SteelyardError(f"task {name!r}: a size ratio needs a target; give a number of rows")
        count = base if name == suite.target else round(size * (base or 0)) if isinstance(size, float) else size
        if count is None or not 0 < count <= suite[name].size():
            raise SteelyardError(
                f"task {name!r} has {suite[name].size()} training rows, {count} are asked for; ask for fewer"
            )
        counts[name] = count
    return counts


def _shrunk(task: Task, count: int, seed: int, drawn: dict[tuple[int, int], tuple[Tensor, Rows]]) -> Rows:
    rows = task.rows[Role.TRAIN]
    key = (id(rows.inputs), count)
    if key not in drawn:
        chosen = torch.from_numpy(np.sort(splits.draw(splits.strata(rows.labels, task.kind), count, seed, task.name)))
        drawn[key] = (chosen, rows.select(chosen))
    chosen, first = drawn[key]
    if len(chosen) == len(rows):
        return rows
    kept = rows.select(chosen)
    return Rows(first.inputs, kept.labels, kept.origin, kept.lines)
