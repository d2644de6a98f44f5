"""Finding where a layer's rows are, by experiment, and refusing rows that mix.

The engine reads row i of an output gradient as the gradient of task rows[i] alone. Shapes cannot prove that: the
sequence may come first and be as long as the batch, or a function may centre over the batch. So some of the tasks
are switched off in the backward, then others, until each was on while any other was off. Whatever belongs to a task
that is off must be exactly zero. What this shows is remembered for graphs that are made of the same operators.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from steelyard.gradients._errors import RowsMixError
from steelyard.gradients._sweep import sweep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from steelyard.gradients._calls import Call, Kind, Layout
    from steelyard.gradients._graph import Survey
    from steelyard.gradients._groups import Groups

Site = tuple[str, int, int]


@dataclass
class Memory:
    """What has been learned about a module.

    Attributes:
        kinds: where the rows of each call are, as experiments by task and by row have shown (True: by row).
        proven: the operators of the graphs that experiments were made with, by task and by row.
        dead: calls whose output gradients were all zero in the last experiment, which then shows nothing.
        exact: calls without rows, which always take the exact path.
        rowless: calls that were seen without a dimension of the batch's size. If one has such a dimension later, by
            chance, and fails the test, it has no rows; that is no reason to refuse.
        told: parameters whose exact path was logged.
    """

    kinds: dict[tuple[Site, bool], Kind] = field(default_factory=dict)
    proven: dict[bool, list[frozenset[tuple[str, str]]]] = field(default_factory=lambda: {False: [], True: []})
    dead: set[Site] = field(default_factory=set)
    exact: set[Site] = field(default_factory=set)
    rowless: set[Site] = field(default_factory=set)
    told: set[str] = field(default_factory=set)

    def knows(self, operators: set[tuple[str, str]], *, by_row: bool) -> bool:
        """Whether an experiment was made with a graph that has all these operators."""
        found = self.proven[True] if by_row else self.proven[True] + self.proven[False]
        return any(operators <= known for known in found)

    def prove(self, operators: set[tuple[str, str]], *, by_row: bool) -> None:
        """Note that an experiment with these operators went well."""
        if not self.knows(operators, by_row=by_row):
            kept = [known for known in self.proven[by_row] if not known <= operators]
            self.proven[by_row] = [*kept, frozenset(operators)]


_MEMORIES: WeakKeyDictionary[nn.Module, Memory] = WeakKeyDictionary()


def memory_of(module: nn.Module) -> Memory:
    """What is known of a module; forgotten with it."""
    return _MEMORIES.setdefault(module, Memory())


def recall(call: Call, count: int, memory: Memory, *, by_row: bool) -> Layout | None:
    """The layout that an earlier experiment showed for this call, if it fits the shapes."""
    kind = memory.kinds.get((call.site, True)) or (None if by_row else memory.kinds.get((call.site, False)))
    for layout in call.candidates(count):
        if layout.kind == kind:
            return layout
    return None


def remembered(
    calls: Sequence[Call],
    plan: Survey,
    losses: Tensor,
    groups: Groups,
    memory: Memory,
    *,
    by_row: bool,
    always: bool,
) -> bool:
    """Take layouts from memory; False if a new experiment is due."""
    unknown = []
    for index in plan.reached:
        calls[index].layout = recall(calls[index], len(groups), memory, by_row=by_row)
        if calls[index].layout is None:
            unknown.append(index)
    if always or not memory.knows(plan.operators, by_row=by_row):
        return False
    if not unknown:
        return True
    if not all(calls[index].site in memory.dead for index in unknown):
        return False
    whole = Run(losses, torch.ones_like(losses), nullcontext(), torch.zeros_like(groups.rows, dtype=torch.bool))
    _, alive = experiment([whole], calls, plan, len(groups))
    for index in unknown:
        calls[index].layout = calls[index].candidates(len(groups))[0]  # of zeros, any layout is right
    return not alive & set(unknown)


def separations(count: int) -> list[Tensor]:
    """The fewest BoolTensor[count] such that for any two entries each is somewhere on while the other is off.

    Each entry is on in its own choice of half of the masks; no two such choices contain each other (Sperner).
    """
    if count < 2:
        return []
    size = next(size for size in range(2, count + 1) if math.comb(size, size // 2) >= count)
    chosen = list(islice(combinations(range(size), size // 2), count))
    return [torch.tensor([mask in choice for choice in chosen]) for mask in range(size)]


def _clean(call: Call, layout: Layout, grads: tuple[Tensor, ...], off: Tensor) -> bool:
    if call.bound.dims is not None:
        pieces = [g.flatten(1) for g in call.output_rows(grads)]
    else:
        pieces = [layout.by_row(g) for g in grads]
    return not any(bool(piece[off].any()) for piece in pieces)


@dataclass(frozen=True)
class Run:
    """A backward with some rows switched off.

    Attributes:
        losses: Tensor[T].
        seeds: their output gradients, zero for tasks that are off.
        around: a context in which the backward runs.
        off: BoolTensor[N], the rows that are off.
    """

    losses: Tensor
    seeds: Tensor
    around: AbstractContextManager[None]
    off: Tensor


def experiment(
    runs: Sequence[Run],
    calls: Sequence[Call],
    plan: Survey,
    count: int,
) -> tuple[dict[int, list[Layout]], set[int]]:
    """The layouts of each reached call under which rows that are off have no gradient.

    Args:
        runs: the backwards.
        calls: the recorded calls.
        plan: the survey of the graph.
        count: the number of rows N.

    Returns:
        The layouts by the call's index, and the calls that had any gradient at all.
    """
    left = {index: calls[index].candidates(count) for index in plan.reached}
    index_of = {id(call): index for index, call in enumerate(calls)}
    alive: set[int] = set()
    for run in runs:

        def consume(call: Call, grads: tuple[Tensor, ...], off: Tensor = run.off) -> None:
            index = index_of[id(call)]
            left[index] = [layout for layout in left[index] if _clean(call, layout, grads, off)]
            if index not in alive and any(bool(g.any()) for g in grads):
                alive.add(index)

        with run.around:
            sweep([run.losses], [run.seeds], calls, plan, consume)
    return left, alive


def settle(
    calls: Sequence[Call],
    plan: Survey,
    left: dict[int, list[Layout]],
    alive: set[int],
    count: int,
    memory: Memory,
    *,
    by_row: bool,
) -> None:
    """Give each call its layout and remember it; calls without rows lose theirs; mixing is refused.

    Raises:
        RowsMixError: naming all layers that have a row dimension whose rows mix.
    """
    mixed = []
    for index, layouts in left.items():
        call = calls[index]
        if layouts:
            call.layout = layouts[0]
            memory.dead.discard(call.site)
            if index not in alive:
                memory.dead.add(call.site)
            elif len(layouts) == 1:
                memory.kinds[call.site, by_row] = layouts[0].kind
        elif not call.found and call.site not in memory.rowless and call.has_row_dimension(count):
            mixed.append(call)
        else:
            call.layout = None
            memory.exact.add(call.site)
    if mixed:
        raise RowsMixError(_mixing(mixed, by_row=by_row))
    memory.prove(plan.operators, by_row=by_row)


def _mixing(mixed: Sequence[Call], *, by_row: bool) -> str:
    names = ", ".join(sorted({call.name or type(call.module).__name__ for call in mixed}))
    inside = ", ".join(sorted({repr(name) for call in mixed for name in call.names.values()}))
    return (
        f"rows mix: the output of {names} at one row carries gradient of other "
        f"{'rows' if by_row else 'tasks'}. Either a later function works across the batch (a norm, a contrast, a "
        "sum over rows), or losses[t] uses rows of other tasks. Compute each row from itself alone, with "
        "statistics of the batch detached or fixed; or, if this is wanted, send the parameters on the exact path, "
        f"one backward per task: record(..., exact=[{inside}])"
    )
