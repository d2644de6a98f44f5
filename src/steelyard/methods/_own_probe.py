"""What stands in a loop of one's own where the library's loop has a probe, and gradients at the representation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from steelyard.gradients import LayerTraces, Metric, TaskGradients, exact_task_gradients, inner_products


def exact(losses: Tensor, parameters: Mapping[str, Tensor]) -> TaskGradients:
    """Every loss's gradient, by a backward for each."""
    values = exact_task_gradients(losses, parameters)
    like = next(iter(values.values())).new_zeros(len(losses))
    return TaskGradients(values, {name: p.shape for name, p in parameters.items()}, like)


class Ahead:
    """Losses where a step has led, and their gradients (see `Probe`)."""

    def __init__(self, losses: Tensor, parameters: Mapping[str, Tensor]) -> None:
        self.losses, self._parameters = losses, parameters

    def products(self, other: TaskGradients | LayerTraces, metric: Metric | None = None) -> Tensor:
        """⟨∇L_t, P g_j⟩ with gradients from before the step."""
        whole = other if isinstance(other, TaskGradients) else other.formed()
        return inner_products(exact(self.losses, self._parameters), whole, metric)


class Read:
    """Gradients that are compared by what the heads have read, and combined at the shared parameters."""

    def __init__(self, losses: Tensor, parameters: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> None:
        self._losses, self._parameters, self._read = losses, parameters, read

    def gram(self) -> Tensor:
        """Inner products of the tasks' gradients by what the heads have read, ``[T, T]``."""
        return exact(self._losses, self._read).gram()

    def combine(self, weights: Tensor) -> dict[str, Tensor]:
        """Σ w_t ∇L_t over the shared parameters, by one backward."""
        objective, given = self._losses @ weights.to(self._losses), list(self._parameters.values())
        found = torch.autograd.grad(objective, given, retain_graph=True, allow_unused=True, materialize_grads=True)
        return dict(zip(self._parameters, found, strict=True))
