"""Conflicting gradients: PCGrad, on gradients or on their Gram matrix."""

from collections.abc import Mapping
from typing import overload

import torch
from torch import Generator, Tensor

from steelyard.functional._tensors import Rows, gram_matrix, narrow_type, require_finite, require_square, wide


@overload
def project_conflicts(gradients: Tensor, generator: Generator | None = None) -> Tensor: ...


@overload
def project_conflicts(gradients: Mapping[str, Tensor], generator: Generator | None = None) -> dict[str, Tensor]: ...


def project_conflicts(gradients: Rows, generator: Generator | None = None) -> Tensor | dict[str, Tensor]:
    """Return PCGrad's gradients: each g_i with its conflicts with the other tasks projected out.

    For every i the other tasks j are visited in random order, and where ⟨g_i, g_j⟩ < 0 the running g_i loses
    its part along the *original* g_j. Sum the rows for the update. Without conflict the result is the input.

    Args:
        gradients: `Tensor[T, ...]`, or `{parameter name: Tensor[T, *shape]}`.
        generator: source of the random orders (on the host).

    Returns:
        the projected gradients, in the same form.
    """
    mixing = conflict_coefficients(gram_matrix(gradients), generator)
    if isinstance(gradients, Tensor):
        return _mix(mixing, gradients)
    return {name: _mix(mixing, rows) for name, rows in gradients.items()}


def conflict_coefficients(gram: Tensor, generator: Generator | None = None) -> Tensor:
    """Return the matrix C with which PCGrad's gradients are C @ gradients, from the Gram matrix alone.

    PCGrad is linear in the original gradients, so its decisions need inner products only. `C.sum(0)` weighs
    the tasks' losses so that one backward gives PCGrad's update, with no gradient stored.

    Args:
        gram: `Tensor[T, T]` of inner products.
        generator: source of the random orders (on the host).

    Returns:
        `Tensor[T, T]`, the identity if no two tasks conflict.
    """
    require_square(gram, "the Gram matrix")
    require_finite(gram, "the Gram matrix")
    tasks = len(gram)
    lengths = wide(gram).diagonal().clamp_min(0).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    cosines: list[list[float]] = (wide(gram) * inverse[:, None] * inverse).tolist()
    steps = [[0.0] * tasks for _ in range(tasks)]
    for task in range(tasks):
        overlaps = cosines[task]
        for other in torch.randperm(tasks, generator=generator).tolist():
            overlap = overlaps[other]
            if other != task and overlap < 0:
                steps[task][other] -= overlap
                overlaps = [old - overlap * own for old, own in zip(overlaps, cosines[other], strict=True)]
    mixing = torch.tensor(steps, dtype=lengths.dtype, device=gram.device) * lengths[:, None] * inverse
    mixing = torch.where(torch.eye(tasks, dtype=torch.bool, device=gram.device), 1.0, mixing)
    return mixing.to(narrow_type(gram))


def _mix(mixing: Tensor, rows: Tensor) -> Tensor:
    """Return the rows' combinations, in the rows' own type."""
    return (mixing.to(rows.dtype) @ rows.reshape(len(rows), -1)).reshape(rows.shape)
