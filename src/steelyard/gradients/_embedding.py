"""Rules of lookups. The gradient of a task touches only the ids of its rows, so it is kept sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.gradients._rules import Bound, Rule, register

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from steelyard.gradients._groups import Groups


def scatter(
    tasks: Tensor, ids: Tensor, values: Tensor, shape: tuple[int, int, int], visible: Tensor | None = None
) -> Tensor:
    """Sum values [K, d] into [T, V, d] at (task, id): dense for a small table, sparse (coalesced) for a large one.

    Values that are not visible get a place of their own behind all others, which is left out: values are never copied.
    """
    count, table, width = shape
    keys = tasks * table + ids
    if visible is not None:
        keys = keys.masked_fill(~visible, count * table)
    if count * table <= keys.numel():
        return values.new_zeros(count * table + 1, width).index_add_(0, keys, values)[:-1].reshape(shape)
    unique, where = torch.unique(keys, return_inverse=True)
    total = values.new_zeros(unique.numel(), width).index_add_(0, where, values)
    if visible is not None:
        inside = int(torch.searchsorted(unique, count * table))
        unique, total = unique[:inside], total[:inside]
    index = torch.stack((unique // table, unique % table))
    return torch.sparse_coo_tensor(index, total, shape, is_coalesced=True, check_invariants=False)


@register(nn.Embedding)
class EmbeddingRule(Rule):
    """A lookup: the gradient of a task is a sum of output gradients at the ids of its rows."""

    pointwise = True

    def features(self, module: nn.Module) -> int:
        """The vector of an id."""
        del module
        return 1

    def bind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Bound | None:
        """Scaling by the frequency in the batch would mix rows, so it has no rule."""
        layer: Any = module
        return None if layer.scale_grad_by_freq else super().bind(module, args, kwargs, output)

    def _visible(self, module: nn.Module, bound: Bound) -> Tensor | None:
        layer: Any = module
        return None if layer.padding_idx is None else bound.rows[0] != layer.padding_idx

    def apply(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> Tensor:
        """The lookup in another table, where padding reads zero because its gradient is zero."""
        out = F.embedding(bound.rows[0], parameters["weight"])
        visible = self._visible(module, bound)
        return out if visible is None else out.mul_(visible.unsqueeze(-1))

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """Sums at (task, id); sparse unless the table is small."""
        del wanted
        layer: Any = module
        ids, width = bound.rows[0], grads[0].shape[-1]
        tasks = groups.rows.reshape(-1, *[1] * (ids.dim() - 1)).expand_as(ids).reshape(-1)
        visible = self._visible(module, bound)
        shown = None if visible is None else visible.reshape(-1)
        shape = (groups.tasks, layer.num_embeddings, width)
        return {"weight": scatter(tasks, ids.reshape(-1), grads[0].reshape(-1, width), shape, shown)}


@register(nn.EmbeddingBag)
class EmbeddingBagRule(Rule):
    """A sum or mean of lookups; one bag per row, as a matrix of ids or as a flat list with offsets."""

    names = frozenset({"weight"})

    def bind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Bound | None:
        """Bags as flat ids, the row of each id, and its coefficient in the row's output."""
        layer: Any = module
        given: dict[str, Any] = dict(zip(("input", "offsets", "per_sample_weights"), args, strict=False)) | kwargs
        ids, weights = given["input"], given.get("per_sample_weights")
        if layer.scale_grad_by_freq or layer.mode == "max" or not isinstance(output, Tensor):
            return None
        if isinstance(weights, Tensor) and weights.requires_grad:
            return None
        count = output.shape[0]
        if ids.dim() == 2:
            row = torch.arange(count, device=ids.device).repeat_interleave(ids.shape[1])
        else:
            place = torch.arange(ids.numel(), device=ids.device)
            starts: Tensor = given["offsets"]
            row = torch.searchsorted(starts[:count].contiguous(), place, right=True) - 1
        ids = ids.reshape(-1).clone()
        seen = torch.ones_like(ids, dtype=output.dtype)
        if layer.padding_idx is not None:
            seen = (ids != layer.padding_idx).to(output.dtype)
        if layer.mode == "mean":
            size = seen.new_zeros(count).index_add_(0, row, seen)
            seen = seen / size.clamp(min=1)[row]
        elif weights is not None:
            seen = seen * weights.reshape(-1).to(seen.dtype)
        fixed = {"ids": ids, "row": row, "share": seen, "shape": output.shape}
        return Bound((), (output,), (0,), fixed=fixed)

    def apply(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> Tensor:
        """The bags read from another table."""
        del module
        ids, row, share = bound.fixed["ids"], bound.fixed["row"], bound.fixed["share"]
        values: Tensor = F.embedding(ids, parameters["weight"])
        values = values * share.to(values.dtype).unsqueeze(1)
        return values.new_zeros(bound.fixed["shape"]).index_add_(0, row, values)

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """Each id's share of its row's output gradient, summed at (task, id)."""
        del wanted
        layer: Any = module
        g, row = grads[0], bound.fixed["row"]
        values = g[row] * bound.fixed["share"].to(g.dtype).unsqueeze(1)
        shape = (groups.tasks, layer.num_embeddings, g.shape[-1])
        return {"weight": scatter(groups.rows[row], bound.fixed["ids"], values, shape)}
