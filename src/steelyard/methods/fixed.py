"""Weights that look at no data: the baselines and controls of every comparison."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from steelyard.errors import SteelyardError
from steelyard.methods import base
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job


class Single(Method):
    """The target alone: what it is worth to have no source at all."""

    name = "single"
    summary = "the target alone, no sources"
    paradigm = "single"
    needs_target = True

    class Options(base.Options):
        """Options of `Single`."""

        matched: bool = Field(default=False, description="take as many steps as training on all tasks would")

    options: Options

    @property
    def matched(self) -> bool:
        """The option of that name."""
        return self.options.matched


class Uniform(Method):
    """Every task counts the same."""

    name = "uniform"
    summary = "every task counts the same"

    def start(self, job: Job) -> None:
        """w_t = 1/T."""
        self.weights = torch.full_like(job.initial_weights, 1 / len(job.tasks))


class Joint(Method):
    """Every example counts the same: a task weighs as much as it has rows."""

    name = "joint"
    summary = "every example counts the same: weights in proportion to the tasks' sizes"

    def start(self, job: Job) -> None:
        """w_t = n_t / Σn."""
        self.weights = job.sizes / job.sizes.sum()


class Random(Method):
    """New random weights at every step; a control for anything that claims to learn weights."""

    name = "random"
    search: ClassVar[Search] = {"temperature": (0.3, 1.0, 3.0)}
    summary = "new random weights at every step (a control); also called rlw"
    paper = "Lin et al. 2022, Reasonable Effectiveness of Random Weighting"

    class Options(base.Options):
        """Options of `Random`."""

        temperature: float = Field(default=1.0, gt=0, description="softmax of normal noise divided by this")

    options: Options

    def step(self, job: Job) -> None:
        """W = softmax(z / temperature), z ~ N(0, I)."""
        noise = torch.randn(len(job.tasks), generator=job.generator)
        self.weights = (noise / self.options.temperature).softmax(0).to(job.initial_weights)
        super().step(job)


class Ramp(Method):
    """The target's weight grows on schedule, whatever the data say.

    It is what TAWT's published joint update amounts to for the target (its cosine with itself is 1), and so
    the control that a claim about learned joint weights has to beat.
    """

    name = "ramp"
    search: ClassVar[Search] = {"growth": (0.03, 0.1, 0.3, 1.0)}
    summary = "the target's weight grows by a fixed factor each epoch (a control)"
    needs_target = True

    class Options(base.Options):
        """Options of `Ramp`."""

        growth: float = Field(default=1.0, ge=0, description="the target's log-weight gains this in each epoch")

    options: Options

    def start(self, job: Job) -> None:
        """The paradigm's weights; the target has to be among the tasks."""
        if job.target is None:
            raise SteelyardError(
                "method 'ramp' raises the target's weight: train the target jointly, not by pre-training"
            )
        super().start(job)

    def after_epoch(self, job: Job) -> None:
        """w_0 ← w_0·exp(growth), renormalised."""
        logits = self.weights.log()
        logits[job.target] += self.options.growth
        self.weights = logits.softmax(0)
