"""CAGrad: conflict-averse gradient descent (Liu, Liu, Jin, Stone and Liu, NeurIPS 2021)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from steelyard.functional import conflict_averse_weights
from steelyard.methods import base
from steelyard.methods.base import Search
from steelyard.methods.combination import Combination
from steelyard.methods.job import Job


class CAGrad(Combination):
    """Near the mean gradient g_0, the direction along which the worst task gains most.

    max_d min_t ⟨g_t, d⟩ subject to ‖d − g_0‖ ≤ c‖g_0‖   (Eq. 3), solved through its dual (Eq. 5):
    d = g_0 + c‖g_0‖ g_w/‖g_w‖, w = argmin over the simplex of ⟨g_w, g_0⟩ + c‖g_0‖‖g_w‖.
    """

    name = "cagrad"
    search: ClassVar[Search] = {"radius": (0.2, 0.5, 0.8)}
    summary = "the direction near the mean gradient along which the worst task gains most"
    paper = "Liu et al. 2021, Conflict-Averse Gradient Descent for Multi-task Learning"

    class Options(base.Options):
        """Options of `CAGrad`."""

        radius: float = Field(default=0.5, ge=0, description="c: how far from the mean, in its own lengths")
        rescale: bool = Field(default=False, description="divide the step by 1 + c, as long as the mean at the most")

    options: Options

    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """Eq. 5."""
        del tasks, job
        found = conflict_averse_weights(gram, self.options.radius)
        return found / (1 + self.options.radius) if self.options.rescale else found
