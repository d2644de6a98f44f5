"""What the autograd graph says: which parameters the rules account for, and where a backward must go.

A rule sees the calls of one layer. A parameter may also be used elsewhere: functionally, by another layer that
has no rule, or inside a layer whose output the rule never saw. The graph decides. It is walked from the losses
and every recorded call is cut out of it, going from the call's output straight to its inputs. A parameter that
the walk still reaches has a use that no rule accounts for, and takes the exact path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from steelyard.gradients._errors import UnsupportedGraphError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Place = tuple[Node, int]


class Cut(Protocol):
    """What the walk needs of a recorded call."""

    @property
    def outputs(self) -> Sequence[Place]:
        """Where the call's outputs are in the graph."""

    @property
    def parents(self) -> Sequence[Place]:
        """Where its inputs are."""

    @property
    def covered(self) -> frozenset[int]:
        """Ids of the parameters whose use in this call the rule accounts for."""


@dataclass
class Survey:
    """The result of a walk.

    Attributes:
        reached: indices of the calls that the losses depend on.
        uncovered: ids of the parameters with a use outside the recorded calls.
        frontier: the calls below which there is no other call. A backward towards their outputs passes all.
    """

    reached: set[int] = field(default_factory=set)
    uncovered: set[int] = field(default_factory=set)
    frontier: set[int] = field(default_factory=set)


def places(tensors: Iterable[Any]) -> tuple[Place, ...]:
    """Where tensors are in the graph; those that need no gradient are nowhere."""
    found = []
    for value in tensors:
        if isinstance(value, Tensor) and value.requires_grad:
            edge = get_gradient_edge(value)
            found.append((edge.node, edge.output_nr))
    return tuple(found)


def edge(place: Place) -> GradientEdge:
    """A place as autograd takes it."""
    return GradientEdge(place[0], place[1])


def _is_leaf(node: Node) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _leaf_id(node: Any) -> int:
    return id(node.variable)


def _children(node: Node) -> list[Place]:
    if type(node).__name__ == "CheckpointFunctionBackward":
        raise UnsupportedGraphError(
            "re-entrant activation checkpointing hides the parameters below it from autograd; "
            "use torch.utils.checkpoint.checkpoint(..., use_reentrant=False) "
            "(Hugging Face: gradient_checkpointing_kwargs={'use_reentrant': False})"
        )
    return [(child, slot) for child, slot in node.next_functions if child is not None]


def survey(roots: Iterable[Tensor], calls: Sequence[Cut], stop: frozenset[Place] = frozenset()) -> Survey:
    """Walk the graph below the roots with the calls cut out of it.

    The walk is in post-order, so that each place knows whether a recorded call lies below it.

    Args:
        roots: the tensors to start from.
        calls: the recorded calls.
        stop: places that are not walked past.
    """
    result = Survey()
    owner: dict[Place, int] = {place: index for index, call in enumerate(calls) for place in call.outputs}
    below: dict[Place | Node, bool] = {}
    stack: list[tuple[Place, bool]] = [(place, False) for place in places(roots)]
    while stack:
        place, done = stack.pop()
        index = owner.get(place)
        key: Place | Node = place[0] if index is None else place
        if place in stop or (key in below and not done):
            continue
        children = _children(place[0]) if index is None else list(calls[index].parents)
        if not done:
            below[key] = False
            stack.append((place, True))
            stack.extend((child, False) for child in children)
            if index is None and _is_leaf(place[0]):
                result.uncovered.add(_leaf_id(place[0]))
            continue
        below[key] = any(child in owner or below.get(child[0], False) for child in children)
        if index is not None:
            result.reached.add(index)
            if not below[key]:
                result.frontier.add(index)
    for index in result.reached:
        result.uncovered |= inside(calls[index]) - calls[index].covered
    return result


def inside(call: Cut) -> frozenset[int]:
    """Ids of the parameters used between a call's inputs and its outputs."""
    parents, found = set(call.parents), set()
    stack, seen = [place[0] for place in call.outputs], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if _is_leaf(node):
            found.add(_leaf_id(node))
        stack.extend(child for child, slot in _children(node) if (child, slot) not in parents)
    return frozenset(found)


def nested(call: Cut) -> bool:
    """Whether one output of a call is computed from another, which would count its gradient twice."""
    outputs, parents = set(call.outputs), set(call.parents)
    stack = [child for node in {place[0] for place in outputs} for child in _children(node)]
    seen: set[Place] = set()
    while stack:
        place = stack.pop()
        if place in outputs:
            return True
        if place not in seen and place not in parents:
            seen.add(place)
            stack.extend(_children(place[0]))
    return False
