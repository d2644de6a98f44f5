"""Rules of layers that are a matrix product at every position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.gradients._rules import Bound, Rule, inner, register

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from steelyard.gradients._groups import Groups


def _flat(x: Tensor) -> Tensor:
    """[N, ..., d] as [N, m, d]."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


@register(nn.Linear)
class LinearRule(Rule):
    """y = x Wᵀ + b: the gradient of a task is the sum of g ⊗ x over its rows and positions."""

    pointwise = True

    def features(self, module: nn.Module) -> int:
        """The last dimension."""
        del module
        return 1

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as [o, i]."""
        return weight

    def apply(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> Tensor:
        """The product with another weight and bias."""
        del module
        if "weight" in parameters:
            return F.linear(bound.rows[0], self.matrix(parameters["weight"]), parameters.get("bias"))
        return parameters["bias"].expand(*bound.rows[0].shape[:-1], -1)

    def row_slopes(
        self, module: nn.Module, bound: Bound, grads: tuple[Tensor, ...], direction: Mapping[str, Tensor]
    ) -> Tensor:
        """⟨g, x Vᵀ⟩ = ⟨g V, x⟩: of the two products the smaller one is formed, to save memory."""
        weight = self.matrix(direction["weight"]) if "weight" in direction else None
        if weight is None or weight.shape[0] <= weight.shape[1]:
            return super().row_slopes(module, bound, grads, direction)
        slopes = inner(grads[0] @ weight, bound.rows[0])
        return slopes + _flat(grads[0]).sum(1) @ direction["bias"] if "bias" in direction else slopes

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """One batched product for the weight, one segment sum for the bias."""
        del module
        g, found = _flat(grads[0]), {}
        if "weight" in wanted:
            found["weight"] = groups.outer(g, _flat(bound.rows[0]))
        if "bias" in wanted:
            found["bias"] = groups.sum_positions(g)
        return found

    def ghost_cost(self, bound: Bound, grads: tuple[Tensor, ...], tasks: int) -> tuple[int, int]:
        """M²(i + o) against M·i·o + T²·i·o for M positions."""
        wide, deep = grads[0].shape[-1], bound.rows[0].shape[-1]
        count = grads[0].numel() // wide
        return count * count * (wide + deep), (count + tasks * tasks) * wide * deep

    def ghost_gram(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> Tensor:
        """Σ (x xᵀ) ∘ (g gᵀ) for the weight, Σ g gᵀ for the bias."""
        del module
        g = _flat(grads[0])
        positions = g.shape[1]
        g = g.flatten(0, 1)
        kernel = g @ g.t()
        scale = torch.full_like(kernel, float("bias" in wanted))
        if "weight" in wanted:
            a = _flat(bound.rows[0]).flatten(0, 1)
            scale.addmm_(a, a.t())
        return groups.fold(kernel.mul_(scale), positions)


@register("transformers.pytorch_utils.Conv1D")
class TransposedLinearRule(LinearRule):
    """Hugging Face's Conv1D, y = x W + b: a Linear whose weight is stored the other way round."""

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as [o, i]."""
        return weight.t()

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """As Linear, with the two factors of the outer product exchanged."""
        found = super().task_gradients(module, bound, grads, groups, set(wanted) - {"weight"})
        if "weight" in wanted:
            found["weight"] = groups.outer(_flat(bound.rows[0]), _flat(grads[0]))
        return found
