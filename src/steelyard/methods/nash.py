"""Nash-MTL: multi-task learning as a bargaining game (Navon et al., ICML 2022)."""

from __future__ import annotations

from torch import Tensor

from steelyard.functional import bargaining_weights
from steelyard.methods.combination import Combination
from steelyard.methods.job import Job


class Nash(Combination):
    """The agreement of tasks that bargain: the direction with the largest product of the tasks' gains.

    (GᵀG)λ = 1/λ, λ > 0   (Eq. 2), scaled to Σλ = 1 so that the step is as long as the gradients are.
    """

    name = "nash"
    summary = "the direction with the largest product of the tasks' gains"
    paper = "Navon et al. 2022, Multi-Task Learning as a Bargaining Game"

    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """Eq. 2."""
        del tasks, job
        return bargaining_weights(gram)
