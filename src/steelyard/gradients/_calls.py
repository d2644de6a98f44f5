"""One recorded call of a layer, and where its rows are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from steelyard.gradients._graph import Place, nested, places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import Tensor, nn

    from steelyard.gradients._groups import Groups
    from steelyard.gradients._rules import Bound, Rule

Kind = Literal["first", "second", "major", "minor"]


@dataclass(frozen=True)
class Layout:
    """Where the N rows are in a layer's tensors.

    Attributes:
        kind: dimension 0 or 1, or flattened with k positions into dimension 0, row by row ("major") or
            position by position ("minor").
        times: k.
    """

    kind: Kind
    times: int = 1

    def groups(self, base: Groups) -> Groups:
        """The task of every entry of dimension 0 of `rows_first`."""
        return base.repeated(self.times, interleave=self.kind == "major")

    def rows_first(self, x: Tensor) -> Tensor:
        """The tensor with its rows in dimension 0, k entries for each when flattened."""
        return x.movedim(1, 0) if self.kind == "second" else x

    def per_row(self, x: Tensor) -> Tensor:
        """Sum the k entries of each row: [N·k] to [N]."""
        if self.kind == "major":
            return x.reshape(-1, self.times).sum(1)
        return x.reshape(self.times, -1).sum(0) if self.kind == "minor" else x

    def by_row(self, x: Tensor) -> Tensor:
        """[N, everything else], to look at what a row holds."""
        x = self.rows_first(x)
        if self.kind == "minor":
            return x.reshape(self.times, x.shape[0] // self.times, -1).movedim(1, 0).flatten(1)
        return x.reshape(x.shape[0] // self.times, -1)


@dataclass
class Call:
    """One call of a layer.

    Attributes:
        name: the layer's name in the module.
        index: how often the layer had been called before.
        module: the layer.
        rule: its rule.
        bound: the inputs, detached.
        outputs: where the outputs are in the graph.
        shapes: their shapes.
        parents: where the inputs are in the graph.
        versions: the inputs' version counters, which tell whether they were changed in place afterwards.
        names: the parameter scope's names of the layer's parameters, by local name.
        covered: ids of the parameters that the rule accounts for.
        layout: where the rows are, once known.
        load: fetches the inputs from the graph when they are wanted, for a use that the graph showed and no hook saw.
        found: whether the graph showed it.
    """

    name: str
    index: int
    module: nn.Module
    rule: Rule
    bound: Bound
    outputs: tuple[Place, ...]
    shapes: tuple[torch.Size, ...]
    parents: tuple[Place, ...]
    versions: tuple[int, ...]
    names: Mapping[str, str]
    covered: frozenset[int]
    layout: Layout | None = None
    load: Callable[[], tuple[Tensor, ...]] | None = None
    found: bool = False

    @property
    def site(self) -> tuple[str, int, int]:
        """What identifies the call from one forward to the next."""
        return self.name, self.index, len(self.shapes[0])

    @property
    def intact(self) -> bool:
        """Whether the inputs still hold what the layer saw."""
        return all(x._version == version for x, version in zip(self.bound.rows, self.versions, strict=True))

    def candidates(self, count: int) -> list[Layout]:
        """The layouts that the shapes allow for N rows, the likeliest first."""
        if count == 0:
            return []
        if self.bound.dims is not None:
            sizes = [shape[dim] for shape, dim in zip(self.shapes, self.bound.dims, strict=True) if dim >= 0]
            sizes += [x.shape[0] for x in self.bound.rows]
            return [Layout("first")] if set(sizes) == {count} else []
        shapes = [self.shapes[0], *(x.shape for x in self.bound.rows)]
        leading = len(self.shapes[0]) - self.rule.features(self.module)
        found = []
        if leading < 1:
            return []
        if all(shape[:1] == (count,) for shape in shapes):
            found.append(Layout("first"))
        if self.rule.pointwise and leading > 1 and all(shape[1:2] == (count,) for shape in shapes):
            found.append(Layout("second"))
        lengths = {shape[0] if len(shape) else 0 for shape in shapes}
        if len(lengths) == 1:
            times, rest = divmod(lengths.pop(), count)
            if rest == 0 and times > 1:
                found += [Layout("major", times), Layout("minor", times)]
        return found

    def has_row_dimension(self, count: int) -> bool:
        """Whether dimension 0 or 1 has the batch's size."""
        return any(layout.kind in {"first", "second"} for layout in self.candidates(count))

    def forget(self) -> None:
        """Lets go of the inputs, after the last question."""
        self.bound, self.load = replace(self.bound, rows=()), None

    def known(self) -> Layout:
        """The layout, after it was found."""
        if self.layout is None:
            raise AssertionError(f"the rows of {self.name} were not located")
        return self.layout

    def output_rows(self, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Output gradients with their rows in dimension 0."""
        if self.bound.dims is not None:
            return tuple(self.bound.rows_first(output, g) for output, g in enumerate(grads))
        return tuple(self.known().rows_first(g) for g in grads)

    def input_rows(self, dtype: torch.dtype) -> Bound:
        """Inputs with their rows in dimension 0 and in the dtype of the sums."""
        found = self.bound.rows if self.load is None else self.load()
        if self.bound.dims is None:
            found = tuple(self.known().rows_first(x) for x in found)
        return replace(self.bound, rows=tuple(x.to(dtype) if x.is_floating_point() else x for x in found))


def _tensors(inputs: Any) -> list[Any]:
    """All tensors among a call's arguments, those of packed sequences too."""
    leaves = tree_leaves(inputs, is_leaf=lambda x: isinstance(x, PackedSequence))
    return [leaf.data if isinstance(leaf, PackedSequence) else leaf for leaf in leaves]


def make_call(
    name: str,
    index: int,
    module: nn.Module,
    rule: Rule,
    bound: Bound,
    inputs: Any,
    scope: Mapping[int, str],
) -> Call | None:
    """A call from what a forward hook saw; None when the graph shows that the rule does not fit it."""
    outputs = places(bound.outputs)
    if len(outputs) != len(bound.outputs):
        return None
    own = rule.parameters(module)
    detached = tuple(x.detach() for x in bound.rows)
    call = Call(
        name=name,
        index=index,
        module=module,
        rule=rule,
        bound=replace(bound, rows=detached, outputs=()),
        outputs=outputs,
        shapes=tuple(x.shape for x in bound.outputs),
        parents=places(_tensors(inputs)),
        versions=tuple(x._version for x in detached),
        names={local: scope[id(value)] for local, value in own.items() if id(value) in scope},
        covered=frozenset(id(value) for value in own.values()),
    )
    return None if len(outputs) > 1 and nested(call) else call
