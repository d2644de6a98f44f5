"""UPGrad: Jacobian descent for multi-objective optimisation (Quinton and Rey, 2024)."""

from __future__ import annotations

from torch import Tensor

from steelyard.functional import dual_cone_weights
from steelyard.methods.combination import Combination
from steelyard.methods.job import Job


class UPGrad(Combination):
    """Every gradient projected onto the directions along which no task loses, exactly; then their mean.

    d = (1/k) Σ_i π(g_i), π the projection onto {d : ⟨d, g_t⟩ ≥ 0 for all t}   (Eq. 3)
    """

    name = "upgrad"
    summary = "each task's gradient projected onto the directions along which no task loses"
    paper = "Quinton and Rey 2024, Jacobian Descent for Multi-Objective Optimization"

    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """Eq. 3."""
        del tasks, job
        return dual_cone_weights(gram)
