"""One backward that hands every recorded call its output gradient as soon as it is there.

The backward goes to the outputs of the layers and never to a parameter, so no parameter gradient is computed and
no output gradient outlives its use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steelyard.gradients._calls import Call
from steelyard.gradients._graph import Survey, edge

if TYPE_CHECKING:
    from torch.autograd.graph import Node

Consumer = Callable[[Call, tuple[Tensor, ...]], None]


class _Collector:
    """Gathers a call's output gradients and passes them on: at once when possible, else at the end."""

    def __init__(self, calls: Sequence[Call], consume: Consumer) -> None:
        self.calls = calls
        self.consume = consume
        self.waiting: dict[int, dict[int, Tensor]] = {}

    def give(self, index: int, output: int, grad: Tensor | None) -> None:
        if grad is None:
            return
        call = self.calls[index]
        if len(call.outputs) == 1 and call.rule.linear:
            self.consume(call, (grad,))
        else:
            self.waiting.setdefault(index, {})[output] = grad

    def finish(self) -> None:
        while self.waiting:
            index, found = self.waiting.popitem()
            call, some = self.calls[index], next(iter(found.values()))
            grads = tuple(
                found[output] if output in found else some.new_zeros(shape) for output, shape in enumerate(call.shapes)
            )
            self.consume(call, grads)


def sweep(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    calls: Sequence[Call],
    plan: Survey,
    consume: Consumer,
    *,
    keep: bool = True,
) -> None:
    """Run the backward.

    Args:
        roots: the tensors to start from.
        seeds: their output gradients.
        calls: the recorded calls.
        plan: the survey of the graph below the roots with these calls.
        consume: receives each reached call with the gradients of its outputs.
        keep: whether the graph is kept; without it what the forward saved is free as soon as the backward is past it.
    """
    collector = _Collector(calls, consume)
    ends = [(i, k) for i in sorted(plan.frontier) for k in range(len(calls[i].outputs))]
    if not ends:
        return
    by_node: dict[Node, list[tuple[int, int, int]]] = {}
    for i in sorted(plan.reached - plan.frontier):
        for k, (node, slot) in enumerate(calls[i].outputs):
            by_node.setdefault(node, []).append((i, k, slot))
    handles = [node.register_prehook(_hook(places, collector)) for node, places in by_node.items()]
    try:
        found = torch.autograd.grad(
            list(roots),
            [edge(calls[i].outputs[k]) for i, k in ends],
            list(seeds),
            retain_graph=keep,
            allow_unused=True,
        )
    finally:
        for handle in handles:
            handle.remove()
    with torch.no_grad():
        for (i, k), grad in zip(ends, found, strict=True):
            collector.give(i, k, grad)
        collector.finish()


def _hook(places: list[tuple[int, int, int]], collector: _Collector) -> Callable[[tuple[Tensor | None, ...]], None]:
    def arrive(grads: tuple[Tensor | None, ...]) -> None:
        with torch.no_grad():
            for index, output, slot in places:
                collector.give(index, output, grads[slot])

    return arrive
