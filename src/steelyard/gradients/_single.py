"""Parameters that one task's loss alone depends on, such as its head's: one backward for all of them.

The exact path takes a backward per task, and each of them passes the heads of all tasks, with zeros. The graph shows
which parameters can do without: the losses are walked down to the `torch.stack` that put them together, and below it
every node knows which of the stacked losses it serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steelyard.gradients._exact import sum_dtype
from steelyard.gradients._graph import leaf_of, places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.autograd.graph import Node

_ELEMENTWISE = frozenset({"AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "ToCopyBackward0"})


def single_owners(losses: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """The only task whose loss depends on a parameter, by its name; parameters of several tasks are left out."""
    stacked = _stacked(losses)
    if stacked is None:
        return {}
    tasks = _tasks_behind(stacked)
    found = {name: tasks.get(id(value), 0) for name, value in parameters.items()}
    return {name: mask.bit_length() - 1 for name, mask in found.items() if mask and mask & (mask - 1) == 0}


def single_gradients(losses: Tensor, parameters: Mapping[str, Tensor], owners: Mapping[str, int]) -> dict[str, Tensor]:
    """Tensor[T, *shape] by name for parameters that one task each depends on, by one backward of all losses."""
    if not parameters:
        return {}
    found = torch.autograd.grad(losses.sum(), list(parameters.values()), retain_graph=True, allow_unused=True)
    total = {}
    for (name, value), grad in zip(parameters.items(), found, strict=True):
        kind = sum_dtype(value.dtype)
        total[name] = torch.zeros((losses.numel(), *value.shape), dtype=kind, device=value.device)
        if grad is not None:
            total[name][owners[name]] = grad.to_dense() if grad.is_sparse else grad
    return total


def _stacked(losses: Tensor) -> list[Node | None] | None:
    """What `torch.stack` made the losses of, one node per loss; None where something else did."""
    chosen = list(range(losses.numel()))
    at = places([losses])
    node: Any = at[0][0] if at else None
    while node is not None:
        kind, inputs = type(node).__name__, [child for child, _ in node.next_functions if child is not None]
        if kind == "StackBackward0":
            children = [child for child, _ in node.next_functions]
            return [children[place] for place in chosen] if all(map(_is_scalar, children)) else None
        if len(inputs) != 1:
            return None
        if kind == "IndexBackward0" and len(node._saved_indices) == 1 and _is_places(node._saved_indices[0]):
            index = node._saved_indices[0].tolist()
            chosen = [index[place] for place in chosen]
        elif kind not in _ELEMENTWISE or _shape(inputs[0]) != _shape(node):
            return None
        node = inputs[0]
    return None


def _shape(node: Any) -> tuple[int, ...] | None:
    """The shape of a node's only output."""
    known = node._input_metadata
    return tuple(known[0].shape) if len(known) == 1 else None


def _is_scalar(node: Any) -> bool:
    return node is None or _shape(node) == ()


def _is_places(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.long


def _tasks_behind(roots: list[Node | None]) -> dict[int, int]:
    """For each leaf, by its tensor's id, the bits of the roots that depend on it."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots if root is not None]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions if child is not None]
    masks = dict.fromkeys(order, 0)
    for place, root in enumerate(roots):
        if root is not None:
            masks[root] |= 1 << place
    found: dict[int, int] = {}
    for node in reversed(order):
        leaf = leaf_of(node)
        if leaf is not None:
            found[id(leaf)] = masks[node]
        for child, _ in node.next_functions:
            if child is not None:
                masks[child] |= masks[node]
    return found
