"""Covariance alignment: a matrix per task between its embeddings and the shared module, Z_t = X_t R_t."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from steelyard.model import names
from steelyard.model.stages import Stage, apart
from steelyard.tasks import Part

Matrix = Literal["full", "orthogonal", "low_rank"]


class Full(nn.Module):
    """R = I + D, D any matrix ``[d, d]``, 0 at the start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = nn.Parameter(torch.zeros(width, width))

    def forward(self, vectors: Tensor) -> Tensor:
        """``[..., d]`` to ``[..., d]``."""
        return vectors + vectors @ self.change


class LowRank(nn.Module):
    """R = I + D, D = U V of rank r; V is 0 at the start."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(width, rank) / width**0.5)
        self.up = nn.Parameter(torch.zeros(rank, width))

    def forward(self, vectors: Tensor) -> Tensor:
        """``[..., d]`` to ``[..., d]``."""
        return vectors + vectors @ self.down @ self.up


class Orthogonal(nn.Module):
    """R = exp(S), S skew-symmetric, 0 at the start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(width))
        orthogonal(self, "matrix", "matrix_exp")

    def forward(self, vectors: Tensor) -> Tensor:
        """``[..., d]`` to ``[..., d]``."""
        turned: Tensor = vectors @ self.matrix
        return turned


class Alignment(nn.Module):
    """The matrices R_t of some tasks at an embedding stage; the other tasks' rows go on as they are.

    At the start R_t = I, bitwise: the model says what it said without. Weight decay draws R_t towards I.

    Args:
        stage: Where the matrices stand.
        tasks: The tasks that get one.
        matrix: ``full``, ``orthogonal`` or ``low_rank``.
        rank: The rank of R_t - I, where it is low.
    """

    def __init__(self, stage: Stage, tasks: Iterable[str], matrix: Matrix = "full", rank: int = 8) -> None:
        super().__init__()
        self.stage = stage
        self._keys = {task: names.key(task) for task in tasks}
        made: dict[str, Callable[[], nn.Module]] = {
            "full": lambda: Full(stage.width),
            "orthogonal": lambda: Orthogonal(stage.width),
            "low_rank": lambda: LowRank(stage.width, min(rank, stage.width)),
        }
        self.matrices = nn.ModuleDict({key: made[matrix]() for key in self._keys.values()})

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a matrix."""
        return tuple(self._keys)

    def matrix(self, task: str) -> Tensor:
        """R_t, ``[d, d]``."""
        layer = self.matrices[self._keys[task]]
        like = next(layer.parameters())
        found: Tensor = layer(torch.eye(self.stage.width, dtype=like.dtype, device=like.device))
        return found

    def forward(self, values: Tensor, part: Part) -> Tensor:
        """What stands at the stage, with every task's rows multiplied by its own matrix.

        Args:
            values: ``[N, d]``, ``[N, L, d]`` or maps ``[N, d, H, W]``.
            part: The rows; no two tasks share any (`apart`).
        """
        vectors = self.stage.vectors(values)
        blocks = [self._block(member.task, vectors[member.rows]) for member in part.members]
        return self.stage.restored(torch.cat(blocks) if len(blocks) > 1 else blocks[0], values)

    def features(self, encoder: nn.Module, part: Part, ask: Callable[[Part], Tensor]) -> tuple[Part, Tensor]:
        """The encoder's features for a part's aligned rows, and the part to which they belong."""
        part = apart(part)
        return part, self.stage.through(encoder, part, ask, lambda values: self(values, part))

    def _block(self, task: str, vectors: Tensor) -> Tensor:
        if task not in self._keys:
            return vectors
        aligned: Tensor = self.matrices[self._keys[task]](vectors)
        return aligned
