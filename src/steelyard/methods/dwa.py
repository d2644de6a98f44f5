"""Dynamic weight average (Liu, Johns and Davison, CVPR 2019)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from steelyard.functional import average_weights
from steelyard.methods import base
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job


class DWA(Method):
    """Tasks whose loss has fallen least from one epoch to the next gain weight.

    w_t ∝ exp(r_t/τ), r_t = L_t(last epoch) / L_t(the epoch before)   (Eq. 7); even for the first two epochs.
    """

    name = "dwa"
    summary = "tasks whose loss fell least in the last epoch gain weight"
    paper = "Liu, Johns and Davison 2019, End-to-End Multi-Task Learning with Attention"

    search: ClassVar[Search] = {"temperature": (0.5, 2.0, 5.0)}

    class Options(base.Options):
        """Options of `DWA`."""

        temperature: float = Field(default=2.0, gt=0, description="τ: the larger, the more even")

    options: Options

    def start(self, job: Job) -> None:
        """Even weights."""
        self.weights = torch.full_like(job.initial_weights, 1 / len(job.tasks))
        for name in ("sum", "steps", "last", "before"):
            self.state[name] = torch.zeros_like(self.weights)

    def step(self, job: Job) -> None:
        """One step, whose losses are remembered."""
        losses = self.descend(job, job.batch(), self.weights)
        self.state["sum"] = self.state["sum"] + losses
        self.state["steps"] = self.state["steps"] + (losses != 0)

    def after_epoch(self, job: Job) -> None:
        """Eq. 7."""
        del job
        mean = self.state["sum"] / self.state["steps"].clamp(min=1)
        self.state["before"], self.state["last"] = self.state["last"], mean
        self.weights = average_weights(mean, self.state["before"], self.options.temperature)
        self.state["sum"], self.state["steps"] = torch.zeros_like(mean), torch.zeros_like(mean)
