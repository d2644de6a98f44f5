"""Uses of parameters that no layer's hook sees, found in the graph: functional products and broadcasts over rows.

A position table that is looked up once for all rows, a learned scale, a prompt that is expanded, `F.linear` with a
tied weight: the parameter meets the rows in one operator. The output gradient of that operator has the rows that
the parameter's own gradient has lost, and what it is multiplied with is saved in the graph. So the operator is
treated as a call of a layer with a rule. Where the rows are is then found by experiment, as for any other call.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from steelyard.gradients._calls import Call
from steelyard.gradients._embedding import EmbeddingRule
from steelyard.gradients._graph import Place, children, leaf_of, places
from steelyard.gradients._linear import LinearRule, TransposedLinearRule
from steelyard.gradients._rules import Bound, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from torch.autograd.graph import Node

    from steelyard.gradients._groups import Groups
    from steelyard.gradients._scope import Scope


class BroadcastRule(Rule):
    """y = x + p or y = x ∘ p where p lacks the dimension of the rows.

    Args:
        shape: the parameter's shape.
    """

    pointwise = True
    names = frozenset({"value"})

    def __init__(self, shape: torch.Size) -> None:
        first = next((dim for dim, size in enumerate(shape) if size != 1), len(shape))
        self._shape, self._own = shape, shape[first:]

    def features(self, module: nn.Module) -> int:
        """The parameter's dimensions, but for leading ones of size 1."""
        del module
        return len(self._own)

    def fits(self, shape: torch.Size) -> bool:
        """Whether the parameter is broadcast to a shape with dimensions to spare for the rows."""
        tail = shape[len(shape) - len(self._own) :]
        return len(shape) > len(self._own) and all(a in {1, b} for a, b in zip(self._own, tail, strict=True))

    def _summed(self, bound: Bound, grads: tuple[Tensor, ...]) -> Tensor:
        """[N, positions, numbers of the parameter]."""
        g = grads[0] * bound.rows[0] if bound.rows else grads[0]
        depth = len(self._own)
        inner = [dim for dim in range(-depth, 0) if self._own[dim] == 1 and g.shape[dim] != 1]
        g = g.sum(inner, keepdim=True) if inner else g
        return g.reshape(g.shape[0], -1, math.prod(self._own))

    def row_slopes(
        self, module: nn.Module, bound: Bound, grads: tuple[Tensor, ...], direction: Mapping[str, Tensor]
    ) -> Tensor:
        """The sum over positions, times the direction."""
        del module
        return self._summed(bound, grads).sum(1) @ direction["value"].reshape(-1)

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """A segment sum."""
        del module, wanted
        return {"value": groups.sum_positions(self._summed(bound, grads)).reshape(groups.tasks, *self._shape)}


@dataclass(frozen=True)
class _Found:
    """One operator with a parameter in it.

    Attributes:
        rule: how the parameter enters.
        parameters: by the rule's names.
        at: which of the operator's inputs they are.
        saved: the attribute of the node that holds the other factor, if there is one.
    """

    rule: Rule
    parameters: Mapping[str, Tensor]
    at: frozenset[int]
    saved: str | None = None


def functional_uses(
    module: nn.Module, roots: Sequence[Tensor], scope: Scope, wanted: Collection[int], lookups: Sequence[Call]
) -> list[tuple[Call, Call | None]]:
    """Calls for the operators below the roots that use parameters directly or a lookup that has no rows.

    Args:
        module: the recorded module.
        roots: the losses.
        scope: the parameters.
        wanted: ids of the parameters to look for.
        lookups: recorded calls of embeddings whose output may be broadcast over rows.

    Returns:
        Pairs of the new call and the lookup that it stands for, or None.
    """
    tables = {place: call for call in lookups for place in call.outputs}
    found: list[tuple[Call, Call | None]] = []
    counts: Counter[str] = Counter()
    for node in _nodes(roots):
        shape = _shape(node)
        use = None if shape is None else _use(node, shape, wanted)
        if use is not None and shape is not None:
            found.append((_call(module, scope, node, shape, use, counts), None))
        elif tables and shape is not None:
            found += [(_broadcast(node, shape, call), call) for call in _tables(node, shape, tables)]
    return found


def _nodes(roots: Sequence[Tensor]) -> Iterator[Node]:
    stack, seen = [node for node, _ in places(roots)], set[Any]()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(child for child, _ in children(node))


def _shape(node: Any) -> torch.Size | None:
    """The shape of an operator's only output."""
    known: Sequence[Any] = getattr(node, "_input_metadata", ())
    return torch.Size(known[0].shape) if len(known) == 1 else None


def _use(node: Node, shape: torch.Size, wanted: Collection[int]) -> _Found | None:
    look = _LOOK.get(type(node).__name__)
    return None if look is None else look(node, shape, wanted)


def _leaf(node: Any, at: int, wanted: Collection[int], *, transposed: bool = False) -> Tensor | None:
    """The wanted parameter at one of a node's inputs, as it is or transposed."""
    child = node.next_functions[at][0]
    if transposed and child is not None:
        child = child.next_functions[0][0] if type(child).__name__ == "TBackward0" else None
    if child is not None and type(child).__name__ == "ToCopyBackward0":  # autocast's copy
        child = child.next_functions[0][0]
    leaf = None if child is None else leaf_of(child)
    return leaf if leaf is not None and id(leaf) in wanted else None


