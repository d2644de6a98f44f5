"""Rows sorted into their tasks: segment sums and per-task outer products.

Every reduction from rows to tasks in this package goes through `Groups`. When the rows come sorted by task
and in equal numbers the reductions are plain views and batched products; otherwise rows are sorted once per
tensor and each task is a slice. Neither pads, so unequal tasks cost no more arithmetic than equal ones.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


class Groups:
    """The task of every row.

    Args:
        rows: LongTensor[N], the task of each row.
        tasks: the number of tasks T; tasks without a row are allowed and get zeros.
    """

    def __init__(self, rows: Tensor, tasks: int) -> None:
        self.rows = rows
        self.tasks = tasks
        self.sizes: list[int] = torch.bincount(rows, minlength=tasks).tolist()
        self.is_sorted = bool((rows[1:] >= rows[:-1]).all())
        self._repeats: dict[tuple[int, bool], Groups] = {}

    def __len__(self) -> int:
        """The number of rows N."""
        return self.rows.numel()

    @cached_property
    def equal(self) -> bool:
        """Whether rows are sorted and every task has the same positive number of them."""
        return self.is_sorted and len(self) > 0 and len(set(self.sizes)) == 1

    @cached_property
    def order(self) -> Tensor:
        """LongTensor[N] that sorts the rows by task."""
        return torch.argsort(self.rows, stable=True)

    def repeated(self, times: int, *, interleave: bool) -> Groups:
        """Groups of N·k rows: each row k times in a row, or the whole batch k times over."""
        if times == 1:
            return self
        key = (times, interleave)
        if key not in self._repeats:
            rows = self.rows.repeat_interleave(times) if interleave else self.rows.repeat(times)
            self._repeats[key] = Groups(rows, self.tasks)
        return self._repeats[key]

    def singles(self) -> Groups:
        """Every row as a task of its own, for quantities per row."""
        return Groups(torch.arange(len(self), device=self.rows.device), len(self))

    def sort(self, x: Tensor) -> Tensor:
        """Tensor[N, ...] in the order of the tasks; the tensor itself when it is in order already."""
        return x if self.is_sorted else x.index_select(0, self.order)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """The rows of each task: T tensors [n_t, ...]."""
        return torch.split(self.sort(x), self.sizes)

    def sum(self, x: Tensor) -> Tensor:
        """Sum of the rows of each task: [N, ...] to [T, ...]."""
        if self.equal:
            return x.reshape(self.tasks, self.sizes[0], *x.shape[1:]).sum(1)
        return x.new_zeros((self.tasks, *x.shape[1:])).index_add_(0, self.rows, x)

    def sum_positions(self, x: Tensor) -> Tensor:
        """Sum over the rows of each task and over all positions: [N, m, d] to [T, d]."""
        if self.equal:
            return x.reshape(self.tasks, -1, x.shape[-1]).sum(1)
        return self.sum(x.sum(1))

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """Sum of outer products per task: [N, m, o] and [N, m, i] to [T, o, i]."""
        wide, deep = left.shape[-1], right.shape[-1]
        if self.equal:
            first = left.reshape(self.tasks, -1, wide)
            return torch.bmm(first.transpose(1, 2), right.reshape(self.tasks, -1, deep))
        out = left.new_empty(self.tasks, wide, deep)
        for task, (g, a) in enumerate(zip(self.split(left), self.split(right), strict=True)):
            torch.mm(g.reshape(-1, wide).t(), a.reshape(-1, deep), out=out[task])
        return out

    def fold(self, kernel: Tensor, positions: int) -> Tensor:
        """Sum a kernel between all positions to one between tasks: [N·m, N·m] to [T, T]."""
        rows = self.rows.repeat_interleave(positions)
        half = kernel.new_zeros(self.tasks, kernel.shape[1]).index_add_(0, rows, kernel)
        return kernel.new_zeros(self.tasks, self.tasks).index_add_(0, rows, half.t())
