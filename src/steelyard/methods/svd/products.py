"""θ_t = Z_tᵀ y_t for all tasks, over rows that never stand in memory together; and where features Z come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from steelyard.methods.svd.coding import Coding
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Inputs, Role, Suite, collate

CHUNK = 256

Features = Callable[[Batch, Mapping[str, Tensor]], dict[str, Tensor]]
"""From rows, and for each of their tasks some sums over them (``[k, n]``), to these sums of features, ``[k, d]``."""


def inputs(batch: Batch, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows themselves, flat."""
    part = batch.parts[0]
    return {m.task: sums[m.task] @ part.inputs[m.rows].flatten(1).double().cpu() for m in part.members}


def representation(model: SharedModel) -> Features:
    """What the heads read."""

    def features(batch: Batch, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            found = model.features(batch)
        return {task: sums[task] @ rows.flatten(0, -2).double().cpu() for task, rows in found.items()}

    return features


def tangent(model: SharedModel, scope: str, generator: torch.Generator) -> Features:
    """∇_φ⟨v, h(x)⟩: how φ moves a random reading v of the representation, the same for all tasks.

    With a linear encoder without bias that gives the weights that the inputs give. A sum of features is the gradient
    of a sum, so that a label column costs one backward, and no row's gradient is ever formed.
    """
    parameters = list(model.scope(scope, trainable=True).values())
    reading = torch.randn(model.width, generator=generator).to(parameters[0])

    def features(batch: Batch, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            task: rows_of(task, rows.flatten(0, -2) @ reading, sums) for task, rows in model.features(batch).items()
        }

    def rows_of(task: str, values: Tensor, sums: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([gradient(values, each) for each in sums[task].to(values)])

    def gradient(values: Tensor, weights: Tensor) -> Tensor:
        found = torch.autograd.grad(
            values, parameters, weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in found]).cpu()

    return features


def products(
    suite: Suite,
    codings: Mapping[str, Coding],
    chosen: Mapping[str, Tensor],
    features: Features,
    *,
    center: bool,
    folds: int = 1,
    device: torch.device | None = None,
) -> dict[str, Tensor]:
    """Every task's mean product of features and label columns, for each fold of its rows: ``[folds, c, d]``.

    Args:
        suite: The suite.
        codings: The tasks, and how their labels are read.
        chosen: Which of their training rows to take; tasks that share inputs take the same.
        features: Where features come from.
        center: Subtract the features' mean within each task.
        folds: Rows are dealt out to so many folds.
        device: Where the model is.
    """
    sums: dict[str, Tensor] = {}
    totals: dict[str, Tensor] = {}
    for batch, start in _batches(suite, codings, chosen, device):
        wanted = {m.task: _sums(codings[m.task](m.labels), m.rows, start, folds) for m in batch.parts[0].members}
        for task, found in features(batch, wanted).items():
            sums[task] = sums[task] + found if task in sums else found
            totals[task] = totals.get(task, 0.0) + wanted[task].sum(1)
    return {t: _means(sums[t], totals[t], codings[t].counts, center, folds) for t in codings}


def shared(suite: Suite, tasks: Sequence[str]) -> list[tuple[Inputs, list[str]]]:
    """Inputs, and the tasks that read them."""
    groups: dict[int, tuple[Inputs, list[str]]] = {}
    for name in tasks:
        rows = suite[name].rows[Role.TRAIN].inputs
        groups.setdefault(id(rows), (rows, []))[1].append(name)
    return list(groups.values())


def _batches(
    suite: Suite, tasks: Mapping[str, Coding], chosen: Mapping[str, Tensor], device: torch.device | None
) -> Iterator[tuple[Batch, int]]:
    """Chosen rows of each group of tasks, a chunk at a time, and how many of the group's rows came before."""
    for rows, names in shared(suite, list(tasks)):
        labels = [(name, suite[name].rows[Role.TRAIN].labels) for name in names]
        for number, index in enumerate(torch.split(chosen[names[0]], CHUNK)):
            batch = collate([(rows, index, labels)], suite.spec.padding)
            yield batch if device is None else batch.to(device), number * CHUNK


def _sums(columns: Tensor, rows: slice, start: int, folds: int) -> Tensor:
    """Each fold's label columns, and its ones (for the features' mean): ``[folds · (c + 1), n]``."""
    columns = torch.cat([columns, torch.ones(len(columns), 1, dtype=columns.dtype)], 1)
    count = rows.stop - rows.start
    fold = ((torch.arange(count) + start) % folds).repeat_interleave(len(columns) // count)
    mine = fold == torch.arange(folds)[:, None]
    return torch.einsum("fn,nc->fcn", mine.double(), columns).flatten(0, 1)


def _means(sums: Tensor, totals: Tensor, counts: Tensor, center: bool, folds: int) -> Tensor:
    sums, totals = sums.view(folds, len(counts) + 1, -1), totals.view(folds, -1)
    found = sums[:, :-1]
    if center:
        mean = sums[:, -1].sum(0) / totals[:, -1].sum()
        found = found - totals[:, :-1, None].to(found) * mean
    return found * (folds / counts.clamp(min=1))[:, None].to(found)
