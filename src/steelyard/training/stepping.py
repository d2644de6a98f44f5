"""The gradients that a step along a combination is made of: every task's own, kept or taken twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.gradients import Tape, TaskGradients, exact_task_gradients
from steelyard.model import SharedModel
from steelyard.tasks import Batch

Named = dict[str, Tensor]
Sum = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Forward:
    """A micro-batch after its forward.

    Attributes:
        batch: Its rows.
        losses: Its share of each task's mean loss ``[T]``, under the loss scale, with its graph.
        tape: What gives every task's gradient; None where only a backward per task does.
        blocks: What each task's head has read, by its place among the tasks; None if nobody asked.
    """

    batch: Batch
    losses: Tensor
    tape: Tape | None
    blocks: dict[int, Tensor] | None

    def gram_at_heads(self, tasks: tuple[str, ...]) -> Tensor:
        """Inner products of the tasks' gradients by what the heads have read, ``[T, T]``; one backward of the heads.

        Tasks with rows of their own read different numbers: their gradients are orthogonal.
        """
        blocks = self.blocks or {}
        total = torch.zeros(len(tasks), len(tasks), device=self.losses.device)
        if not blocks:
            return total
        found = torch.autograd.grad(self.losses.sum(), list(blocks.values()), retain_graph=True, allow_unused=True)
        rows = {m.task: (i, m.rows.start, m.rows.stop) for i, p in enumerate(self.batch.parts) for m in p.members}
        alike: dict[object, list[tuple[int, Tensor]]] = {}
        for task, value in zip(blocks, found, strict=True):
            if value is not None:
                alike.setdefault(rows[tasks[task]], []).append((task, value.float()))
        for group in alike.values():
            if len({value.shape for _, value in group}) > 1:
                raise SteelyardError(
                    f"tasks {', '.join(tasks[task] for task, _ in group)} read different representations of the same "
                    "rows (tokens and their mean); compare their gradients at the parameters"
                )
            places = torch.tensor([task for task, _ in group], device=total.device)
            flat = torch.stack([value.flatten() for _, value in group])
            total[places[:, None], places] = flat @ flat.T
        return total


class Stored:
    """Every task's gradient over the shared parameters, kept: micro-batches and processes can be summed."""

    def __init__(self, found: TaskGradients, gram: Tensor | None) -> None:
        self._found, self._gram = found, gram

    @classmethod
    def of(cls, forward: Forward, shared: Mapping[str, nn.Parameter], gram: Tensor | None) -> Stored:
        """Of a micro-batch; ``gram`` is given where it is not the parameters'."""
        if forward.tape is not None:
            return cls(forward.tape.task_gradients(forward.losses, keep=False), gram)
        values = exact_task_gradients(forward.losses, shared)
        like = next(iter(values.values())).new_zeros(len(forward.losses))
        return cls(TaskGradients(values, {name: p.shape for name, p in shared.items()}, like), gram)

    def plus(self, other: Stored) -> Stored:
        """With another micro-batch's."""
        gram = self._gram if self._gram is None or other._gram is None else self._gram + other._gram
        return Stored(self._found.plus(other._found), gram)

    def over_processes(self, summed: Sum) -> Stored:
        """With all processes'."""
        values = {name: summed(value) for name, value in self._found.items()}
        shapes = {name: value.shape[1:] for name, value in values.items()}
        like = next(iter(values.values())).new_zeros(len(next(iter(values.values()))))
        return Stored(TaskGradients(values, shapes, like), None if self._gram is None else summed(self._gram))

    def gram(self) -> Tensor:
        """Inner products of the tasks' gradients, ``[T, T]``."""
        return self._found.gram() if self._gram is None else self._gram

    def combine(self, weights: Tensor) -> Named:
        """Σ w_t ∇L_t over the shared parameters."""
        return self._found.combine(weights)


class Direct:
    """Their Gram matrix alone; a second backward gives what it decides. For a step of one micro-batch."""

    def __init__(self, forward: Forward, shared: Mapping[str, nn.Parameter], gram: Tensor) -> None:
        self._losses, self._shared, self._gram = forward.losses, shared, gram
        self._summed: Sum | None = None

    def over_processes(self, summed: Sum) -> Direct:
        """With all processes': what heads read in one of them are other rows than in the next."""
        self._gram, self._summed = summed(self._gram), summed
        return self

    def gram(self) -> Tensor:
        """Inner products of the tasks' gradients, ``[T, T]``."""
        return self._gram

    def combine(self, weights: Tensor) -> Named:
        """Σ w_t ∇L_t over the shared parameters."""
        found = gradient(self._losses @ weights.to(self._losses), self._shared)
        return over_processes(found, self._shared, self._summed)


def gradient(objective: Tensor, parameters: Mapping[str, Tensor]) -> Named:
    """∇ by the parameters that it depends on; the graph is kept and no ``.grad`` is touched."""
    if not parameters or not objective.requires_grad:
        return {}
    found = torch.autograd.grad(objective, list(parameters.values()), retain_graph=True, allow_unused=True)
    named = zip(parameters, found, strict=True)
    return {name: value.to_dense() if value.is_sparse else value for name, value in named if value is not None}


def added(first: Named, second: Named) -> Named:
    """The sum by name; a name that one of them lacks counts as zero."""
    return first | {name: first[name] + value if name in first else value for name, value in second.items()}


def over_processes(found: Named, parameters: Mapping[str, Tensor], summed: Sum | None) -> Named:
    """Sums over the processes; each has to take part for every parameter, also where it has no rows."""
    if summed is None:
        return found
    return {name: summed(found.get(name, torch.zeros_like(p))) for name, p in parameters.items()}


@contextmanager
def read_by_heads(model: SharedModel, tasks: tuple[str, ...]) -> Iterator[dict[int, Tensor]]:
    """What each task's head reads in the forwards of this block, as a tensor of its own."""
    blocks: dict[int, Tensor] = {}

    def note(place: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def keep(head: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            del head
            blocks[place] = given[0].view_as(given[0])
            return (blocks[place], *given[1:])

        return keep

    handles = [model.head(task).register_forward_pre_hook(note(place)) for place, task in enumerate(tasks)]
    try:
        yield blocks
    finally:
        for handle in handles:
            handle.remove()
