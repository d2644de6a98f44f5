"""MetaWeighting (Mao, Wang, Liu, Lin and Xie, Findings of ACL 2022)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.gradients import LayerTraces, TaskGradients
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job
from steelyard.methods.metaweighting.direction import common_direction, moved
from steelyard.methods.metaweighting.options import MetaWeightingOptions
from steelyard.tasks import Role, Suite, carve


class MetaWeighting(Method):
    """Tasks are weighted so that, after each step, every task's loss on its query rows is lower.

    Each training set is split once, by class, into support and query rows. From w = (1, …, 1), in each step k:

    1. Gˢ_t = ∇L_tˢ(θ^{k-1});  θ^k = θ^{k-1} - (η/T) Σ_t w_t Gˢ_t   (Eq. 9);
    2. G^q_t = ∇L_t^q(θ^k), at the new θ;
    3. D_tj = ∂L_t^q(θ^k)/∂w_j = -(η/T)·⟨G^q_t, Gˢ_j⟩   (Eq. 10), rows d_t;
    4. λ* = argmin over the simplex of ‖Σ_t λ_t d_t‖²   (Eq. 12);
    5. w ← w - α Σ_t λ*_t d_t   (Eq. 13), then clamped at 0 and rescaled to Σw = T.

    The step's own backward gives Gˢ. Query rows steer w in every step, so query loss is optimistic: the model is
    chosen on ``dev_select``, never on query rows.
    """

    name = "metaweighting"
    search: ClassVar[Search] = {"alpha": (0.03, 0.1, 0.5), "ratio": (0.1, 0.3)}
    summary = "weights that lower the loss of every task on rows kept out of training"
    paper = "Mao et al. 2022, MetaWeighting: Learning to Weight Tasks in Multi-Task Learning"
    scale_free = False
    cost = "1.1 steps, and as much again for a query batch as large as the step's"
    Options = MetaWeightingOptions

    options: MetaWeightingOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._pool: tuple[Suite, int] | None = None
        self._split = 0

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Keeps ρ of each task's training rows back as query rows; those that stay in ``train`` are the support."""
        self._pool, self._split = (suite, seed), 0
        return self._drawn(0)

    def start(self, job: Job) -> None:
        """W = (1, …, 1)."""
        self.state["importance"] = torch.ones(len(job.tasks), dtype=torch.float64, device=job.initial_weights.device)
        self.state["moved"] = torch.zeros(2, dtype=torch.float64)
        self._share(job)

    def step(self, job: Job) -> None:
        """Descends; then w answers to the query losses, if it is time."""
        self._take_turns(job)
        if job.step % self.options.every:
            self.descend(job, job.batch(), self.weights)
            return
        rate = job.rate
        take = self.dissect if self.options.gradient_memory == "whole" else self.trace
        support = take(job, job.batch(), self.weights, self.options.scope)[1]
        direction = common_direction(self._hypergradients(job, support, rate))
        before = self.state["importance"]
        self.state["importance"] = moved(before, direction, self.options.alpha, self.options.bounds)
        change = (self.state["importance"] - before).norm().cpu()
        self.state["moved"] = self.state["moved"] + torch.stack([change, torch.ones_like(change)]).to(
            self.state["moved"]
        )
        self._share(job)

    def notes(self) -> dict[str, float]:
        """The mean ‖Δw‖ of the updates since the last evaluation."""
        total, count = self.state["moved"].tolist()
        self.state["moved"] = torch.zeros_like(self.state["moved"])
        return {"mean_weight_move": total / max(count, 1)}

    def _hypergradients(self, job: Job, support: TaskGradients | LayerTraces, rate: float) -> Tensor:
        """D ``[T, T]``, with or without η."""
        size = self.options.query_size or job.batch_size
        metric = job.metric if self.options.form == "optimizer" else None
        with job.probe(job.draw(Role.QUERY, size), self.options.scope) as probe:
            products = probe.products(support, metric)
        return products * (-(rate if self.options.rate else 1.0) / len(job.tasks))

    def _share(self, job: Job) -> None:
        """The loop's weights are w/T: (1/T) Σ_t w_t L_t is what is minimised."""
        self.weights = (self.state["importance"] / len(job.tasks)).to(job.initial_weights)

    def _take_turns(self, job: Job) -> None:
        """Draws support and query rows anew every ``resplit`` epochs; which, depends on seed and epoch alone."""
        if self.options.resplit is None or (number := job.epoch // self.options.resplit) == self._split:
            return
        job.exchange(self._drawn(number))
        self._split = number

    def _drawn(self, number: int) -> Suite:
        """The suite with support and query rows, split for the ``number``-th time."""
        if self._pool is None:
            raise SteelyardError("method 'metaweighting' draws query rows in prepare(), before training")
        suite, seed = self._pool
        found = carve(suite, Role.QUERY, Role.TRAIN, self.options.ratio, seed + 1_000_003 * number)
        for name, task in found.tasks.items():
            if Role.TRAIN in task.rows and Role.QUERY not in task.rows:
                raise SteelyardError(
                    f"method 'metaweighting' needs query rows of every task, and {name!r} has no two labelled training "
                    "rows to split; give it more rows, or leave it out"
                )
        return found
