"""Kinds of task: the loss of each row, and which labels count as given."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.tasks.rows import IGNORE


class Kind(StrEnum):
    """What a task predicts."""

    CLASSIFICATION = "classification"
    MULTILABEL = "multilabel"
    REGRESSION = "regression"
    TAGGING = "tagging"


RowLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(outputs, labels) -> (loss [N], count [N])``: each row's summed loss and how many labels it summed.

A task's loss on any set of rows is ``loss.sum() / count.sum()``: it is the same however the rows are cut into
micro-batches or spread over processes, and rows without a label cost nothing.
"""


def classification_loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of logits ``[N, C]`` and classes ``[N]``."""
    loss = F.cross_entropy(outputs, labels, ignore_index=IGNORE, reduction="none")
    return loss, (labels != IGNORE).to(loss.dtype)


def tagging_loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of logits ``[N, L, C]`` and tags ``[N, L]``, summed over each row's tokens."""
    loss = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="none")
    return loss.view_as(labels).sum(1), (labels != IGNORE).sum(1).to(loss.dtype)


def multilabel_loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Binary cross-entropy of logits ``[N, K]`` and 0/1 labels ``[N, K]``, summed over each row's labels."""
    given = ~labels.isnan()
    loss = F.binary_cross_entropy_with_logits(outputs, labels.nan_to_num(), reduction="none")
    return (loss * given).sum(1), given.sum(1).to(loss.dtype)


def regression_loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error of ``[N, K]`` predictions and labels ``[N]`` or ``[N, K]``, summed over each row's values."""
    labels = labels.view(len(labels), -1)
    given = ~labels.isnan()
    loss = (outputs - labels.nan_to_num()).square()
    return (loss * given).sum(1), given.sum(1).to(loss.dtype)


LOSSES: dict[Kind, RowLoss] = {
    Kind.CLASSIFICATION: classification_loss,
    Kind.MULTILABEL: multilabel_loss,
    Kind.REGRESSION: regression_loss,
    Kind.TAGGING: tagging_loss,
}

SUMS: dict[RowLoss, Callable[[Tensor, Tensor], Tensor]] = {
    classification_loss: lambda outputs, labels: F.cross_entropy(outputs, labels, reduction="sum"),
    multilabel_loss: lambda outputs, labels: F.binary_cross_entropy_with_logits(outputs, labels, reduction="sum"),
    regression_loss: lambda outputs, labels: F.mse_loss(outputs, labels.view_as(outputs), reduction="sum"),
}
"""The same losses summed over all rows, in one operation, for labels of which none is missing."""

METRICS: dict[Kind, str] = {
    Kind.CLASSIFICATION: "accuracy",
    Kind.MULTILABEL: "macro_f1",
    Kind.REGRESSION: "rmse",
    Kind.TAGGING: "accuracy",
}
"""The metric of a task that names none."""


def labelled(labels: Tensor) -> Tensor:
    """Which of these labels are given: true where a label is neither `IGNORE` nor NaN."""
    return ~labels.isnan() if labels.is_floating_point() else labels != IGNORE


def dtype_of(kind: Kind) -> torch.dtype:
    """The dtype of a kind's labels."""
    return torch.long if kind in (Kind.CLASSIFICATION, Kind.TAGGING) else torch.float32
