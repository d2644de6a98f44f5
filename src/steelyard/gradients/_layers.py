"""Task gradients that are never there as a whole: what each layer was given and what came back to it.

Inner products of two batches' task gradients need both batches' gradients of one layer at a time. The first batch
leaves its layers' inputs and output gradients, whose size is the batch's and not T times the model's; the second
batch's backward meets them layer by layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steelyard.gradients._distributed import reduce_sum
from steelyard.gradients._embedding import EmbeddingBagRule, EmbeddingRule
from steelyard.gradients._groups import Groups
from steelyard.gradients._products import products_of
from steelyard.gradients._result import TaskGradients, add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.gradients._calls import Call
    from steelyard.gradients._plan import Plan
    from steelyard.gradients._products import Metric

_NUMBERS = 1 << 24  # in some tasks' gradients of one layer
Site = tuple[str, int]
Grads = tuple[Tensor, ...]


class LayerTraces:
    """Every task's gradient on a batch, a layer at a time.

    Where a layer is used once and its output is linear in its parameters, its inputs and output gradients are held:
    they say what the gradients are, also after the parameters have changed. Other gradients are held as they are.
    """

    def __init__(self, plan: Plan, *, reduce: bool) -> None:
        self._plan, self._reduce = plan, reduce
        self._held: dict[Site, tuple[Call, Grads]] = {}
        self._formed: dict[str, Tensor] = {}

    def take(self, weights: Tensor) -> dict[str, Tensor]:
        """Runs the backward, which frees the graph; returns Σ_t w_t ∇L_t of the parameters that losses depend on."""
        plan, found = self._plan, dict[str, Tensor]()

        def consume(call: Call, grads: Grads) -> None:
            if _once(plan, call):
                self._held[call.name, call.index] = replace(call), grads
                found.update(plan.whole(call, grads, weights))
            else:
                self._form(call, grads)

        slow = plan.slow_gradients()
        plan.run(consume, keep=False)
        self._formed |= slow
        return found | TaskGradients(self._formed, _shapes(self._formed), weights).combine(weights)

    def products(self, other: Plan, metric: Metric | None) -> Tensor:
        """⟨∇L_t, P ∇L_j⟩ of the other batch's tasks t and this batch's j; the other backward frees its graph."""
        mine, theirs = self._plan, dict[str, Tensor]()
        like = mine.losses.detach()
        total = like.new_zeros((other.groups.tasks, mine.groups.tasks), dtype=mine.scope.dtype)

        def consume(call: Call, grads: Grads) -> None:
            held = self._held.get((call.name, call.index)) if _once(other, call) else None
            if held is not None:
                del self._held[call.name, call.index]
                for start, one in _pieces(other, call, grads):
                    for place, two in _pieces(mine, *held):
                        found = products_of(one, two, metric)
                        if found is not None:
                            total[start : start + len(found), place : place + found.shape[1]] += found
                return
            for name, value in other.gradients(call, grads).items():
                theirs[name] = add(theirs.get(name), value)

        slow = other.slow_gradients()
        other.run(consume, keep=False)
        theirs |= slow
        for call, grads in self._held.values():
            if not theirs.keys().isdisjoint(call.names.values()):
                self._form(call, grads)
        rest = products_of(theirs, self._formed, metric)
        total = total if rest is None else total + rest
        return reduce_sum(total) if self._reduce else total

    def formed(self) -> TaskGradients:
        """The gradients after all, as a whole."""
        for call, grads in self._held.values():
            self._form(call, grads)
        self._held.clear()
        found = {
            n: reduce_sum(v.to_dense() if v.is_sparse else v) if self._reduce else v for n, v in self._formed.items()
        }
        return TaskGradients(found, _shapes(found), self._plan.losses.detach())

    def _form(self, call: Call, grads: Grads) -> None:
        for name, value in self._plan.gradients(call, grads).items():
            self._formed[name] = add(self._formed.get(name), value)


def _once(plan: Plan, call: Call) -> bool:
    """Whether a layer's gradients can be formed later, whatever its parameters are then, and from this call alone."""
    if not call.rule.linear or call.found:
        return False
    alone = all(plan.uses[name] == 1 for name in plan.wanted(call).values())
    return alone and all(id(value) in call.covered for value in call.module.parameters())


def _pieces(plan: Plan, call: Call, grads: Grads) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """A layer's gradients of all tasks, or of some after the other where all would be too many numbers."""
    bound, outs, groups = plan.operands(call, grads)
    wanted = plan.wanted(call)
    most = max(1, _NUMBERS // sum(plan.scope.shapes[name].numel() for name in wanted.values()))
    if most >= groups.tasks or bound.fixed or isinstance(call.rule, (EmbeddingRule, EmbeddingBagRule)):
        yield 0, plan.gradients(call, grads)
        return
    for start in range(0, groups.tasks, most):
        inside = ((groups.rows >= start) & (groups.rows < start + most)).nonzero().squeeze(1)
        if not len(inside):
            continue
        some = Groups(groups.rows[inside] - start, min(most, groups.tasks - start))
        part = replace(bound, rows=tuple(x[inside] for x in bound.rows))
        found = call.rule.task_gradients(call.module, part, tuple(g[inside] for g in outs), some, wanted)
        yield start, {wanted[own]: value for own, value in found.items()}


def _shapes(found: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape[1:] for name, value in found.items()}
