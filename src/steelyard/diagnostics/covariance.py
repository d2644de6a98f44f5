"""Covariance similarity of tasks, from one pass over rows that need not fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from steelyard import gradients
from steelyard.errors import SteelyardError
from steelyard.functional import covariance_similarities
from steelyard.model import SharedModel
from steelyard.tasks import Ragged, Role, Suite, collate
from steelyard.training import batching

CHUNK = 1024
ENCODER_CHUNK = 256

Place = Literal["inputs", "embeddings", "representation"]
"""What is compared: the rows; the vectors that the shared part of a model gets of them; what its heads read."""


class Moments:
    """The running mean and second moments of rows, in one pass and in memory for d² numbers.

    Chunks are multiplied in the rows' own precision and summed in float64, about the mean of the first chunk: a mean
    far from zero costs no digits of the centred covariance.
    """

    def __init__(self) -> None:
        self.count = 0
        self._origin = self._sum = self._products = torch.empty(0)

    @classmethod
    def of(cls, chunks: Iterable[Tensor] | Tensor) -> Self:
        """The moments of all rows of some chunks ``[n, d]``, or of one tensor, which may be mapped from a file."""
        found = cls()
        for chunk in [chunks] if isinstance(chunks, Tensor) else chunks:
            found.add(chunk)
        return found

    def add(self, rows: Tensor) -> None:
        """Takes rows in, ``[n, d]``."""
        if rows.dim() != 2:
            raise SteelyardError(f"covariance: rows must be [n, d], not {list(rows.shape)}; flatten them first")
        if self.count and rows.shape[1] != len(self._origin):
            raise SteelyardError(f"covariance: rows of {rows.shape[1]} numbers after rows of {len(self._origin)}")
        for chunk in torch.split(rows, CHUNK):
            if len(chunk):
                self._take(chunk if chunk.is_floating_point() else chunk.double())

    def merge(self, other: Self) -> None:
        """Takes in all rows that another one has seen."""
        if not other.count:
            return
        if not self.count:
            self.count, self._origin, self._sum, self._products = (
                other.count,
                other._origin,
                other._sum,
                other._products,
            )
            return
        shift = other._origin - self._origin
        cross = torch.outer(other._sum, shift)
        moved = other._products + cross + cross.T + other.count * torch.outer(shift, shift)
        self.count += other.count
        self._sum = self._sum + other._sum + other.count * shift
        self._products = self._products + moved

    def covariance(self, center: bool = False) -> Tensor:
        """XᵀX/n, or the covariance about the mean; ``[d, d]`` in float64."""
        if not self.count:
            raise SteelyardError("covariance: there are no rows")
        mean = self._sum / self.count
        about_mean = self._products / self.count - torch.outer(mean, mean)
        if center:
            return about_mean
        mean = mean + self._origin
        return about_mean + torch.outer(mean, mean)

    def _take(self, chunk: Tensor) -> None:
        chunk = chunk if chunk.dtype in (torch.float32, torch.float64) else chunk.float()
        if not self.count:
            self._origin = chunk.mean(0).double().cpu()
            self._sum = torch.zeros_like(self._origin)
            self._products = torch.zeros(len(self._origin), len(self._origin), dtype=torch.float64)
        chunk = chunk - self._origin.to(chunk)
        self.count += len(chunk)
        self._sum += chunk.sum(0, dtype=torch.float64).cpu()
        self._products += (chunk.mT @ chunk).double().cpu()


@dataclass(frozen=True)
class Similarities:
    """How alike the covariances of tasks are.

    Attributes:
        tasks: Their names.
        values: ``[k, k]``, symmetric; the published score of a task with itself is not one.
        at: What was compared.
    """

    tasks: tuple[str, ...]
    values: Tensor
    at: str

    def __getitem__(self, pair: tuple[str, str]) -> float:
        first, second = (self.tasks.index(name) for name in pair)
        return float(self.values[first, second])

    def rows(self) -> list[list[float]]:
        """The matrix as lists, as `steelyard.report.drawing.heatmap` takes it."""
        found: list[list[float]] = self.values.tolist()
        return found


def similarity(a: Moments, b: Moments, *, mass: float = 0.99, center: bool = False, normalized: bool = False) -> float:
    """`steelyard.functional.covariance_similarity` of rows that were seen in one pass.

    Args:
        a: Of one task's rows.
        b: Of another's.
        mass: The share of the trace to keep.
        center: Compare covariances about the means.
        normalized: The form that is one for equal covariances.
    """
    return float(_scores({"first": a, "second": b}, mass, center, normalized)[0, 1])


def covariance_similarity(
    suite: Suite,
    model: SharedModel | None = None,
    *,
    at: Place | None = None,
    role: Role | str = Role.TRAIN,
    rows: int | None = None,
    mass: float = 0.99,
    center: bool = False,
    normalized: bool = False,
    seed: int = 0,
) -> Similarities:
    """The similarity of all pairs of a suite's tasks.

    Args:
        suite: The tasks.
        model: A model whose embeddings are compared; its alignment matrices count.
        at: What is compared; by default a model's ``embeddings``, and the ``inputs`` where there is none.
        role: Whose rows.
        rows: At most so many rows of each task, drawn at random; by default all.
        mass: The share of each covariance's trace to keep.
        center: Compare covariances about the means.
        normalized: The form that is one for equal covariances.
        seed: Of the draw.
    """
    at = at or ("inputs" if model is None else "embeddings")
    if at != "inputs" and model is None:
        raise SteelyardError(f"covariance similarity of the {at} needs a model; give it one")
    found = {name: Moments() for name in suite.tasks}
    for name, vectors in _vectors(suite, model, at, Role(role), rows, seed):
        found[name].add(vectors)
    return Similarities(tuple(found), _scores(found, mass, center, normalized), at)


def _scores(moments: dict[str, Moments], mass: float, center: bool, normalized: bool) -> Tensor:
    covariances = {name: each.covariance(center) for name, each in moments.items()}
    sizes = {name: len(matrix) for name, matrix in covariances.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise SteelyardError(
            f"covariance similarity: the tasks' rows have different widths ({listed}); compare what a model makes of "
            "them, at = 'representation'"
        )
    for name, matrix in covariances.items():
        if not matrix.isfinite().all() or not bool((matrix != 0).any()):
            why = "all rows are equal" if center else "all rows are zero"
            raise SteelyardError(f"task {name!r}: {why if matrix.isfinite().all() else 'rows are not finite numbers'}")
    return covariance_similarities(list(covariances.values()), mass, normalized)


def _vectors(
    suite: Suite, model: SharedModel | None, at: Place, role: Role, rows: int | None, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Chunks of each task's vectors; the encoder is asked once about rows that tasks share."""
    generator = torch.Generator().manual_seed(seed)
    for group in batching.groups(suite, tuple(suite.tasks), role):
        inputs: Any = group.inputs
        index = torch.arange(len(inputs))
        if rows is not None and rows < len(inputs):
            index = torch.randperm(len(inputs), generator=generator)[:rows].sort().values
        if model is None or at == "inputs":
            if isinstance(inputs, Ragged):
                raise SteelyardError(
                    f"task {group.tasks[0][0]!r} reads words, which have no covariance; compare a model's embeddings"
                )
            for chunk in torch.split(index, CHUNK):
                yield from ((name, inputs[chunk].flatten(1)) for name, _ in group.tasks)
            continue
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with torch.no_grad(), gradients.pure(model):
            for chunk in torch.split(index, ENCODER_CHUNK):
                batch = collate([(inputs, chunk, group.tasks)], suite.spec.padding).to(device)
                found = model.embeddings(batch) if at == "embeddings" else model.features(batch)
                yield from ((name, values.flatten(0, -2)) for name, values in found.items())
