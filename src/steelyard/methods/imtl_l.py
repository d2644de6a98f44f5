"""IMTL-L: impartial losses (Liu et al., ICLR 2021)."""

from __future__ import annotations

from torch import Tensor

from steelyard.functional import impartial_losses
from steelyard.methods._scales import LearnedScales
from steelyard.methods.job import Job


class IMTLL(LearnedScales):
    """Every loss has a learned scale, so that all weighted losses come to one.

    minimise the mean over t of e^{s_t}·L_t − s_t, from s = 0   (Eq. 8)
    """

    name = "imtl_l"
    summary = "a scale per loss, learned with the model, that brings every weighted loss to one"
    paper = "Liu et al. 2021, Towards Impartial Multi-task Learning"

    def scaled(self, losses: Tensor, scales: Tensor, job: Job) -> Tensor:
        """Eq. 8 for each task."""
        del job
        return impartial_losses(losses, scales)

    def factors(self, scales: Tensor, job: Job) -> Tensor:
        """e^s."""
        del job
        return scales.exp()
