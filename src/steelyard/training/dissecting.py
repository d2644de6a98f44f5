"""What the job offers to methods that look into a training step itself: the task gradients that it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from steelyard import gradients
from steelyard.errors import SteelyardError
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Suite
from steelyard.training.batching import Batcher
from steelyard.training.optimisers import Optimisation
from steelyard.training.probing import task_of_rows
from steelyard.training.settings import Training
from steelyard.training.stepping import gradient, over_processes


class Dissecting:
    """The part of a job that is about single steps; see `steelyard.methods.Job`."""

    model: SharedModel
    suite: Suite
    tasks: tuple[str, ...]
    step: int
    training: Training
    optimisation: Optimisation
    probe: Callable[..., Any]
    descend: Callable[..., Tensor]
    apply: Callable[[Mapping[str, Tensor], Tensor, Tensor], None]
    _accelerator: Any
    _batcher: Batcher
    _chosen: Tensor | None
    _current: tuple[int, Batch] | None
    _shared: Callable[[Batch], bool]
    _summed: Callable[[Tensor], Tensor]
    _rows_mix: Callable[[], bool]

    def dissect(self, batch: Batch, weights: Tensor, scope: str = "all") -> tuple[Tensor, gradients.TaskGradients]:
        """As `descend`; returns the losses and every task's gradient over a scope, before the step.

        The gradients are those that the step is made of, from one forward and one backward. Where a step cannot be
        taken apart (BatchNorm that trains, micro-batches, a loss scale) a probe of the same rows goes before it.
        """
        if not self._one_piece:
            with self.probe(batch, scope) as probe:
                found = probe.task_gradients(keep=False)
            return self.descend(batch, weights), found
        with self._taped(batch) as (tape, losses):
            found = tape.task_gradients(losses, keep=False)
        used = self._used(weights).to(losses)
        losses = self._moved(batch, found.combine(used), losses, weights)
        chosen = self.model.scope(scope, trainable=True)
        return losses, found if len(chosen) == len(found) else found.part(chosen)

    def trace(
        self, batch: Batch, weights: Tensor, scope: str = "all"
    ) -> tuple[Tensor, gradients.TaskGradients | gradients.LayerTraces]:
        """As `dissect`, with what `Probe.products` needs of the gradients in place of the gradients themselves."""
        if not self._one_piece:
            with self.probe(batch, scope) as probe:
                traces = probe.traced()
            return self.descend(batch, weights), traces
        with self._taped(batch) as (tape, losses):
            moved, traces = tape.traced(losses, self._used(weights).to(losses))
        return self._moved(batch, moved, losses, weights), traces

    @contextmanager
    def _taped(self, batch: Batch) -> Iterator[tuple[Any, Tensor]]:
        """A training forward whose gradients can be told apart, and its losses ``[T]``."""
        rows, every = task_of_rows(batch, self.tasks), self.model.scope("all", trainable=True)
        recording: Any = gradients.record(self.model, rows, every, reduce=self._shared(batch))
        with recording as tape:
            found = self.model.losses(batch)
            counts, sums = (v if self._chosen is None else v[self._chosen] for v in (found.counts, found.sums))
            yield tape, sums / (self._summed(counts) if self._shared(batch) else counts).clamp(min=1)

    def _used(self, weights: Tensor) -> Tensor:
        """What the losses are multiplied with, where a step has rows of one task alone."""
        scale = self._batcher.scale(self.step)
        return weights if scale is None else weights * scale.to(weights)

    def _moved(self, batch: Batch, moved: Mapping[str, Tensor], losses: Tensor, weights: Tensor) -> Tensor:
        """The optimiser's step; the losses of all processes."""
        losses = self._summed(losses.detach()) if self._shared(batch) else losses.detach()
        self.apply(moved, losses, weights)
        return losses

    def descend_along(
        self, batch: Batch, weights: Tensor, direction: Mapping[str, Tensor], scope: str = "shared"
    ) -> tuple[Tensor, Tensor]:
        """As `descend`; returns the losses and every task's slope ⟨∇L_t, v⟩ over a scope, before the step.

        Both come from one forward and one backward, with the layers' gradients in memory one at a time. Where a step
        cannot be taken apart (see `dissect`) a probe of the same rows goes before it. Tasks without rows have slope 0.
        """
        if not self._one_piece:
            with self.probe(batch, scope) as probe:
                slopes = probe.slopes(direction)
            return self.descend(batch, weights), slopes
        chosen = self.model.scope(scope, trainable=True)
        others = {n: p for n, p in self.model.scope("all", trainable=True).items() if n not in chosen}
        present = torch.tensor(sorted({self.tasks.index(name) for name in batch.tasks}), device=weights.device)
        rows = task_of_rows(batch, tuple(self.tasks[place] for place in present.tolist()))
        if rows is None:
            raise SteelyardError("rows that carry the labels of several tasks have no slopes of their own here")
        recording: Any = gradients.record(self.model, rows, chosen, reduce=self._shared(batch))
        with recording as tape:
            found = self.model.losses(batch)
        counts, sums = (v if self._chosen is None else v[self._chosen] for v in (found.counts, found.sums))
        losses = sums / (self._summed(counts) if self._shared(batch) else counts).clamp(min=1)
        used = self._used(weights).to(losses)
        own = gradient(losses @ used, others)
        moved, some = tape.weighted(losses[present], used[present], direction)
        losses = losses.detach()
        if self._shared(batch):
            own, losses = over_processes(own, others, self._summed), self._summed(losses)
        self.apply(own | moved, losses, weights)
        return losses, torch.zeros_like(losses).index_copy(0, present, some.to(losses))

    def metric(self, name: str, ids: Tensor | None = None) -> Tensor | float:
        """P of the optimiser's last step: a parameter moved by -rate·P·gradient, all else held (see `rate`)."""
        return self.optimisation.metric(name, ids)

    def exchange(self, suite: Suite) -> None:
        """Takes the rows of another suite of the same tasks, with as many rows in each role."""
        self.suite, self._current = suite, None
        self._batcher = Batcher(
            suite, self.tasks, self.training, self._accelerator.process_index, self._accelerator.num_processes
        )

    @property
    def _one_piece(self) -> bool:
        """Whether a training step's own backward can give every task's gradient."""
        return self.training.accumulate == 1 and not self.optimisation.scaled and not self._rows_mix()
