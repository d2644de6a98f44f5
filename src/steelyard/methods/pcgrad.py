"""PCGrad: gradient surgery for multi-task learning (Yu et al., NeurIPS 2020)."""

from __future__ import annotations

from torch import Tensor

from steelyard.functional import conflict_coefficients
from steelyard.methods.combination import Combination
from steelyard.methods.job import Job


class PCGrad(Combination):
    """Each gradient loses what works against another, one other after the next in random order; then their mean.

    Algorithm 1: g_i' = g_i; for every j ≠ i in random order, if ⟨g_i', g_j⟩ < 0: g_i' −= (⟨g_i', g_j⟩/‖g_j‖²) g_j.
    Published is the sum of the g_i', which is T times their mean.
    """

    name = "pcgrad"
    summary = "each task's gradient gives up what conflicts with another's"
    paper = "Yu et al. 2020, Gradient Surgery for Multi-Task Learning"

    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """Linear in the gradients, and so a weight for each."""
        del tasks
        return conflict_coefficients(gram, job.generator).mean(0)
