"""What the job offers to methods that look into a training step itself: the task gradients that it was made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from steelyard import gradients
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Suite
from steelyard.training.batching import Batcher
from steelyard.training.optimisers import Optimisation
from steelyard.training.probing import task_of_rows
from steelyard.training.settings import Training


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
    _world: int
    _rows_mix: Callable[[], bool]

    def dissect(self, batch: Batch, weights: Tensor, scope: str = "all") -> tuple[Tensor, gradients.TaskGradients]:
        """As `descend`; returns the losses and every task's gradient over a scope, before the step.

        The gradients are those that the step is made of, from one forward and one backward. Where a step cannot be
        taken apart (BatchNorm that trains, micro-batches, a loss scale) a probe of the same rows goes before it.
        """
        if not self._one_piece:
            with self.probe(batch, scope) as probe:
                found = probe.task_gradients()
            return self.descend(batch, weights), found
        every = self.model.scope("all", trainable=True)
        rows = task_of_rows(batch, self.tasks)
        recording: Any = gradients.record(self.model, rows, every, reduce=self._world > 1)
        with recording as tape:
            outputs = self.model.losses(batch)
            counts, sums = (v if self._chosen is None else v[self._chosen] for v in (outputs.counts, outputs.sums))
            if self._world > 1:
                counts = self._accelerator.reduce(counts, "sum")
            losses = sums / counts.clamp(min=1)
            found = tape.task_gradients(losses)
        scale = self._batcher.scale(self.step)
        used = weights if scale is None else weights * scale.to(weights)
        self.apply(found.combine(used.to(losses)), losses, weights)
        chosen = self.model.scope(scope, trainable=True)
        return losses.detach(), found if len(chosen) == len(every) else found.part(chosen)

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
