"""A discriminator that tells tasks apart by what their heads read, and the gradient against it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import cross_entropy

from steelyard.errors import SteelyardError
from steelyard.model import SharedModel
from steelyard.tasks import Batch


class Readings:
    """What the heads of some tasks read in a training forward, while it listens."""

    def __init__(self) -> None:
        self._read: dict[str, Tensor] | None = None

    def of(self, task: str, head: nn.Module) -> None:
        """Reads along with a head."""
        head.register_forward_pre_hook(partial(self._keep, task))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keeps what is read in this block."""
        self._read = {}
        try:
            yield
        finally:
            self._read = None

    def take(self, batch: Batch) -> dict[str, Tensor]:
        """What was read of a batch just now: each task's rows (or real tokens) ``[n, d]``."""
        found = {}
        for part in batch.parts:
            for member in part.members:
                features = (self._read or {})[member.task]
                if features.dim() > 2:
                    tokens = features if part.mask is None else features[part.mask[member.rows]]
                    features = tokens.reshape(-1, features.shape[-1])
                found[member.task] = features
        return found

    def _keep(self, task: str, head: nn.Module, given: tuple[Tensor, ...]) -> None:
        if self._read is not None and head.training:
            self._read[task] = given[0]


def require_one_process(name: str) -> None:
    """Refuses several processes: a discriminator sees the step's rows of one of them, and learns beside their sums."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise SteelyardError(f"method {name!r} has a discriminator, which several processes cannot share; train in one")


def shares(part: Batch, batch: Batch) -> dict[str, float]:
    """What part of a batch's rows of each task is in a micro-batch; 1 where it is the batch."""
    counts = [{m.task: m.rows.stop - m.rows.start for p in b.parts for m in p.members} for b in (part, batch)]
    return {task: count / counts[1][task] for task, count in counts[0].items()}


class Adversary(nn.Module):
    """A linear discriminator of tasks on the features that their heads share.

    Args:
        model: The model; its heads are listened to.

    Attributes:
        readings: What they read.
    """

    def __init__(self, model: SharedModel) -> None:
        super().__init__()
        self.readings, self._tasks = Readings(), model.tasks
        for task in model.tasks:
            self.readings.of(task, model.head(task))
        like = next((p for p in model.encoder.parameters() if p.is_floating_point()), torch.empty(0))
        self.discriminator = nn.Linear(model.width, len(model.tasks)).to(like)

    def penalty(self, part: Batch, batch: Batch, strength: float, threshold: float = 0.0) -> Tensor:
        """`loss` on a micro-batch that went through the model just now, by its share of the step's rows."""
        share = sum(len(p.inputs) for p in part.parts) / sum(len(p.inputs) for p in batch.parts)
        return share * self.loss(self.readings.take(part), strength, threshold)

    def loss(self, read: dict[str, Tensor], strength: float, threshold: float = 0.0) -> Tensor:
        """The discriminator's mean cross-entropy; against it goes ``strength`` times its gradient by the features.

        Args:
            read: Each task's features ``[n, d]``.
            strength: λ, of the reversed gradient; the discriminator learns at full strength.
            threshold: The loss at or below which no gradient reaches the features.
        """
        features = torch.cat(list(read.values()))
        places = [torch.full((len(rows),), self._tasks.index(task)) for task, rows in read.items()]
        watched = features.view_as(features)
        found = cross_entropy(self.discriminator(watched).float(), torch.cat(places).to(features.device))
        share = strength * (found.detach() > threshold)
        if watched.requires_grad:
            reverse = lambda gradient: -share.to(gradient) * gradient  # noqa: E731
            watched.register_hook(reverse)  # type: ignore[no-untyped-call]
        return found
