"""TAWT's tasks of a known distance (Chen et al. 2022, Figure 3): teachers of data with ever more flipped labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.tasks import Kind, Role, Rows, Suite, Task

TAWT_FIGURE_3: Final[Mapping[str, int]] = MappingProxyType(
    {"dim": 1_000, "classes": 10, "hidden": 4_096, "points": 10_000, "source_rows": 10_000}
)
"""The paper's sizes: ``flip_rate_tasks(rates, **TAWT_FIGURE_3)``. Each teacher then takes minutes."""

BATCH = 100
LARGEST_RATE = 1e-2
FITTED = 1e-2
"""Teachers are done when they are right on every point and their mean loss is below this."""

LONGEST = 2_000
"""Passes, after which a teacher that has not fitted its points never will."""


def flip_rate_tasks(
    rates: Sequence[float] | Mapping[str, float],
    *,
    target_rows: int = 100,
    source_rows: int = 1_000,
    held_rows: int = 1_000,
    dim: int = 100,
    classes: int = 10,
    hidden: int = 256,
    points: int = 1_000,
    seed: int = 0,
) -> Suite:
    """A target, and a source for each flip rate: the larger the rate, the farther the source.

    As in the paper: ``points`` inputs, uniform on [-0.5, 0.5] in each of ``dim`` dimensions, get random labels.
    For a flip rate q, a share q of them gets a new random label, and a network with one hidden layer (the
    *teacher*) is trained until it fits its points. Teachers label fresh inputs: the target's are labelled by the
    teacher of q = 0, a source's by the teacher of its own q. So q = 0 is the target's own task, and at q = 1 a
    source agrees with the target no more often than by chance.

    The flipped points are nested: those of a smaller rate, with their new labels, are among those of a larger
    one. All teachers start from the same parameters and are trained in one computation. The defaults are a tenth
    of the paper's sizes (`TAWT_FIGURE_3`) and take seconds.

    Args:
        rates: The flip rate of each source in [0, 1], by name; in a list they are called ``flip-0.2``.
        target_rows: Training rows of the target (the paper's figure goes from 10 to 10 000).
        source_rows: Training rows of each source.
        held_rows: Rows in dev, and in test, of every task.
        dim: Features of a row.
        classes: Classes of every task.
        hidden: The width of the teachers; give the student the same.
        points: The points that teachers are fitted to.
        seed: Of everything.

    Returns:
        A suite with the target ``target``; every task has rows of its own in train, dev and test.
    """
    named = dict(rates) if isinstance(rates, Mapping) else {f"flip-{q:g}": float(q) for q in rates}
    for name, q in named.items():
        if not 0 <= q <= 1:
            raise SteelyardError(f"flip rate {q:g} of {name!r} is no share; give numbers from 0 to 1")
    distinct = sorted({0.0, *named.values()})
    generator = torch.Generator().manual_seed(seed)
    inputs = _uniform(points, dim, generator)
    labels = flipped(points, classes, distinct, generator)
    teachers = Teachers(dim, hidden, classes, len(distinct), generator)
    teachers.fit(inputs, labels, generator)

    def task(number: int, name: str, q: float, train: int) -> Task:
        own = torch.Generator().manual_seed(seed * 1_000_003 + number + 1)
        rows = {}
        for role, count in ((Role.TRAIN, train), (Role.DEV_SELECT, held_rows), (Role.TEST, held_rows)):
            drawn = _uniform(count, dim, own)
            rows[role] = Rows(drawn, teachers.answers(drawn, distinct.index(q)), f"teacher of flip rate {q:g}")
        return Task(name, Kind.CLASSIFICATION, rows, map(str, range(classes)))

    sources = [task(k, name, q, source_rows) for k, (name, q) in enumerate(named.items(), 1)]
    return Suite([task(0, "target", 0.0, target_rows), *sources], target="target")


def flipped(points: int, classes: int, rates: Sequence[float], generator: torch.Generator) -> Tensor:
    """Random labels, of which a share of each rate is drawn anew: ``LongTensor[rates, points]``."""
    labels = torch.randint(classes, (points,), generator=generator)
    others = torch.randint(classes, (points,), generator=generator)
    rank = torch.randperm(points, generator=generator)
    counts = torch.tensor([round(q * points) for q in rates])
    return torch.where(rank < counts[:, None], others, labels)


def _uniform(count: int, dim: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, dim, generator=generator) - 0.5


class Teachers:
    """Networks with one hidden layer that start alike and are fitted side by side, each to labels of its own.

    Attributes:
        parameters: Weights and biases of both layers, the networks in the first dimension.
    """

    def __init__(self, dim: int, hidden: int, classes: int, count: int, generator: torch.Generator) -> None:
        shapes = (((dim, hidden), dim), ((1, hidden), dim), ((hidden, classes), hidden), ((1, classes), hidden))
        drawn = [(2 * torch.rand(shape, generator=generator) - 1) / fan**0.5 for shape, fan in shapes]
        self.parameters = [one.expand(count, *one.shape).clone() for one in drawn]

    def outputs(self, inputs: Tensor) -> Tensor:
        """``[N, dim]`` to ``[networks, N, classes]``."""
        return _forward(inputs, self.parameters)

    def answers(self, inputs: Tensor, network: int) -> Tensor:
        """One network's classes, ``LongTensor[N]``."""
        return _forward(inputs, [p[network : network + 1] for p in self.parameters])[0].argmax(1)

    def fit(self, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> None:
        """Trains until every network is right on all its points.

        Args:
            inputs: ``[N, dim]``.
            labels: ``LongTensor[networks, N]``.
            generator: Of the order of the points.

        Raises:
            SteelyardError: If they cannot be fitted.
        """
        points = len(inputs)
        hidden = self.parameters[0].shape[2]
        for parameter in self.parameters:
            parameter.requires_grad_()
        # 1e-2 for narrow teachers, and near the paper's 3e-4 at its width.
        optimiser = torch.optim.Adam(self.parameters, lr=min(LARGEST_RATE, 2.56 / hidden))
        for _ in range(LONGEST):
            right, total = torch.zeros(()), torch.zeros(())
            for rows in torch.split(torch.randperm(points, generator=generator), BATCH):
                outputs = self.outputs(inputs[rows]).flatten(0, 1)
                wanted = labels[:, rows].flatten()
                loss = F.cross_entropy(outputs, wanted, reduction="sum")
                optimiser.zero_grad()
                (loss / len(rows)).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                right += (outputs.argmax(1) == wanted).sum()
                total += loss.detach()
            if right == labels.numel() and total / labels.numel() < FITTED:
                break
        else:
            raise SteelyardError(
                f"teachers of width {hidden} cannot fit {points} points of {inputs.shape[1]} dimensions; "
                "give fewer points, or a larger hidden or dim"
            )
        for parameter in self.parameters:
            parameter.requires_grad_(requires_grad=False)


def _forward(inputs: Tensor, parameters: list[Tensor]) -> Tensor:
    first, bias, second, shift = parameters
    return torch.relu(inputs @ first + bias) @ second + shift
