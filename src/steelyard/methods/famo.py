"""FAMO: fast adaptive multitask optimization (Liu, Feng, Stone and Liu, NeurIPS 2023)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from steelyard.functional import amortised_gradient, amortised_weights
from steelyard.methods import base
from steelyard.methods._adam import adam_step
from steelyard.methods._losses import require_all_tasks
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job


class FAMO(Method):
    """The logarithms of all losses fall at the same rate, learned from how they fall.

    From ξ = 0, in each step: one step along Σ_t w_t ∇L_t, w_t ∝ softmax(ξ)_t / L_t   (Eq. 8); then Adam on
    ξ with the gradient Jᵀ(log L(θ_k) − log L(θ_{k+1})) + γξ on the same rows   (Eq. 9).
    """

    name = "famo"
    summary = "the logarithms of all losses fall at one rate, without any task's gradient"
    paper = "Liu et al. 2023, FAMO: Fast Adaptive Multitask Optimization"
    search: ClassVar[Search] = {"rate": (0.005, 0.025), "decay": (0.001, 0.01)}
    cost = "1 step and a forward"

    class Options(base.Options):
        """Options of `FAMO`."""

        rate: float = Field(default=0.025, gt=0, description="the learning rate of ξ")
        decay: float = Field(default=0.001, ge=0, description="γ: how strongly ξ is drawn back to even weights")

    options: Options

    def start(self, job: Job) -> None:
        """ξ = 0."""
        require_all_tasks(self.name, job, "losses")
        self.state["logits"] = torch.zeros_like(job.initial_weights)
        super().start(job)

    def step(self, job: Job) -> None:
        """Eq. 8, then Eq. 9."""
        logits, batch = self.state["logits"], job.batch()
        before = self.descend(job, batch, lambda losses: amortised_weights(logits, losses))
        self.weights = amortised_weights(logits, before)

        def answer() -> None:
            gradient = amortised_gradient(logits, before, job.measure(batch))
            adam_step(self.state, "logits", gradient, self.options.rate, decay=self.options.decay)

        job.then(answer)
