"""BanditMTL (Mao, Wang, Liu, Lin and Hu, ACL 2021)."""

from __future__ import annotations

import math
import warnings
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from steelyard.functional import bandit_weights
from steelyard.methods import base
from steelyard.methods._losses import latest, require_all_tasks
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job


class Bandit(Method):
    """An adversary leans on the tasks with large losses, never further from even weights than a radius.

    In each step, from p = (1/T, …): p_t ∝ (p_t·exp(η L_t))^{1/(1+λ)}, λ ≥ 0 the root of KL(p‖uniform) = ρ (0 if the
    step stays inside); then one step on Σ_t p_t L_t. L are the raw losses.
    """

    name = "bandit"
    summary = "tasks with large losses gain weight, within a radius around even weights"
    paper = "Mao et al. 2021, BanditMTL: Bandit-based Multi-task Learning for Text Classification"
    scale_free = False
    search: ClassVar[Search] = {"eta": (0.1, 0.5, 2.0), "radius": (0.1, 0.3, None)}

    class Options(base.Options):
        """Options of `Bandit`."""

        eta: float = Field(default=0.5, ge=0, description="η: the step of mirror ascent")
        radius: float | None = Field(default=None, ge=0, description="ρ, in nats; unset: half of log T")

    options: Options

    def start(self, job: Job) -> None:
        """P = (1/T, …, 1/T)."""
        require_all_tasks(self.name, job, "losses")
        most = math.log(len(job.tasks))
        if self.options.radius is not None and self.options.radius >= most > 0:
            warnings.warn(
                f"method 'bandit': radius {self.options.radius:.3g} never binds; over {len(job.tasks)} tasks no "
                f"weights are further than log T = {most:.3g} from even ones",
                stacklevel=2,
            )
        self.weights = job.initial_weights.new_full((len(job.tasks),), 1 / len(job.tasks))

    def step(self, job: Job) -> None:
        """P answers to the step's losses, then θ to p."""
        self.descend(job, job.batch(), self._answer)

    def _answer(self, losses: Tensor) -> Tensor:
        """The next p, from the losses ``[T]``."""
        most, radius = math.log(len(losses)), self.options.radius
        radius = most / 2 if radius is None else radius
        bound = radius if radius < most else math.inf
        self.weights = bandit_weights(self.weights, latest(self.state, losses), self.options.eta, bound)
        return self.weights
