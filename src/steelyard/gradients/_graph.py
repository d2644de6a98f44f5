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
        overlapping: the reached calls that another reached call lies within.
        operators: which operator feeds which; tells one kind of graph from another, whatever its sizes.
    """

    reached: set[int] = field(default_factory=set)
    uncovered: set[int] = field(default_factory=set)
    frontier: set[int] = field(default_factory=set)
    overlapping: set[int] = field(default_factory=set)
    operators: set[tuple[str, str]] = field(default_factory=set)


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


def leaf_of(node: Any) -> Tensor | None:
    """The tensor whose gradient a node would accumulate; None for a node that does something else."""
    return node.variable if type(node).__name__ == "AccumulateGrad" else None


def _operator(node: Node) -> str:
    """A node's operator and the dimensions that it reduces."""
    return f"{type(node).__name__}{getattr(node, '_saved_dim', '')}"


def children(node: Node) -> list[Place]:
    """Where a node's gradients go."""
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
        next_places = children(place[0]) if index is None else list(calls[index].parents)
        if not done:
            below[key] = False
            stack.append((place, True))
            stack.extend((child, False) for child in next_places)
            name = "call" if index is not None else _operator(place[0])
            result.operators |= {(name, "call" if child in owner else _operator(child[0])) for child in next_places}
            leaf = leaf_of(place[0]) if index is None else None
            if leaf is not None:
                result.uncovered.add(id(leaf))
            continue
        below[key] = any(child in owner or below.get(child[0], False) for child in next_places)
        if index is not None:
            result.reached.add(index)
            if not below[key]:
                result.frontier.add(index)
    _look_inside(result, calls)
    return result


def _look_inside(result: Survey, calls: Sequence[Cut]) -> None:
    """Find parameters used within reached calls that their rules leave out, and calls within calls."""
    ends = {place[0]: index for index in result.reached for place in calls[index].outputs}
    for index in result.reached:
        nodes = _inside(calls[index])
        leaves = (leaf_of(node) for node in nodes)
        result.uncovered |= {id(leaf) for leaf in leaves if leaf is not None} - calls[index].covered
        if any(ends.get(node, index) != index for node in nodes):
            result.overlapping.add(index)


def _inside(call: Cut) -> set[Node]:
    """The nodes between a call's inputs and its outputs."""
    parents = set(call.parents)
    stack, seen = [place[0] for place in call.outputs], set[Node]()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(child for child, slot in children(node) if (child, slot) not in parents)
    return seen


def nested(call: Cut) -> bool:
    """Whether one output of a call is computed from another, which would count its gradient twice."""
    outputs, parents = set(call.outputs), set(call.parents)
    stack = [child for node in {place[0] for place in outputs} for child in children(node)]
    seen: set[Place] = set()
    while stack:
        place = stack.pop()
        if place in outputs:
            return True
        if place not in seen and place not in parents:
            seen.add(place)
            stack.extend(children(place[0]))
    return False
