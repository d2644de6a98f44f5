"""What a method is given: the job, which it trains through, and the probe, which it looks through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from steelyard.gradients import LayerTraces, Metric, TaskGradients
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Role, Suite

Weights = Tensor | Callable[[Tensor], Tensor]
"""Task weights ``[T]``, or a function from the batch's detached losses ``[T]`` to them."""

Objective = Callable[[Tensor], Tensor]
"""A number to be made small, as a function of the losses ``[T]``."""

Penalty = Callable[[Batch], Tensor]
"""A further loss: the share of the micro-batch that went through the model just now, from what its forward left."""

Rule = Callable[[Tensor], Tensor]
"""How gradients are combined: from their Gram matrix ``[T, T]`` to a coefficient for each, ``[T]``."""

Place = Literal["parameters", "representation"]
"""Where gradients are taken: by the shared parameters, or by what the heads read."""


class Probe(Protocol):
    """The losses of a batch and their gradients over a scope; tasks stand in the job's order.

    Attributes:
        losses: Each task's mean loss ``[T]``, with its graph; 0 for a task without labels in the batch.
        rows: The task of each row of the batch, ``LongTensor[N]``; None where rows carry labels of several tasks.
        parameters: The parameters in scope, by name.
    """

    losses: Tensor
    rows: Tensor | None
    parameters: Mapping[str, nn.Parameter]

    def task_gradients(self, *, keep: bool = True) -> TaskGradients:
        """Every task's gradient: parameter name to ``[T, *shape]``; without ``keep`` it is the last question."""
        ...

    def traced(self) -> TaskGradients | LayerTraces:
        """What `products` needs of every task's gradient, in less memory than the gradients; the last question."""
        ...

    def products(self, other: TaskGradients | LayerTraces, metric: Metric | None = None) -> Tensor:
        """⟨∇L_t, P g_j⟩ with every gradient g_j of another batch, ``[T, T]``; the last question."""
        ...

    def gram(self) -> Tensor:
        """Inner products of the tasks' gradients, ``[T, T]``."""
        ...

    def norms(self) -> Tensor:
        """Norms of the tasks' gradients, ``[T]``."""
        ...

    def slopes(self, direction: Mapping[str, Tensor]) -> Tensor:
        """⟨∇L_t, v⟩ for each task, ``[T]``."""
        ...

    def row_slopes(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Each row's share of its task's slope, ``[N]``."""
        ...

    def gradient(self, weights: Tensor) -> dict[str, Tensor]:
        """The gradient of Σ w_t L_t over the scope, by name."""
        ...

    def hessian(self, weights: Tensor) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """V ↦ ∇²(Σ w_t L_t) v over the scope."""
        ...


class Job(Protocol):
    """What the training loop offers to a method; tasks stand in the order of `tasks` everywhere.

    Attributes:
        model: The model in training.
        tasks: The names of the tasks that are trained.
        target: The target's place in ``tasks``, or None where it is not trained or there is none.
        sizes: Training rows per task, ``[T]``.
        initial_weights: The weights that the paradigm starts from, ``[T]``, summing to 1.
        generator: The method's own source of randomness (on the CPU); it is part of the checkpoint.
        step: Steps done so far.
        steps_per_epoch: Steps in an epoch.
        epochs: Epochs in this phase of the training.
        fine_tuning: Whether the phase is the target's fine-tuning after pre-training.
        batch_size: Rows of each task in a step.
    """

    model: SharedModel
    tasks: tuple[str, ...]
    target: int | None
    sizes: Tensor
    initial_weights: Tensor
    generator: torch.Generator
    step: int
    steps_per_epoch: int
    epochs: int
    fine_tuning: bool
    batch_size: int

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        ...

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        ...

    def batch(self) -> Batch:
        """This step's training rows; the same however often it is asked for within a step."""
        ...

    @property
    def tasks_per_step(self) -> int:
        """How many tasks have rows in a step: all, or one where the batching says so."""
        ...

    def alone(self, task: str, number: int) -> Batch:
        """The rows of one task in the ``number``-th step that it takes part in, counted from 0."""
        ...

    def draw(self, role: Role, size: int, tasks: tuple[str, ...] | None = None) -> Batch:
        """Random rows of a role, ``size`` of each task (or all, if there are fewer)."""
        ...

    def losses(self, batch: Batch) -> Tensor:
        """The mean loss of each task on a batch, ``[T]``, with its graph; 0 for a task without labels there."""
        ...

    def probe(
        self, batch: Batch, scope: str = "shared", tasks: tuple[str, ...] | None = None
    ) -> AbstractContextManager[Probe]:
        """Losses and gradients of all tasks (or of the suite's tasks named) on a batch, without a trace."""
        ...

    def measure(self, batch: Batch) -> Tensor:
        """The losses of a batch ``[T]`` as training sees them (dropout and all), without graph and without a trace."""
        ...

    def descend(
        self,
        batch: Batch,
        weights: Weights,
        row_weights: Mapping[str, Tensor] | None = None,
        penalty: Penalty | None = None,
    ) -> Tensor:
        """One optimiser step on the weighted losses of a batch; returns the detached losses ``[T]``.

        ``row_weights`` give, for some tasks, every training row's weight within its task, ``[n_t]``. A ``penalty`` is
        added to the weighted losses; of several micro-batches, their sum.
        """
        ...

    def combine(
        self,
        batch: Batch,
        weights: Weights,
        rule: Rule,
        row_weights: Mapping[str, Tensor] | None = None,
        at: Place = "parameters",
        objective: Objective | None = None,
        penalty: Penalty | None = None,
    ) -> Tensor:
        """As `descend`, with the shared parameters moving along Σ c_t w_t ∇L_t; heads along Σ w_t ∇L_t as ever.

        Args:
            batch: The rows of the step.
            weights: w, ``[T]``.
            rule: From the inner products ⟨w_t ∇L_t, w_s ∇L_s⟩, ``[T, T]``, to c, ``[T]``. A task without labels in the
                step has a row of zeros.
            row_weights: As in `descend`.
            at: By what the gradients are taken that the rule sees: the shared ``parameters``, or the
                ``representation`` that the heads read.
            objective: With one, w are its slopes at the losses, and its gradient reaches the method's own parameters.
            penalty: As in `descend`; its gradient is added to what was combined.
        """
        ...

    def minimise(self, batch: Batch, objective: Objective, weights: Tensor, rate: float = 1.0) -> Tensor:
        """As `descend`, for an objective of the losses ``[T]``; ``weights`` are what is written to the log.

        ``rate`` multiplies the learning rate of this step. A method may take several optimiser steps in one step of
        the loop; the schedule moves on with the first.
        """
        ...

    def apply(self, given: Mapping[str, Tensor], losses: Tensor, weights: Tensor) -> None:
        """One optimiser step along given gradients (parameter name to gradient)."""
        ...

    def dissect(self, batch: Batch, weights: Tensor, scope: str = "all") -> tuple[Tensor, TaskGradients]:
        """As `descend`; returns the losses ``[T]`` and every task's gradient over a scope, before the step.

        The gradients are those that the step is made of, for little more than the step costs; where that cannot be
        (BatchNorm that trains, micro-batches) a probe of the same rows goes before the step.
        """
        ...

    def trace(self, batch: Batch, weights: Tensor, scope: str = "all") -> tuple[Tensor, TaskGradients | LayerTraces]:
        """As `dissect`, with what `Probe.products` needs of the gradients in place of the gradients themselves.

        It takes the memory of a batch's layers where T gradients would take T times the model's, and some time more.
        """
        ...

    def descend_along(
        self, batch: Batch, weights: Tensor, direction: Mapping[str, Tensor], scope: str = "shared"
    ) -> tuple[Tensor, Tensor]:
        """As `descend`; returns the losses ``[T]`` and every task's slope ⟨∇L_t, v⟩ over a scope, before the step.

        ``direction`` is v, by parameter name. For little more than the step costs; where a step cannot be taken apart
        (BatchNorm that trains, micro-batches) a probe of the same rows goes before it.
        """
        ...

    def then(self, rest: Callable[[], None]) -> None:
        """Runs the rest of a step, which looks at the parameters that the step has moved.

        At once, in the library's loop. In a loop of your own the optimiser steps after `Method.step` has returned, and
        the rest waits for it (`OwnLoop.after_step`).
        """
        ...

    def metric(self, name: str, ids: Tensor | None = None) -> Tensor | float:
        """P of the last step: a parameter (or some of its rows) moved by -`rate`·P·gradient, all else held."""
        ...

    def exchange(self, suite: Suite) -> None:
        """Takes the rows of another suite of the same tasks, with as many rows in each role."""
        ...

    def loss_on(self, role: Role, task: str) -> Tensor:
        """The mean loss of a task over all its rows of a role, in evaluation mode, without gradient."""
        ...

    def gradient_on(self, role: Role, task: str, scope: str = "all") -> tuple[Tensor, dict[str, Tensor]]:
        """A task's mean loss over all its rows of a role and its gradient over a scope, without a trace."""
        ...

    def error_on(self, role: Role, task: str) -> float:
        """How far a task's metric on a role is from 1; the metric itself where lower is better."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of all parameters and buffers."""
        ...

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Puts a snapshot back, in place."""
        ...

    def moments(self) -> dict[str, Tensor]:
        """A copy of what the optimiser remembers of earlier steps (momentum, Adam's moments), by its own keys."""
        ...

    def restore_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Puts `moments` back; an empty mapping makes the optimiser forget."""
        ...
