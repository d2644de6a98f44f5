"""GradVac: gradient vaccine (Wang, Tsvetkov, Firat and Cao, ICLR 2021)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from steelyard.functional import vaccine_coefficients
from steelyard.methods import base
from steelyard.methods.base import Search
from steelyard.methods.combination import Combination
from steelyard.methods.job import Job


class GradVac(Combination):
    """PCGrad with a goal for every pair: gradients less alike than they usually are get turned towards each other.

    For every j ≠ i in random order, if φ = cos(g_i', g_j) < φ̂_ij (Eq. 4):
    g_i' += ‖g_i'‖(φ̂_ij √(1−φ²) − φ √(1−φ̂_ij²)) / (‖g_j‖ √(1−φ̂_ij²)) · g_j; then φ̂_ij ← (1−β)φ̂_ij + βφ (Eq. 5).
    """

    name = "gradvac"
    search: ClassVar[Search] = {"decay": (0.001, 0.01, 0.1)}
    summary = "turns each gradient towards the others until they are as alike as they usually are"
    paper = "Wang et al. 2021, Gradient Vaccine"

    class Options(base.Options):
        """Options of `GradVac`."""

        decay: float = Field(default=0.01, ge=0, le=1, description="β: how fast the goals follow what is seen")

    options: Options

    def start(self, job: Job) -> None:
        """Goals of 0."""
        super().start(job)
        self.state["goals"] = torch.zeros(len(job.tasks), len(job.tasks), dtype=torch.float64)

    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """Eqs. 4 and 5."""
        goals, pairs = self.state["goals"], (tasks[:, None], tasks)
        mixing, moved = vaccine_coefficients(gram, goals[pairs].to(gram), self.options.decay, job.generator)
        self.state["goals"] = goals.index_put(tuple(p.to(goals.device) for p in pairs), moved.to(goals))
        return mixing.mean(0)
