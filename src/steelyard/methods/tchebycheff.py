"""The Tchebycheff procedure, plain and adversarial (Mao, Yun, Liu and Du, ACL 2020)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.methods import base
from steelyard.methods._adversary import Adversary, require_one_process
from steelyard.methods._losses import require_all_tasks
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job
from steelyard.model import SharedModel
from steelyard.tasks import Batch


class Tchebycheff(Method):
    """In each step only the task with the largest loss counts: it reaches every Pareto optimum, also a concave one.

    minimise max_t p_t L_t, p the user's preferences.

    With ``adversarial`` λ > 0 a discriminator tells tasks apart by the shared features. It learns all the time; λ times
    its gradient, reversed, reaches the encoder while its own loss exceeds ``threshold``.
    """

    name = "tchebycheff"
    summary = "the task with the largest loss takes the step; a task discriminator as an option"
    paper = "Mao et al. 2020, Tchebycheff Procedure for Multi-task Text Classification"
    range = "nonnegative"
    search: ClassVar[Search] = {"adversarial": (0.0, 0.01, 0.05)}

    class Options(base.Options):
        """Options of `Tchebycheff`."""

        preferences: dict[str, PositiveFloat] = Field(default={}, description="p of some tasks, by name; else 1")
        adversarial: float = Field(
            default=0.0, ge=0, description="λ of the reversed gradient (TchebycheffAdv); 0: none"
        )
        threshold: float | None = Field(
            default=None, ge=0, description="the discriminator's loss above which λ counts; unset: half of log T"
        )

    options: Options

    def adapt(self, model: SharedModel) -> None:
        """The discriminator."""
        if self.options.adversarial:
            model.add_module("method", Adversary(model))

    def start(self, job: Job) -> None:
        """Preferences of the job's tasks."""
        require_all_tasks(self.name, job, "losses")
        if self.options.adversarial:
            require_one_process(self.name)
        for task in self.options.preferences:
            if task not in job.model.tasks:
                hint = did_you_mean(task, job.model.tasks) or f"the tasks are {', '.join(job.model.tasks)}"
                raise SteelyardError(f"method 'tchebycheff', preferences: there is no task {task!r}; {hint}")
        self.weights = torch.full_like(job.initial_weights, 1 / len(job.tasks))

    def step(self, job: Job) -> None:
        """One step on the largest of the weighted losses."""
        given = [self.options.preferences.get(task, 1.0) for task in job.tasks]
        preferences = torch.tensor(given, dtype=self.weights.dtype, device=self.weights.device)

        def largest(losses: Tensor) -> Tensor:
            scores = torch.where(losses != 0, preferences * losses, -torch.inf)
            self.weights = preferences * torch.nn.functional.one_hot(scores.argmax(), len(losses)).to(preferences)
            return self.weights

        if not self.options.adversarial:
            self.descend(job, job.batch(), largest)
            return
        adversary = job.model.get_submodule("method")
        assert isinstance(adversary, Adversary)  # noqa: S101  `adapt` made it
        threshold = self.options.threshold
        threshold = math.log(len(job.tasks)) / 2 if threshold is None else threshold

        batch = job.batch()

        def penalty(part: Batch) -> Tensor:
            return adversary.penalty(part, batch, self.options.adversarial, threshold)

        with adversary.readings.listening():
            self.descend(job, batch, largest, penalty=penalty)
