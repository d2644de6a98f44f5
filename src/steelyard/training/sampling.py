"""How many rows, or how many steps, each task gets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.tasks import Suite
from steelyard.training.settings import Training


def shares(training: Training, sizes: Sequence[int]) -> list[float]:
    """What part of the rows each task gets by its size, without own batch sizes; they sum to 1."""
    if training.sampling == "balanced":
        counts = [1.0] * len(sizes)
    elif training.sampling == "temperature":
        counts = [n ** (1 / training.temperature) for n in sizes]
    else:
        counts = [float(n) for n in counted(training, sizes)]
    return [count / sum(counts) for count in counts]


def counted(training: Training, sizes: Sequence[int]) -> list[int]:
    """The rows that count: all, or with a cap at most that many of a task."""
    return [n if training.cap is None else min(n, training.cap) for n in sizes]


def rows_per_step(training: Training, sizes: Sequence[int], own: Sequence[int | None]) -> list[int]:
    """The rows of each task in a step.

    Args:
        training: The settings.
        sizes: The tasks' rows.
        own: The batch size that a task was given, if it was. The others share theirs.
    """
    rows = [float(training.batch_size if given is None else given) for given in own]
    others = [place for place, given in enumerate(own) if given is None]
    if training.batching == "all_tasks" and others:
        parts = shares(training, [sizes[place] for place in others])
        for place, part in zip(others, parts, strict=True):
            rows[place] = training.batch_size * len(others) * part
    return [min(n, max(1, round(count * training.accumulate))) for n, count in zip(sizes, rows, strict=True)]


def steps_per_epoch(training: Training, sizes: Sequence[int], rows: Sequence[int]) -> list[int]:
    """With one task per step: how many steps of an epoch are each task's."""
    own = [math.ceil(n / count) for n, count in zip(counted(training, sizes), rows, strict=True)]
    if training.sampling in ("proportional", "capped"):
        return own
    parts = [1.0] * len(own)
    if training.sampling == "temperature":
        parts = [part / count for part, count in zip(shares(training, sizes), rows, strict=True)]
    return [max(1, round(sum(own) * part / sum(parts))) for part in parts]


def own_sizes(training: Training, suite: Suite, groups: Sequence[Sequence[str]]) -> list[int | None]:
    """The batch size that each group of tasks (which share their rows) was given, if it was."""
    for name in training.batch_sizes:
        if name not in suite.tasks:
            hint = did_you_mean(name, suite.tasks) or f"the tasks are {', '.join(suite.tasks)}"
            raise SteelyardError(f"training.batch_sizes: there is no task {name!r}; {hint}")
    found: list[int | None] = []
    for names in groups:
        given = {name: training.batch_sizes[name] for name in names if name in training.batch_sizes}
        if len(set(given.values())) > 1:
            said = ", ".join(f"{name} = {size}" for name, size in given.items())
            raise SteelyardError(
                f"training.batch_sizes: {said}, but these tasks share their rows and are drawn together; "
                "give one of them a size, or all the same"
            )
        found.append(next(iter(given.values()), None))
    return found
