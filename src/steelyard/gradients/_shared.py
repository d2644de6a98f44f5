"""Shared inputs: every row carries the labels of all tasks, so rows do not tell the tasks apart.

The output gradients of the tasks meet at the same rows and no layer can split them. What is left is exact and
dearer: a backward per task; or one double backward for all slopes, where the operators have one; or, for the Gram
matrix, the gradients at the module's output, which bound the parameters' from above up to the Jacobian's norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from steelyard.gradients._curvature import explained_second_derivative
from steelyard.gradients._distributed import reduce_sum
from steelyard.gradients._errors import GradientError
from steelyard.gradients._exact import exact_row_slopes, exact_slopes, exact_task_gradients
from steelyard.gradients._graph import places, survey
from steelyard.gradients._products import inner_products
from steelyard.gradients._result import TaskGradients

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.gradients._layers import LayerTraces
    from steelyard.gradients._products import Metric
    from steelyard.gradients._scope import Scope

Method = Literal["exact", "double"]
At = Literal["parameters", "representation"]


class SharedTape:
    """A recorded forward of rows that all tasks share. Ask it after the losses are computed.

    Attributes:
        scope: the parameters that gradients are taken by.
        outputs: the recorded module's outputs.
    """

    def __init__(self, module: nn.Module, scope: Scope, *, reduce: bool) -> None:
        self.scope = scope
        self.outputs: list[Tensor] = []
        self._module = module
        self._reduce = reduce

    def task_gradients(self, losses: Tensor, *, keep: bool = True) -> TaskGradients:
        """Every task's gradient {name: Tensor[T, *shape]}, by one backward per task; the graph is kept in any case."""
        del keep
        found = exact_task_gradients(losses, self.scope.parameters)
        if self._reduce:
            found = {name: reduce_sum(value) for name, value in found.items()}
        like = torch.zeros(losses.numel(), dtype=self.scope.dtype, device=losses.device)
        return TaskGradients(found, self.scope.shapes, like)

    def traced(self, losses: Tensor, weights: Tensor) -> tuple[dict[str, Tensor], TaskGradients]:
        """Σ_t w_t ∇L_t and every task's gradient as it is: rows that all tasks share leave no traces of each."""
        found = self.task_gradients(losses)
        return found.combine(weights), found

    def products(self, losses: Tensor, other: TaskGradients | LayerTraces, metric: Metric | None = None) -> Tensor:
        """⟨∇L_t, P g_j⟩ with every gradient g_j of another batch, Tensor[T, T']."""
        whole = other if isinstance(other, TaskGradients) else other.formed()
        return inner_products(self.task_gradients(losses), whole, metric)

    def slopes(self, losses: Tensor, direction: Mapping[str, Tensor], method: Method = "exact") -> Tensor:
        """Tensor[T]: ⟨∇L_t, v⟩.

        Args:
            losses: Tensor[T].
            direction: v by parameter name; parameters that it lacks count as zero.
            method: "exact" takes a backward per task and stores none of the gradients; "double" takes two backwards
                in all, and refuses where an operator has no second derivative (fused attention, mkldnn LSTM).
        """
        v = self.scope.direction(direction)
        own = {name: self.scope.parameters[name] for name in v}
        take = double_backward_slopes if method == "double" else exact_slopes
        found = take(losses, own, v).to(self.scope.dtype)
        return reduce_sum(found) if self._reduce else found

    def row_slopes(self, losses: Tensor, direction: Mapping[str, Tensor]) -> Tensor:
        """Tensor[T, N]: the share of every row in every task's slope, by one backward per task and row."""
        v = self.scope.direction(direction)
        own = {name: self.scope.parameters[name] for name in v}
        outputs = [value for value in self.outputs if value.shape[0] == self.outputs[0].shape[0]]
        count = outputs[0].shape[0] if outputs else 0
        each = losses.reshape(-1, 1)
        return torch.stack([exact_row_slopes(loss, outputs, own, v, count) for loss in each])

    def gram(self, losses: Tensor, at: At = "parameters") -> Tensor:
        """Tensor[T, T]: inner products of the tasks' gradients.

        Args:
            losses: Tensor[T].
            at: "parameters" is exact; "representation" takes the gradients at the module's outputs instead (as
                MGDA-UB does), at the price of the heads alone.
        """
        return self._gradients(losses, at).gram()

    def norms(self, losses: Tensor, at: At = "parameters") -> Tensor:
        """Tensor[T]: the norm of every task's gradient, at the parameters or at the representation."""
        return self._gradients(losses, at).norms()

    def _gradients(self, losses: Tensor, at: At) -> TaskGradients:
        if at == "parameters":
            return self.task_gradients(losses)
        if self._reduce:
            raise GradientError(
                "the representations of different processes are different rows; a Gram matrix at the representation "
                'cannot be summed over processes. Use at="parameters", or record(..., reduce=False)'
            )
        used = survey([losses], [], stop=frozenset(places(self.outputs))).uncovered & set(self.scope.ids)
        if used or not self.outputs:
            names = ", ".join(self.scope.ids[key] for key in sorted(used)) or "any parameter"
            raise GradientError(
                f"the losses depend on {names} by another way than the recorded module's outputs, so gradients at the "
                "outputs say nothing of it. Record the module whose output the heads share"
            )
        named = {str(index): value for index, value in enumerate(self.outputs)}
        found = exact_task_gradients(losses, named)
        like = torch.zeros(losses.numel(), dtype=self.scope.dtype, device=losses.device)
        return TaskGradients(found, {name: value.shape for name, value in named.items()}, like)


def double_backward_slopes(losses: Tensor, parameters: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Tensor:
    """Tensor[T]: ⟨∇L_t, v⟩ for all tasks by differentiating uᵀJ, which is linear in u, by u.

    Raises:
        UnsupportedGraphError: if an operator has no second derivative.
    """
    if not parameters or not losses.requires_grad:
        return torch.zeros_like(losses)
    seed = torch.zeros_like(losses, requires_grad=True)
    with explained_second_derivative():
        found = torch.autograd.grad(
            losses, list(parameters.values()), seed, create_graph=True, allow_unused=True, retain_graph=True
        )
        pairs = [
            (grad, direction[name])
            for name, grad in zip(parameters, found, strict=True)
            if grad is not None and grad.requires_grad
        ]
        if not pairs:
            return torch.zeros_like(losses)
        total = torch.stack([(grad * v.to(grad.dtype)).sum() for grad, v in pairs]).sum()
        (slopes,) = torch.autograd.grad(total, seed, retain_graph=True)
    return slopes
