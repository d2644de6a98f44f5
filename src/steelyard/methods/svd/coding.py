"""Labels of every kind as columns of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.tasks import Inputs, Kind, Ragged, Task, labelled


@dataclass(frozen=True)
class Coding:
    """How a task's labels become columns y, ``[n, c]``: centred, of one size whatever their unit, 0 where missing.

    C classes are the C - 1 coordinates of their one-hot code within the plane that all codes lie in, so that no
    column can be had from the others: for two classes -1/√2 and 1/√2. Each of several labels, and each number of a
    regression, is a column.

    Attributes:
        codes: What stands for each class, ``[C, c]``; None for labels that are numbers.
        mean: What is subtracted, ``[c]``.
        scale: What the difference is multiplied with, ``[c]``.
        counts: How many labels there are, ``[c]``.
    """

    codes: Tensor | None
    mean: Tensor
    scale: Tensor
    counts: Tensor

    @classmethod
    def of(cls, task: Task, labels: Inputs, center: bool, standardize: bool) -> Coding:
        """The coding that fits these labels.

        Args:
            task: Whose labels.
            labels: Some of its labels.
            center: Subtract the columns' means.
            standardize: Give the task's columns together a mean square of 1: classes as a whole (their proportions to
                one another mean something), numbers each for itself.
        """
        classes = task.kind in (Kind.CLASSIFICATION, Kind.TAGGING)
        codes = _codes(task.outputs, center) if classes else None
        values = columns(labels, codes)
        given = ~values.isnan()
        counts = given.sum(0).double()
        mean = values.nanmean(0).nan_to_num() if center else values.new_zeros(values.shape[1])
        squares = torch.where(given, values - mean, 0.0).square().sum(0) / counts.clamp(min=1)
        # A column that says the same everywhere says nothing, not even what rounding left of it.
        size = torch.where(squares > 1e-20 * (mean.square() + squares), squares, 0.0)
        total = size.sum().expand_as(size) if classes else size * len(size)
        scale = torch.where(total > 0, total.rsqrt(), 0.0) if standardize else (size > 0).double()
        return cls(codes, mean, scale, counts)

    def __call__(self, labels: Tensor) -> Tensor:
        """``[n, c]`` in float64."""
        values = columns(labels, self.codes)
        return torch.where(values.isnan(), 0.0, (values - self.mean) * self.scale)


def columns(labels: Inputs, codes: Tensor | None) -> Tensor:
    """Labels as float64 ``[n, c]``, NaN where missing."""
    flat = labels.values if isinstance(labels, Ragged) else labels.cpu()
    if codes is None:
        return flat.view(len(flat), -1).double()
    flat = flat.flatten()
    given = labelled(flat)
    return torch.where(given[:, None], codes[flat.clamp(min=0)], torch.nan)


def _codes(classes: int, center: bool) -> Tensor:
    """Classes as points: an orthonormal basis of the one-hot codes' plane; uncentred, 0 and 1 as they are."""
    identity = torch.eye(classes, dtype=torch.float64)
    if not center or classes < 2:
        return identity[:, -1:] if classes <= 2 else identity
    # Helmert's contrasts: the k-th compares class k with those before it.
    below = torch.ones(classes, classes, dtype=torch.float64).tril(-1)[1:]
    contrasts = identity[1:] * torch.arange(1, classes)[:, None] - below
    codes: Tensor = (contrasts / contrasts.norm(dim=1, keepdim=True)).T
    return codes
