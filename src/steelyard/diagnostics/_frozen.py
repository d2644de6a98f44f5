"""A representation that does not change: features of a task's rows, and the best head on them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steelyard.methods.tawt.heads import head_inputs
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Role, RowLoss, Suite, collate, labelled

PENALTIES = tuple(10.0**power for power in range(1, -6, -1))
"""The ridge penalties that are tried, for features of mean square length 1; the strongest first."""

CHUNK = 512
"""Rows in one encoder call."""

ITERATIONS = 60
"""Most iterations of L-BFGS for each penalty; the next starts where it ended."""

Chunk = tuple[Tensor, Tensor]
"""Features ``[n, d]`` (or ``[n, L, d]``) and labels of some rows."""


@dataclass(frozen=True)
class Features:
    """A task's rows as a head sees them, in float64 on the CPU.

    Attributes:
        train: The rows that heads are fitted to.
        held: The rows that they are judged on.
        loss: The task's row loss.
        head: A head to begin with.
    """

    train: list[Chunk]
    held: list[Chunk]
    loss: RowLoss
    head: nn.Module

    @classmethod
    def of(cls, model: SharedModel, suite: Suite, task: str) -> Features:
        """A task's rows in train and dev_select through a model's shared part."""
        train, held = ([_chunk(model, b, task) for b in batches(suite, task, r)] for r in (Role.TRAIN, Role.DEV_SELECT))
        return cls(train, held, suite[task].loss, copy.deepcopy(model.head(task)).cpu().double())

    def answered_by(self, heads: Sequence[tuple[nn.Module, float]], outputs: int) -> Features:
        """The same rows, with what some heads say of them, each times its weight, as the features of a linear head."""
        with torch.no_grad():
            train, held = (
                [(torch.cat([weight * head(x) for head, weight in heads], -1), y) for x, y in part]
                for part in (self.train, self.held)
            )
        return Features(train, held, self.loss, nothing_said(train[0][0].shape[-1], outputs))

    def shuffled(self, generator: torch.Generator) -> Features:
        """The same rows with their labels in random order."""
        return Features(_shuffled(self.train, generator), _shuffled(self.held, generator), self.loss, self.head)


@dataclass(frozen=True)
class Fitted:
    """min_f L(φ, f), the loss L*(φ) of a representation.

    Attributes:
        head: The head whose penalty is the best on all held-out rows.
        values: Each held-out row's loss under the penalty that is the best on the *other* half of them, ``[n]``.
        counts: How many labels each of these sums, ``[n]``.
    """

    head: nn.Module
    values: Tensor
    counts: Tensor

    @property
    def loss(self) -> float:
        """The mean loss on the held-out rows."""
        return float(self.values.sum() / self.counts.sum())


def best_head(features: Features) -> Fitted:
    """Fits a head to the training rows for each penalty, and judges it on the held-out rows.

    The penalty is chosen on one half of these for the other half: no row has a say in what it is judged with.
    """
    length = torch.cat([x.square().sum(-1).flatten() for x, _ in features.train]).mean().sqrt().clamp_min(1e-30)
    head, heads, losses = nn.Sequential(_Divide(float(length)), copy.deepcopy(features.head)), [], []
    for penalty in PENALTIES:
        _fit(head, features, penalty)
        heads.append(copy.deepcopy(head))
        with torch.no_grad():
            judged = [features.loss(head(x), y) for x, y in features.held]
        losses.append(torch.cat([values for values, _ in judged]))
        counts = torch.cat([count for _, count in judged])
    table = torch.stack(losses)  # [penalties, n]
    order = torch.randperm(table.shape[1], generator=torch.Generator().manual_seed(0))
    first = torch.zeros(table.shape[1], dtype=torch.bool)
    first[order[::2]] = True
    by_first, by_second = (int(table[:, half].sum(1).argmin()) for half in (first, ~first))
    values = torch.where(first, table[by_second], table[by_first])
    return Fitted(heads[int(table.sum(1).argmin())], values, counts)


def batches(suite: Suite, task: str, role: Role) -> Iterator[Batch]:
    """All rows of a task in a role, in pieces."""
    rows = suite[task].rows[role]
    for index in torch.split(torch.arange(len(rows)), CHUNK):
        yield collate([(rows.inputs, index, [(task, rows.labels)])], suite.spec.padding)


def _shuffled(part: list[Chunk], generator: torch.Generator) -> list[Chunk]:
    """Labels in random order; of tags those in each chunk, whose rows have one length."""
    if part and part[0][1].dim() > 1 and part[0][0].dim() == 3:
        return [(x, y[torch.randperm(len(y), generator=generator)]) for x, y in part]
    labels = torch.cat([y for _, y in part])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    return list(zip([x for x, _ in part], torch.split(labels, [len(y) for _, y in part]), strict=True))


def nothing_said(width: int, outputs: int) -> nn.Module:
    """A linear head of zeros; it takes no random numbers."""
    head = nn.Linear(width, outputs, device="meta", dtype=torch.float64).to_empty(device="cpu")
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head


def _chunk(model: SharedModel, batch: Batch, task: str) -> Chunk:
    device = next(model.parameters()).device
    labels = batch.parts[0].members[0].labels
    labels = labels.double() if labels.is_floating_point() else labels
    return head_inputs(model, batch.to(device), task).cpu().double(), labels


class _Divide(nn.Module):
    """Divides features, so that their scale is nothing to the penalty, nor to the optimiser."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, features: Tensor) -> Tensor:
        return features / self.by


def _fit(head: nn.Module, features: Features, penalty: float) -> None:
    """Moves a head to the minimum of the mean loss + penalty/2 · ‖W‖²; biases are free."""
    parameters = [p for p in head.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.dim() > 1]
    total = max(1, sum(int(labelled(y).sum()) for _, y in features.train))
    optimizer = torch.optim.LBFGS(parameters, max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([features.loss(head(x), y)[0].sum() for x, y in features.train]).sum() / total
        loss = loss + penalty / 2 * torch.stack([p.square().sum() for p in matrices]).sum()
        torch.autograd.backward(loss)
        return loss.detach()

    optimizer.step(objective)  # type: ignore[no-untyped-call]
