"""MGDA and MGDA-UB: multi-task learning as multi-objective optimisation (Sener and Koltun, NeurIPS 2018)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from steelyard.functional import frank_wolfe_weights, min_norm_weights
from steelyard.methods import base
from steelyard.methods.combination import Combination
from steelyard.methods.job import Job


class MGDA(Combination):
    """The shortest vector in the convex hull of the gradients: no task loses, and none could gain alone.

    λ = argmin over the simplex of ‖Σ_t λ_t g_t‖²   (Eq. 3)
    """

    name = "mgda"
    summary = "the shortest mixture of the tasks' gradients"
    paper = "Sener and Koltun 2018, Multi-Task Learning as Multi-Objective Optimization"

    class Options(base.Options):
        """Options of `MGDA`."""

        solver: Literal["exact", "frank_wolfe"] = Field(
            default="exact", description="active sets, or Frank-Wolfe from 1/T as published"
        )

    options: Options

    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """Eq. 3."""
        del tasks, job
        return min_norm_weights(gram) if self.options.solver == "exact" else frank_wolfe_weights(gram)


class MGDAUB(MGDA):
    """MGDA on the gradients by what the heads read, of which the shared parameters' are bounded by a constant.

    λ = argmin over the simplex of ‖Σ_t λ_t ∇_z L_t‖²   (Eq. 5)

    With rows of their own the tasks' gradients by z stand in different rows, so that λ_t ∝ 1/‖∇_z L_t‖².
    """

    name = "mgda_ub"
    summary = "MGDA on the gradients by the representation, at the price of the heads"
    cost = "1.1 steps"
    at = "representation"
