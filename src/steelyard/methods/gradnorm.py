"""GradNorm (Chen, Badrinarayanan, Lee and Rabinovich, ICML 2018)."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import torch
from pydantic import Field

from steelyard.functional import gradnorm_targets, rescale_weights
from steelyard.methods import base
from steelyard.methods._losses import latest, require_all_tasks
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job


class GradNorm(Method):
    """Tasks are weighted so that their gradients have one length at the last shared layer, longer where they lag.

    With Σw = T, in each step:

    1. one step on (1/T) Σ_t w_t L_t, which gives G_t = ‖∇_W w_t L_t‖ at the last shared layer W;
    2. r_t = (L_t/L_t(0)) / mean of all, the relative inverse training rate;
    3. w ← w − rate·∇_w Σ_t |G_t − Ḡ·r_t^a| / Ḡ, Ḡ·r_t^a held, then Σw = T again.

    The losses' own gradient never reaches w. Divided by Ḡ the rate means the same whatever the losses' scale.
    """

    name = "gradnorm"
    summary = "weights that give every task's gradient the same length at the last shared layer"
    paper = "Chen et al. 2018, GradNorm: Gradient Normalization for Adaptive Loss Balancing"
    search: ClassVar[Search] = {"asymmetry": (0.5, 1.5), "rate": (0.01, 0.025, 0.1)}
    cost = "1.1 steps; a backward per task with several labels per row; a forward more with BatchNorm"

    class Options(base.Options):
        """Options of `GradNorm`."""

        asymmetry: float = Field(default=1.5, ge=0, description="a: how much more tasks that lag get")
        rate: float = Field(default=0.025, gt=0, description="the step of w")
        scope: str = Field(
            default="last", description="W: the encoder's last layer, or shared, or a regular expression"
        )

    options: Options

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._layer: str | None = None

    def start(self, job: Job) -> None:
        """W = (1, …, 1)."""
        require_all_tasks(self.name, job, "gradients")
        self.state["importance"] = torch.ones_like(job.initial_weights)
        self.state["initial"] = torch.zeros_like(job.initial_weights)
        self.weights = self.state["importance"] / len(job.tasks)

    def step(self, job: Job) -> None:
        """One step on the losses, then one on w."""
        losses, found = self.dissect(job, job.batch(), self.weights, self._scope(job))
        importance, lengths = self.state["importance"], found.norms()
        initial = torch.where(self.state["initial"] > 0, self.state["initial"], losses)
        norms = importance * lengths.to(importance)
        reference = torch.where(initial > 0, initial, 1.0)
        targets = gradnorm_targets(norms, latest(self.state, losses), reference, self.options.asymmetry)
        mean = norms.mean()
        slopes = (norms - targets).sign() * lengths / torch.where(mean > 0, mean, 1.0)
        moved = importance - self.options.rate * torch.where(losses != 0, slopes, 0.0)
        self.state["initial"] = initial
        self.state["importance"] = rescale_weights(torch.where(moved.isfinite(), moved, importance))
        self.weights = self.state["importance"] / len(job.tasks)

    def _scope(self, job: Job) -> str:
        if self.options.scope != "last":
            return self.options.scope
        if self._layer is None:
            self._layer = last_layer(job)
        return self._layer


def last_layer(job: Job) -> str:
    """A regular expression for the names of the encoder's last layer.

    It is what the encoder calls ``last_layer``, or else the last module with a matrix on which the losses depend: a
    pooler that nobody reads is none.
    """
    named = getattr(job.model.encoder, "last_layer", None)
    if isinstance(named, str):
        return rf"^encoder\.{re.escape(named)}\."
    with job.probe(job.batch()) as probe:
        names, values = zip(*probe.parameters.items(), strict=True)
        used = torch.autograd.grad(probe.losses.sum(), values, allow_unused=True)
    matrices = [name for name, value, g in zip(names, values, used, strict=True) if g is not None and value.dim() > 1]
    last = matrices[-1] if matrices else names[-1]
    return rf"^{re.escape(last.rpartition('.')[0])}\."
