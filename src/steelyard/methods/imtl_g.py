"""IMTL-G: towards impartial multi-task learning (Liu et al., ICLR 2021)."""

from __future__ import annotations

from torch import Tensor

from steelyard.functional import impartial_weights
from steelyard.methods.combination import Combination
from steelyard.methods.job import Job


class IMTLG(Combination):
    """The direction whose projection on every task's unit gradient is the same.

    ⟨Σ_s λ_s g_s, u_t⟩ = ⟨Σ_s λ_s g_s, u_1⟩ for all t, u_t = g_t/‖g_t‖   (Eq. 6), with Σ|λ| = 1.
    """

    name = "imtl_g"
    summary = "the direction whose projection on every task's unit gradient is the same"
    paper = "Liu et al. 2021, Towards Impartial Multi-task Learning"
    range = "real"

    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """Eq. 6; weights may be negative."""
        del tasks, job
        return impartial_weights(gram)
