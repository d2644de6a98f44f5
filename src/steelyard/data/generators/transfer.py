"""The synthetic tasks of information transfer (Wu, Zhang and Ré 2020, Sections 2.3 and B.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.tasks import Kind, Role, Rows, Suite, Task

Link = Literal["linear", "logistic", "relu"]
"""How labels follow from Xθ: y = Xθ; y = 1 with probability σ(Xθ); y = ReLU(Xθ)."""

Order = Literal["RQD", "RDQ"]
"""Where the rotation stands. In X = RQD, as printed, it cancels: R is Gaussian, so that RQ is Gaussian too and the
covariance is D², the same for every Q. In X = RDQ it is QᵀD²Q."""


@dataclass(frozen=True)
class Source:
    """A source, as it is to the target.

    Attributes:
        rows: Training rows.
        cosine: cos(θ, θ of the target).
        covariance: The target's own, or one that varies in other directions.
        noise: The deviation of what is added to labels, in deviations of these; for ``logistic`` the share of labels
            that is flipped.
    """

    rows: int
    cosine: float = 0.96
    covariance: Literal["same", "different"] = "same"
    noise: float = 0.0


@dataclass(frozen=True)
class Made:
    """Generated tasks, and what they were made of.

    Attributes:
        suite: The tasks; the target is called ``target``.
        parameters: θ of each task, ``[d]`` of length 1, or ``[d, r]``.
        covariances: The covariance that each task's rows are drawn with, ``[d, d]``.
    """

    suite: Suite
    parameters: Mapping[str, Tensor]
    covariances: Mapping[str, Tensor]


def transfer_tasks(
    sources: Mapping[str, Source],
    *,
    target_rows: int = 9_000,
    target_noise: float = 0.0,
    link: Link = "linear",
    order: Order = "RQD",
    dim: int = 100,
    condition: float = 100.0,
    spiked: float = 0.1,
    held_rows: int = 1_000,
    seed: int = 0,
) -> Made:
    """A target, and sources whose models and covariances are as near to its own as you say (Figures 3, 7 and 9).

    Rows are X = RQD or RDQ: R is Gaussian, Q a rotation, D is ``condition`` on a set S of ``spiked · dim`` coordinates
    and 1 on the others. A source of the same covariance has the target's Q and D; all sources of a different one have
    another Q, and S disjoint from the target's. Test and dev rows are drawn as train rows are, without noise.

    Args:
        sources: The sources by name.
        target_rows: The target's training rows.
        target_noise: Its noise (see `Source`).
        link: How labels follow from Xθ.
        order: Where the rotation stands.
        dim: d.
        condition: κ, the largest entry of D.
        spiked: The share of the coordinates that have it.
        held_rows: Rows in dev, and in test, of each task.
        seed: Of everything.
    """
    count = round(spiked * dim)
    if not 0 < count <= dim // 2 or condition <= 0:
        raise SteelyardError(
            f"transfer tasks: {count} of {dim} coordinates cannot be two disjoint sets of a condition number "
            f"{condition:g}; give spiked in (0, 0.5] and a positive condition"
        )
    draw = torch.Generator().manual_seed(seed)
    theta = _unit(torch.randn(dim, generator=draw, dtype=torch.float64))
    order_of = torch.randperm(dim, generator=draw)
    shapes = {
        name: _shape(rotation(dim, draw), order_of[k * count : (k + 1) * count], condition, order)
        for k, name in enumerate(("same", "different"))
    }
    given = {"target": Source(target_rows, 1.0, "same", target_noise), **sources}
    parameters = {name: turned(theta, each.cosine, draw, name) for name, each in given.items()}
    tasks = []
    for number, (name, each) in enumerate(given.items()):
        own = torch.Generator().manual_seed(seed * 1_000_003 + number + 1)
        tasks.append(_task(name, each, parameters[name][:, None], shapes[each.covariance], link, held_rows, own))
    covariances = {name: shapes[each.covariance].mT @ shapes[each.covariance] for name, each in given.items()}
    return Made(Suite(tasks, target="target"), parameters, covariances)


def subspace_tasks(
    cosine: float,
    *,
    target_rows: int = 100,
    source_rows: int = 1_000,
    link: Literal["relu", "logistic"] = "relu",
    rank: int = 10,
    dim: int = 100,
    noise: float = 0.1,
    as_published: bool = False,
    held_rows: int = 1_000,
    seed: int = 0,
) -> Made:
    """A target and a source of r neurons each, y = Σ ReLU(XΘ) + ε, with isotropic rows (Figure 8).

    Θ of the target is a random d×r rotation, and that of the source cΘ + √(1 − c²)Θ', Θ' orthogonal to it: c is the
    cosine of all principal angles.

    Args:
        cosine: c, from 0 to 1.
        target_rows: The target's training rows.
        source_rows: The source's.
        link: ``relu``, or classes: whether the sum is above its mean over all inputs.
        rank: r.
        dim: d, at least 2r.
        noise: The deviation of ε, in deviations of the labels; for ``logistic`` the share of flipped labels.
        as_published: Θ of the source is cΘ + (1 − c)Θ' as printed, whose cosine is c/√(c² + (1 − c)²).
        held_rows: Rows in dev, and in test, of each task.
        seed: Of everything.
    """
    if not 0 <= cosine <= 1 or 2 * rank > dim:
        raise SteelyardError(
            f"subspace tasks: a cosine from 0 to 1 and a dim of at least {2 * rank} (twice the rank), not {cosine:g} "
            f"and {dim}"
        )
    draw = torch.Generator().manual_seed(seed)
    basis = rotation(dim, draw)
    first, other = basis[:, :rank], basis[:, rank : 2 * rank]
    second = cosine * first + ((1 - cosine) if as_published else math.sqrt(1 - cosine**2)) * other
    identity = torch.eye(dim, dtype=torch.float64)
    parameters = {"target": first, "source": second}
    how = "relu" if link == "relu" else "above"
    tasks = []
    for number, (name, rows) in enumerate({"target": target_rows, "source": source_rows}.items()):
        own = torch.Generator().manual_seed(seed * 1_000_003 + number + 1)
        tasks.append(_task(name, Source(rows, noise=noise), parameters[name], identity, how, held_rows, own))
    return Made(Suite(tasks, target="target"), parameters, dict.fromkeys(parameters, identity))


def rotation(dim: int, draw: torch.Generator) -> Tensor:
    """A random orthogonal matrix, ``[d, d]`` in float64."""
    basis, upper = torch.linalg.qr(torch.randn(dim, dim, generator=draw, dtype=torch.float64))
    found: Tensor = basis * upper.diagonal().sign()
    return found


def turned(theta: Tensor, cosine: float, draw: torch.Generator, name: str = "source") -> Tensor:
    """A random vector of length 1 at this cosine from one of length 1."""
    if not -1 <= cosine <= 1:
        raise SteelyardError(f"source {name!r}: {cosine:g} is no cosine; give a number from -1 to 1")
    across = torch.randn(len(theta), generator=draw, dtype=torch.float64)
    across = _unit(across - (across @ theta) * theta)
    return cosine * theta + math.sqrt(1 - cosine**2) * across


def _unit(vector: Tensor) -> Tensor:
    found: Tensor = vector / vector.norm()
    return found


def _shape(turn: Tensor, spikes: Tensor, condition: float, order: Order) -> Tensor:
    """What Gaussian rows are multiplied with: QD, or DQ."""
    scale = torch.ones(len(turn), dtype=torch.float64)
    scale[spikes] = condition
    return turn * scale if order == "RQD" else scale[:, None] * turn


def _task(
    name: str, source: Source, theta: Tensor, shape: Tensor, link: str, held_rows: int, draw: torch.Generator
) -> Task:
    rows: dict[Role, Rows] = {}
    for role, count in ((Role.TRAIN, source.rows), (Role.DEV_SELECT, held_rows), (Role.TEST, held_rows)):
        inputs = torch.randn(count, len(shape), generator=draw, dtype=torch.float64) @ shape
        labels = _labels(inputs @ theta, theta, link, source.noise if role is Role.TRAIN else 0.0, draw)
        rows[role] = Rows(inputs.float(), labels, f"generated {name}")
    if link in ("logistic", "above"):
        return Task(name, Kind.CLASSIFICATION, rows, outputs=2)
    return Task(name, Kind.REGRESSION, rows, metric="spearman")


def _labels(scores: Tensor, theta: Tensor, link: str, noise: float, draw: torch.Generator) -> Tensor:
    """Labels from Xθ ``[n, r]``, with noise."""
    if noise < 0:
        raise SteelyardError(f"transfer tasks: a noise of {noise:g} is negative")
    if link == "logistic":
        classes = torch.rand(len(scores), generator=draw, dtype=torch.float64) < scores[:, 0].sigmoid()
    elif link == "above":
        # The mean of ReLU(z), z normal with deviation ‖θ‖.
        classes = scores.relu().sum(1) > theta.norm(dim=0).sum() / (2 * math.pi) ** 0.5
    else:
        clean = scores.sum(1) if link == "linear" else scores.relu().sum(1)
        return (
            clean + noise * clean.std(correction=0) * torch.randn(len(clean), generator=draw, dtype=torch.float64)
        ).float()
    return (classes ^ (torch.rand(len(scores), generator=draw) < noise)).long()
