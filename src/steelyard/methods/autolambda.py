"""Auto-λ (Liu, James, Davison and Johns, TMLR 2022)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from steelyard.errors import SteelyardError
from steelyard.functional import rescale_weights
from steelyard.gradients import TaskGradients
from steelyard.methods import base
from steelyard.methods._adam import adam_step
from steelyard.methods._losses import require_all_tasks
from steelyard.methods._turns import with_dev_meta
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job
from steelyard.tasks import Role, Suite


class AutoLambda(Method):
    """Weights that lower the target's loss on rows that were kept out of training, one step ahead.

    In each step, from λ = (1, …, 1):

    1. G_t = ∇L_t(θ);  θ' = θ − η·(1/T) Σ_t λ_t G_t, the training's own step;
    2. ∂L_0(θ')/∂λ_t = −(η/T)·⟨∇L_0(θ'), G_t⟩ on held-out rows of the target   (Eq. 4);
    3. Adam on λ, clamped at 0 and rescaled to Σλ = T.

    L is linear in λ, so that 2 is exact where the paper takes finite differences; its step is looked ahead at, ours is
    taken. Rows that steer λ choose no model.
    """

    name = "autolambda"
    summary = "weights that lower the target's loss on held-out rows, one step ahead"
    paper = "Liu et al. 2022, Auto-Lambda: Disentangling Dynamic Task Relationships"
    needs_target = True
    search: ClassVar[Search] = {"rate": (0.0003, 0.001, 0.01)}
    cost = "1.1 steps, and as much again as the target's held-out rows cost"

    class Options(base.Options):
        """Options of `AutoLambda`."""

        rate: float = Field(default=0.001, gt=0, description="Adam's learning rate for λ")
        scope: str = Field(default="all", description="parameters of the derivative: all, shared, or an expression")
        size: int | None = Field(default=None, ge=1, description="held-out rows in a step; else the batch size")
        holdout: float = Field(
            default=0.5, gt=0, lt=1, description="share of the target's dev rows held out for λ, if it has no dev_meta"
        )

    options: Options

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Holds rows of the target out: of its dev rows, or a tenth of its training rows."""
        return with_dev_meta(suite, self.name, self.options.holdout, 0.1, seed)

    def start(self, job: Job) -> None:
        """λ = (1, …, 1)."""
        if job.target is None:
            raise SteelyardError("method 'autolambda' follows the target's loss: train it jointly, not by pre-training")
        require_all_tasks(self.name, job, "gradients")
        self.state["importance"] = torch.ones_like(job.initial_weights)
        self.weights = self.state["importance"] / len(job.tasks)

    def step(self, job: Job) -> None:
        """One step on the losses, then one on λ."""
        found = self.dissect(job, job.batch(), self.weights, self.options.scope)[1]
        job.then(lambda: self._follow(job, found))

    def _follow(self, job: Job, found: TaskGradients) -> None:
        """Eq. 4 where the step has led, and Adam on λ."""
        target = job.tasks[job.target or 0]
        held_out = job.draw(Role.DEV_META, self.options.size or job.batch_size, (target,))
        with job.probe(held_out, self.options.scope, (target,)) as probe:
            slopes = probe.products(found)[0]
        if bool(slopes.isfinite().all()):
            adam_step(self.state, "importance", -slopes, self.options.rate)
            self.state["importance"] = rescale_weights(self.state["importance"])
        self.weights = self.state["importance"] / len(job.tasks)
