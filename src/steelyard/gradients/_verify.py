"""Finding where a layer's rows are, by experiment, and refusing rows that mix.

The engine reads row i of an output gradient as the gradient of task rows[i] alone. Shapes cannot prove that: the
sequence may come first and be as long as the batch, or a function may centre over the batch. So half of the tasks
are switched off in the backward, then the other half. Whatever belongs to a task that is off must be exactly zero.
The halves are drawn from a generator of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

Site = tuple[str, int, int]


@dataclass
class Memory:
    """What has been learned about a module.

    Attributes:
        kinds: where the rows of each call are, as experiments by task and by row have shown (True: by row).
        exact: calls without rows, which always take the exact path.
        rowless: calls that were seen without a dimension of the batch's size. If one has such a dimension later, by
            chance, and fails the test, it has no rows; that is no reason to refuse.
        told: parameters whose exact path was logged.
    """

    kinds: dict[tuple[Site, bool], Kind] = field(default_factory=dict)
    exact: set[Site] = field(default_factory=set)
    rowless: set[Site] = field(default_factory=set)
    told: set[str] = field(default_factory=set)


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


def halves(count: int) -> list[Tensor]:
    """Two complementary BoolTensor[count] that split the entries at random, each with at least one."""
    generator = torch.Generator().manual_seed(count)
    mask = torch.zeros(count, dtype=torch.bool)
    mask[torch.randperm(count, generator=generator)[: (count + 1) // 2]] = True
    return [mask, ~mask]


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
) -> dict[int, list[Layout]]:
    """The layouts of each reached call under which rows that are off have no gradient.

    Args:
        runs: the backwards.
        calls: the recorded calls.
        plan: the survey of the graph.
        count: the number of rows N.
    """
    left = {index: calls[index].candidates(count) for index in plan.reached}
    index_of = {id(call): index for index, call in enumerate(calls)}
    for run in runs:

        def consume(call: Call, grads: tuple[Tensor, ...], off: Tensor = run.off) -> None:
            index = index_of[id(call)]
            left[index] = [layout for layout in left[index] if _clean(call, layout, grads, off)]

        with run.around:
            sweep([run.losses], [run.seeds], calls, plan, consume)
    return left


def settle(calls: Sequence[Call], left: dict[int, list[Layout]], count: int, memory: Memory, *, by_row: bool) -> None:
    """Give each call its layout and remember it; calls without rows lose theirs; mixing is refused.

    Raises:
        RowsMixError: naming all layers that have a row dimension whose rows mix.
    """
    mixed = []
    for index, layouts in left.items():
        call = calls[index]
        if layouts:
            call.layout = layouts[0]
            memory.kinds[call.site, by_row] = layouts[0].kind
        elif call.site not in memory.rowless and call.has_row_dimension(count):
            mixed.append(call)
        else:
            call.layout = None
            memory.exact.add(call.site)
    if mixed:
        names = ", ".join(sorted({call.name or type(call.module).__name__ for call in mixed}))
        inside = ", ".join(sorted({repr(name) for call in mixed for name in call.names.values()}))
        raise RowsMixError(
            f"rows mix: the output of {names} at one row carries gradient of other "
            f"{'rows' if by_row else 'tasks'}. Either a later function works across the batch (a norm, a contrast, a "
            "sum over rows), or losses[t] uses rows of other tasks. Compute each row from itself alone, with "
            "statistics of the batch detached or fixed; or, if this is wanted, send the parameters on the exact path, "
            f"one backward per task: record(..., exact=[{inside}])"
        )
