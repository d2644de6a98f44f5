"""Probes: every task's gradients on a batch, at the parameters as they are, without a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from steelyard import gradients
from steelyard.gradients import HessianProduct, SharedTape, Tape
from steelyard.tasks import Batch


class Probe:
    """The losses of a batch and their gradients over a scope; tasks stand in the job's order.

    Attributes:
        losses: Each task's mean loss ``[T]``, with its graph; 0 for a task without labels in the batch.
        rows: The task of each row of the batch, ``LongTensor[N]``; None where rows carry labels of several tasks.
        parameters: The parameters in scope, by name.
        summed: What sums a tensor over the processes, where each holds its share of the batch.
    """

    def __init__(
        self,
        losses: Tensor,
        rows: Tensor | None,
        parameters: Mapping[str, nn.Parameter],
        tape: Tape | SharedTape,
        summed: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.losses, self.rows, self.parameters = losses, rows, parameters
        self._tape, self._summed = tape, summed

    def task_gradients(self, *, keep: bool = True) -> gradients.TaskGradients:
        """Every task's gradient: parameter name to ``[T, *shape]``; without ``keep`` it is the last question."""
        return self._tape.task_gradients(self.losses, keep=keep)

    def products(
        self, other: gradients.TaskGradients | gradients.LayerTraces, metric: gradients.Metric | None = None
    ) -> Tensor:
        """⟨∇L_t, P g_j⟩ with every gradient g_j of another batch, ``[T, T]``; the last question."""
        return self._tape.products(self.losses, other, metric)

    def traced(self) -> gradients.TaskGradients | gradients.LayerTraces:
        """What `products` needs of every task's gradient, layers' inputs in place of gradients; the last question."""
        return self._tape.traced(self.losses, torch.zeros_like(self.losses))[1]

    def gram(self) -> Tensor:
        """Inner products of the tasks' gradients, ``[T, T]``."""
        return self._tape.gram(self.losses)

    def norms(self) -> Tensor:
        """Norms of the tasks' gradients, ``[T]``."""
        return self._tape.norms(self.losses)

    def slopes(self, direction: Mapping[str, Tensor]) -> Tensor:
        """⟨∇L_t, v⟩ for each task, ``[T]``."""
        return self._tape.slopes(self.losses, direction)

    def row_slopes(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Each row's share of its task's slope, ``[N]``."""
        return self._tape.row_slopes(self.losses, direction)

    def gradient(self, weights: Tensor) -> dict[str, Tensor]:
        """The gradient of Σ w_t L_t over the scope, by name."""
        found = torch.autograd.grad(
            self.losses @ weights,
            list(self.parameters.values()),
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return self._over_processes(dict(zip(self.parameters, found, strict=True)))

    def hessian(self, weights: Tensor) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """V ↦ ∇²(Σ w_t L_t) v over the scope."""
        product = HessianProduct(self.losses @ weights, self.parameters)
        return lambda direction: self._over_processes(product(direction))

    def _over_processes(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._summed is None:
            return found
        return {name: self._summed(value) for name, value in found.items()}


def task_of_rows(batch: Batch, tasks: tuple[str, ...]) -> Tensor | None:
    """The task of each row, ``LongTensor[N]``; None if rows carry labels of several tasks or come in several parts."""
    if len(batch.parts) != 1:
        return None
    part = batch.parts[0]
    rows = torch.full((len(part.inputs),), -1)
    for member in part.members:
        if (rows[member.rows] >= 0).any():
            return None
        rows[member.rows] = tasks.index(member.task)
    return rows
