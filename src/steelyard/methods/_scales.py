"""A scale for each task's loss that is learned with the model: what uncertainty and IMTL-L share."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from steelyard.methods._losses import require_all_tasks
from steelyard.methods.base import Method
from steelyard.methods.job import Job
from steelyard.model import SharedModel


class Scales(nn.Module):
    """One number per task, 0 at the start."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(tasks))


class LearnedScales(Method):
    """The mean over the tasks of each loss under its learned scale; the training's own optimiser moves the scales.

    They are parameters of the model, ``method.values``, without weight decay. Tasks without a label in the step leave
    theirs alone.
    """

    range: ClassVar[Literal["simplex", "nonnegative", "real"]] = "nonnegative"
    scale_free = False

    @abstractmethod
    def scaled(self, losses: Tensor, scales: Tensor, job: Job) -> Tensor:
        """Each task's loss ``[T]`` under its scale ``[T]``."""

    @abstractmethod
    def factors(self, scales: Tensor, job: Job) -> Tensor:
        """What each loss is multiplied with, ``[T]``: the slope of `scaled`."""

    def adapt(self, model: SharedModel) -> None:
        """A scale for each task."""
        model.add_module("method", Scales(len(model.tasks)))

    def start(self, job: Job) -> None:
        """Every scale is 0, every loss counts in full."""
        require_all_tasks(self.name, job, "losses")
        self.weights = self.factors(self._values(job).detach(), job) / len(job.tasks)

    def step(self, job: Job) -> None:
        """One step on model and scales together."""
        values = self._values(job)

        def objective(losses: Tensor) -> Tensor:
            return (self.scaled(losses, values, job) * (losses.detach() != 0)).mean()

        self.weights = self.factors(values.detach(), job) / len(job.tasks)
        self.minimise(job, job.batch(), objective, self.weights)

    def _values(self, job: Job) -> Tensor:
        """The scales of the job's tasks, ``[T]``."""
        values: Tensor = job.model.get_submodule("method").values  # type: ignore[assignment]
        return values[[job.model.tasks.index(name) for name in job.tasks]]
