"""Uncertainty weighting (Kendall, Gal and Cipolla, CVPR 2018)."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from steelyard.functional import uncertainty_losses
from steelyard.methods import base
from steelyard.methods._scales import LearnedScales
from steelyard.methods.job import Job
from steelyard.tasks import Kind, Suite


class Uncertainty(LearnedScales):
    """Every task has a noise level s_t, learned with the model: noisy tasks count for less.

    minimise the mean over t of L_t/s_t² + log s_t (classification) or L_t/(2s_t²) + log s_t (regression),
    in u_t = log s_t², from u = 0. Where u_t is stationary, L_t carries the weight 1/(2L_t).
    """

    name = "uncertainty"
    summary = "a noise level per task, learned with the model, by which its loss is divided"
    paper = "Kendall, Gal and Cipolla 2018, Multi-Task Learning Using Uncertainty to Weigh Losses"

    class Options(base.Options):
        """Options of `Uncertainty`."""

        regressions: tuple[str, ...] | None = Field(
            default=None, description="tasks whose loss is divided by 2s²; unset: regressions by their kind"
        )

    options: Options

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._regressions = set(self.options.regressions or ())

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Which tasks are regressions."""
        del seed
        if self.options.regressions is None:
            self._regressions = {name for name, task in suite.tasks.items() if task.kind is Kind.REGRESSION}
        return suite

    def scaled(self, losses: Tensor, scales: Tensor, job: Job) -> Tensor:
        """Eq. 7 for each task."""
        return uncertainty_losses(losses, scales, self._kinds(job, scales))

    def factors(self, scales: Tensor, job: Job) -> Tensor:
        """1/s², or half of it."""
        return (-scales).exp() * (1 - self._kinds(job, scales).to(scales) / 2)

    def _kinds(self, job: Job, like: Tensor) -> Tensor:
        """Which of the job's tasks are regressions, ``BoolTensor[T]``."""
        return torch.tensor([name in self._regressions for name in job.tasks], device=like.device)
