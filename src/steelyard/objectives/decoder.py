"""The decoder of token objectives: one product with the embeddings, over the places that are asked about alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard import gradients
from steelyard.encoders import LanguageHead
from steelyard.gradients import Bound, Groups
from steelyard.tasks import IGNORE


class Decoder(nn.Module):
    """From vectors at all places to each row's summed cross-entropy over the tokens that it is asked for.

    The weight is the encoder's table of embeddings itself, and all objectives share it; each has a transform of its
    own before it. Logits are made for the places with a label alone.

    Args:
        table: The embeddings, ``[vocabulary, d]``.
        width: The size of the vectors, projected to d where it is another.
    """

    def __init__(self, table: nn.Parameter, width: int) -> None:
        super().__init__()
        self.weight = table
        self.bias = nn.Parameter(table.new_zeros(len(table)))
        same = width == table.shape[1]
        self.project: nn.Module = nn.Identity() if same else nn.Linear(width, table.shape[1], bias=False)

    @torch.no_grad()
    def begin_with(self, head: LanguageHead) -> None:
        """Takes over a checkpoint's bias per token."""
        self.bias.copy_(head.tokens)

    def forward(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """``[N, L, width]`` and labels ``[N, L]`` to losses ``[N, 1]``; 0 for rows without a label."""
        row, place = (labels != IGNORE).nonzero(as_tuple=True)
        logits = F.linear(self.project(vectors[row, place]), self.weight, self.bias)
        each = F.cross_entropy(logits, labels[row, place], reduction="none")
        return each.new_zeros(len(labels)).index_add(0, row, each).unsqueeze(1)


@gradients.register(Decoder)
class DecoderRule(gradients.Rule):
    """Each row's loss is a sum over its own places, so its gradient is (softmax - label) ⊗ vector over them."""

    def bind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Bound | None:
        """Vectors and labels, rows first."""
        del module
        return None if kwargs or len(args) != 2 else Bound(args, (output,), (0,), fixed={})

    def row_slopes(
        self, module: nn.Module, bound: Bound, grads: tuple[Tensor, ...], direction: Mapping[str, Tensor]
    ) -> Tensor:
        """⟨(softmax - label) V, vector⟩: V has rows for the tokens of a few texts alone, and only those are taken."""
        row, vectors, errors = self._errors(module, bound)
        each = vectors.new_zeros(len(row))
        if "weight" in direction:
            table = direction["weight"]
            used = table.abs().amax(1).nonzero()[:, 0]
            each = each + ((errors[:, used] @ table[used]) * vectors).sum(1)
        if "bias" in direction:
            each = each + errors @ direction["bias"]
        return each.new_zeros(len(grads[0])).index_add(0, row, each * grads[0][row, 0])

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """A product per task."""
        row, vectors, errors = self._errors(module, bound)
        share = grads[0][row].to(vectors)
        owner = groups.rows[row]
        each = [slice(None)] if groups.tasks == 1 else [owner == task for task in range(groups.tasks)]
        found = {}
        if "weight" in wanted:
            found["weight"] = torch.stack([errors[mine].T @ (vectors * share)[mine] for mine in each])
        if "bias" in wanted:
            found["bias"] = torch.stack([errors[mine].T @ share[mine, 0] for mine in each])
        return found

    def _errors(self, module: nn.Module, bound: Bound) -> tuple[Tensor, Tensor, Tensor]:
        """The row of each place that is asked about ``[M]``, its vector ``[M, d]``, and softmax - label ``[M, V]``.

        A recorded call is asked for its slopes and then for its gradient: what both need is computed once.
        """
        kept: Any = bound.fixed
        if "errors" not in kept:
            decoder: Any = module
            given, labels = bound.rows
            row, place = (labels != IGNORE).nonzero(as_tuple=True)
            with torch.no_grad():
                vectors = decoder.project(given[row, place].to(decoder.weight.dtype)).to(given)
                errors = F.linear(vectors, decoder.weight.to(given), decoder.bias.to(given)).softmax(1)
            errors[torch.arange(len(row)), labels[row, place]] -= 1
            kept["errors"] = (row, vectors, errors)
        found: tuple[Tensor, Tensor, Tensor] = kept["errors"]
        return found
