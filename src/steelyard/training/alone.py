"""What the job offers to methods that train tasks one at a time and judge the outcome on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from steelyard import gradients
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Role, Suite, collate
from steelyard.training.batching import Batcher
from steelyard.training.metrics import evaluate, metric_of
from steelyard.training.optimisers import Optimisation

JUDGED = 256
"""Rows per encoder call where all rows of a role are looked at."""


class Alone:
    """The part of a job that is about one task; see `steelyard.methods.Job`."""

    model: SharedModel
    suite: Suite
    device: torch.device
    optimisation: Optimisation
    _batcher: Batcher

    @property
    def tasks_per_step(self) -> int:
        """How many tasks have rows in a step: all, or one where the batching says so."""
        return self._batcher.tasks_per_step

    def alone(self, task: str, number: int) -> Batch:
        """The rows of one task in the ``number``-th step that it takes part in, counted from 0."""
        batch = self._batcher.alone(task, number)
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def gradient_on(self, role: Role, task: str, scope: str = "all") -> tuple[Tensor, dict[str, Tensor]]:
        """A task's mean loss over all its rows of a role and its gradient over a scope, without a trace.

        In evaluation mode; the gradient is by parameter name, 0 where the loss does not depend on the parameter.
        """
        parameters = self.model.scope(scope, trainable=True)
        total = torch.zeros(2, device=self.device)
        gradient = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        with gradients.pure(self.model):
            for batch in self._judged(role, task):
                found = self.model.losses(batch)
                total += torch.stack([found.sums.detach().sum(), found.counts.sum()])
                parts = torch.autograd.grad(
                    found.sums.sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
                )
                for name, part in zip(parameters, parts, strict=True):
                    gradient[name] += part
        labels = total[1].clamp(min=1)
        return total[0] / labels, {name: sums / labels.to(sums) for name, sums in gradient.items()}

    def error_on(self, role: Role, task: str) -> float:
        """How far a task's metric on a role is from 1; the metric itself where lower is better."""
        subject = self.suite[task]
        value = evaluate(self.model, subject, subject.rows[role], self.suite.spec.padding)[subject.metric]
        return 1 - value if metric_of(subject).higher else value

    def moments(self) -> dict[str, Tensor]:
        """A copy of what the optimiser remembers of earlier steps (momentum, Adam's moments), by its own keys."""
        return self.optimisation.moments()

    def restore_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Puts `moments` back; an empty mapping makes the optimiser forget."""
        self.optimisation.restore_moments(moments)

    def _judged(self, role: Role, task: str) -> Iterator[Batch]:
        rows = self.suite[task].rows[role]
        for index in torch.split(torch.arange(len(rows)), JUDGED):
            batch = collate([(rows.inputs, index, [(task, rows.labels)])], self.suite.spec.padding)
            yield batch if self.device.type == "cpu" else batch.to(self.device)
