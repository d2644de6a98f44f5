"""Rows of every task in each step, from several data sets of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, default_collate

from steelyard.errors import SteelyardError


class Together(Dataset[tuple[Any, ...]]):
    """Several data sets as one: its i-th row holds a row of each, so that every batch has rows of every task.

    It is as long as the longest; the rows of shorter ones come round again. Whatever shuffles it, splits it over
    processes or resumes in it does so for all of them.

    Args:
        datasets: Data sets with a length, by task.
    """

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        if not datasets:
            raise SteelyardError("Together needs at least one data set: {task: data set}")
        self.datasets = dict(datasets)
        for name, rows in self.datasets.items():
            if not len(rows):
                raise SteelyardError(f"task {name!r}: its data set has no rows")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.datasets)

    def __len__(self) -> int:
        return max(len(rows) for rows in self.datasets.values())

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(rows[index % len(rows)] for rows in self.datasets.values())


def collated(tasks: Sequence[str], collate: Callable[[list[Any]], Any] = default_collate) -> Callable[[Any], Any]:
    """A collator for rows of `Together`: ``{task: batch}``, each made by your own collator."""
    return _Collated(tuple(tasks), collate)


class _Collated:
    """A class, and not a closure, so that it goes to other processes."""

    def __init__(self, tasks: tuple[str, ...], collate: Callable[[list[Any]], Any]) -> None:
        self.tasks, self.collate = tasks, collate

    def __call__(self, rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        columns = zip(*rows, strict=True)
        return {task: self.collate(list(column)) for task, column in zip(self.tasks, columns, strict=True)}
