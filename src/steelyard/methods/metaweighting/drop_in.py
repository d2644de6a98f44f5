"""MetaWeighting for a training loop of your own: plain PyTorch, nothing else of this library."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.functional import hypergradient_matrix
from steelyard.methods.metaweighting.direction import Bounds, common_direction, moved


class QueryWeights:
    """Task weights that follow the losses on rows you keep out of training.

        weights = QueryWeights(model.parameters(), tasks=4)
        weights.support(losses)                      # before the step, on the step's own losses
        (weights.value * losses).mean().backward()
        optimizer.step()
        weights.query(query_losses)                  # after the step, on query rows

    Gradients are taken by one backward per task, exactly, whatever the model; `steelyard.gradients` does it faster.

    Args:
        parameters: All that the step moves, heads too.
        tasks: How many tasks there are.
        alpha: α, the step of w.
        rate: The learning rate η that D is multiplied with (as published), or 1.
        bounds: What keeps w in bounds: see the method's option of that name.

    Attributes:
        value: w ``[T]``, summing to T; train on ``(value * losses).mean()``.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        tasks: int,
        *,
        alpha: float = 0.1,
        rate: float = 1.0,
        bounds: Bounds = "renormalised",
    ) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        if not self._parameters or tasks < 1:
            raise SteelyardError("QueryWeights needs trainable parameters and at least one task")
        self._alpha, self._rate, self._bounds = alpha, rate, bounds
        self.value = torch.ones(tasks, dtype=torch.float64, device=self._parameters[0].device)
        self._support: Tensor | None = None

    def support(self, losses: Tensor) -> None:
        """Takes the gradients of the step's losses ``[T]``; their graph is kept, so that they can be trained on."""
        self._support = self._gradients(losses)

    def query(self, losses: Tensor) -> Tensor:
        """Moves w by the query losses ``[T]`` after the step; returns ‖Δw‖, a scalar."""
        if self._support is None:
            raise SteelyardError("call support(losses) before the optimiser's step, and query(losses) after it")
        matrix = hypergradient_matrix(self._gradients(losses), self._support, self._rate)
        before, self._support = self.value, None
        self.value = moved(before, common_direction(matrix), self._alpha, self._bounds)
        change: Tensor = (self.value - before).norm()
        return change

    def state_dict(self) -> dict[str, Tensor]:
        """All that a resumed loop needs, between two steps."""
        return {"value": self.value.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes `state_dict` of another."""
        self.value = state["value"].clone()

    def _gradients(self, losses: Tensor) -> Tensor:
        """∇L_t of every task, ``[T, P]``; zeros for parameters that a loss does not use."""
        rows = [
            torch.autograd.grad(loss, self._parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
            for loss in losses
        ]
        return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