def _sum(node: Any, shape: torch.Size, wanted: Collection[int]) -> _Found | None:
    """A sum x + p or p.expand(...)."""
    leaves = [_leaf(node, at, wanted) for at in range(len(node.next_functions))]
    at = [place for place, leaf in enumerate(leaves) if leaf is not None]
    leaf = leaves[at[0]] if len(at) == 1 else None
    if leaf is None or getattr(node, "_saved_alpha", 1) != 1:
        return None
    rule = BroadcastRule(leaf.shape)
    return _Found(rule, {"value": leaf}, frozenset(at)) if rule.fits(shape) else None


def _scale(node: Any, shape: torch.Size, wanted: Collection[int]) -> _Found | None:
    """A product x ∘ p."""
    leaves = [_leaf(node, at, wanted) for at in range(2)]
    at = [place for place, leaf in enumerate(leaves) if leaf is not None]
    leaf = leaves[at[0]] if len(at) == 1 else None
    if leaf is None:
        return None
    rule = BroadcastRule(leaf.shape)
    saved = ("_saved_other", "_saved_self")[at[0]]
    return _Found(rule, {"value": leaf}, frozenset(at), saved) if rule.fits(shape) else None


def _product(node: Any, shape: torch.Size, wanted: Collection[int]) -> _Found | None:
    """A product x Wᵀ or x W, with a bias that `F.linear` adds in the same operator."""
    last = len(node.next_functions) - 1
    if getattr(node, "_saved_alpha", 1) != 1 or getattr(node, "_saved_beta", 1) != 1:
        return None
    turned, plain = _leaf(node, last, wanted, transposed=True), _leaf(node, last, wanted)
    weight = turned if turned is not None else plain
    bias = _leaf(node, 0, wanted) if last == 2 else None
    if weight is None:
        added = None if bias is None else BroadcastRule(bias.shape)
        fits = added is not None and bias is not None and added.fits(shape)
        return _Found(added, {"value": bias}, frozenset({0})) if added and bias is not None and fits else None
    rule = LinearRule() if plain is None else TransposedLinearRule()
    saved = "_saved_mat1" if last == 2 else "_saved_self"
    if bias is None or bias.dim() != 1:
        return _Found(rule, {"weight": weight}, frozenset({last}), saved)
    return _Found(rule, {"weight": weight, "bias": bias}, frozenset({0, last}), saved)


_LOOK: dict[str, Callable[[Any, torch.Size, Collection[int]], _Found | None]] = {
    "AddBackward0": _sum,
    "ExpandBackward0": _sum,
    "MulBackward0": _scale,
    "AddmmBackward0": _product,
    "MmBackward0": _product,
}


def _call(module: nn.Module, scope: Scope, node: Any, shape: torch.Size, use: _Found, counts: Counter[str]) -> Call:
    names = {own: scope.ids[id(value)] for own, value in use.parameters.items()}
    label = f"{', '.join(names.values())} in {type(node).__name__}"
    counts[label] += 1
    return Call(
        name=label,
        index=counts[label],
        module=module,
        rule=use.rule,
        bound=Bound((), ()),
        outputs=((node, 0),),
        shapes=(shape,),
        parents=_others(node, use.at),
        versions=(),
        names=names,
        covered=frozenset(id(value) for value in use.parameters.values()),
        load=None if use.saved is None else _loader(node, use.saved, shape, expand=isinstance(use.rule, BroadcastRule)),
        found=True,
    )


def _others(node: Any, at: Collection[int]) -> tuple[Place, ...]:
    """Where an operator's other inputs come from."""
    inputs = enumerate(node.next_functions)
    return tuple((child, slot) for place, (child, slot) in inputs if child is not None and place not in at)


def _loader(node: Any, name: str, shape: torch.Size, *, expand: bool) -> Callable[[], tuple[Tensor, ...]]:
    """Reads a saved factor while the backward runs, so that a checkpoint is computed again no more than once."""

    def load() -> tuple[Tensor, ...]:
        value: Tensor = getattr(node, name).detach()
        return (value.expand(shape) if expand else value,)

    return load


def _tables(node: Any, shape: torch.Size, tables: Mapping[Place, Call]) -> list[Call]:
    """The lookup that an operator broadcasts, if it does so with one."""
    if type(node).__name__ not in {"AddBackward0", "ExpandBackward0"} or getattr(node, "_saved_alpha", 1) != 1:
        return []
    found = [tables[place] for place in node.next_functions if place in tables]
    rule = BroadcastRule(found[0].shapes[0]) if len(found) == 1 else None
    wide = rule is not None and rule.fits(shape) and found[0].shapes[0][-1:] == shape[-1:]
    return found if wide and math.prod(found[0].shapes[0]) < math.prod(shape) else []


def _broadcast(node: Any, shape: torch.Size, call: Call) -> Call:
    """A lookup that is broadcast, seen as one lookup for every row; no memory is copied."""
    (ids,) = call.bound.rows
    at = [place for place, child in enumerate(node.next_functions) if child in call.outputs]
    return replace(
        call,
        bound=replace(call.bound, rows=(ids.expand(shape[:-1]),)),
        outputs=((node, 0),),
        shapes=(shape,),
        parents=_others(node, at),
        found=True,
    )


def may_be_broadcast(call: Call, count: int) -> bool:
    """Whether a call may be a lookup that is done once for all rows."""
    return (
        isinstance(call.rule, EmbeddingRule)
        and not call.parents
        and (len(call.shapes[0]) == 2 or call.shapes[0][0] == 1 or not call.candidates(count))
    )
