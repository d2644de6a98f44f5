"""The job: what the loop does for a method, so that a method never owns plumbing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from steelyard import gradients
from steelyard.errors import SteelyardError
from steelyard.methods.job import Penalty, Weights
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Role, Suite, collate, cut
from steelyard.training import batching
from steelyard.training.alone import Alone
from steelyard.training.batching import Batcher
from steelyard.training.combining import Combining
from steelyard.training.dissecting import Dissecting
from steelyard.training.optimisers import Optimisation
from steelyard.training.probing import Probe, task_of_rows
from steelyard.training.settings import Phase, Training
from steelyard.training.stepping import gradient


class NonFiniteLossError(SteelyardError):
    """A task's loss is not a finite number any more."""


class TrainingJob(Alone, Combining, Dissecting):
    """One phase of training, as methods see it (`steelyard.methods.Job`)."""

    def __init__(
        self,
        model: SharedModel,
        network: nn.Module,
        suite: Suite,
        phase: Phase,
        training: Training,
        accelerator: Any,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.model, self.network, self.suite, self.phase, self.training = (
            model,
            network,
            suite,
            phase,
            training,
        )
        self.tasks = phase.tasks
        self.target = self.tasks.index(suite.target) if suite.target in self.tasks else None
        self.device = accelerator.device
        self._accelerator = accelerator
        self._world = accelerator.num_processes
        self._batcher = Batcher(suite, self.tasks, training, accelerator.process_index, self._world)
        self.steps_per_epoch = steps_per_epoch or self._batcher.steps
        self.epochs, self.fine_tuning = phase.epochs, not phase.weighted
        self.step = 0
        self.batch_size = training.batch_size * training.accumulate
        self.sizes = torch.tensor([float(suite[name].size()) for name in self.tasks], device=self.device)
        by_size = self.sizes / self.sizes.sum()
        self.initial_weights = by_size if phase.by_size else torch.full_like(by_size, 1 / len(self.tasks))
        self.generator = batching.seeded(training.seed, "method", phase.name)
        self.optimisation = Optimisation(model, training, phase, self.steps_per_epoch, accelerator)
        self._chosen = None if tuple(model.tasks) == self.tasks else self._places(self.tasks)
        self._current: tuple[int, Batch] | None = None
        self._advanced: int | None = None
        self._recent: list[tuple[int, Tensor, Tensor]] = []
        self.loss_sum = torch.zeros(len(self.tasks), device=self.device)
        self.loss_steps = torch.zeros_like(self.loss_sum)
        self.last_weights = self.initial_weights

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self.step // self.steps_per_epoch

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.optimisation.rate

    def batch(self) -> Batch:
        """This step's training rows; the same however often it is asked for within a step."""
        if self._current is None or self._current[0] != self.step:
            self._current = (self.step, self._placed(self._batcher.batch(self.step)))
        return self._current[1]

    def draw(self, role: Role, size: int, tasks: tuple[str, ...] | None = None) -> Batch:
        """Random rows of a role, ``size`` of each task (or all, if there are fewer)."""
        return self._placed(batching.draw(self.suite, tasks or self.tasks, role, size, self.generator))

    def losses(self, batch: Batch) -> Tensor:
        """The mean loss of each task on a batch, ``[T]``, with its graph; 0 for a task without labels there."""
        sums, counts = self._sums(batch)
        if not self._shared(batch):
            return sums / counts.clamp(min=1)
        return self._of_all(sums / self._summed(counts).clamp(min=1))

    @contextmanager
    def probe(self, batch: Batch, scope: str = "shared", tasks: tuple[str, ...] | None = None) -> Iterator[Probe]:
        """Every task's losses and gradients on a batch, in evaluation mode and without a trace.

        ``tasks`` are the suite's tasks that are meant, in the order of the answers; by default the job's. Inside the
        block no parameter may be changed. Where the batch is this process's share, all that the probe gives is
        summed over the processes; a batch that was drawn is the same in all of them, and so is what it gives.
        """
        shared = self._shared(batch)
        parameters = self.model.scope(scope, trainable=True)
        rows = task_of_rows(batch, tasks or self.tasks)
        chosen = self._chosen if tasks is None else self._places(tasks)
        with gradients.pure(self.model):
            recording: Any = gradients.record(self.model, rows, parameters, reduce=shared)
            with recording as tape:
                found = self.model.losses(batch)
            counts, sums = (v if chosen is None else v[chosen] for v in (found.counts, found.sums))
            if not shared:
                yield Probe(sums / counts.clamp(min=1), rows, parameters, tape)
            else:
                losses = self._of_all(sums / self._summed(counts).clamp(min=1))
                yield Probe(losses, rows, parameters, tape, self._summed)

    def measure(self, batch: Batch) -> Tensor:
        """The losses of a batch ``[T]`` as training sees them (dropout and all), without graph and without a trace."""
        micro, counts = self._micro_batches(batch)
        known = batching.label_counts(batch, self.tasks).to(self.device) if counts is None else counts
        return self._losses_of(micro, known, mode="keep")

    def descend(
        self,
        batch: Batch,
        weights: Weights,
        row_weights: Mapping[str, Tensor] | None = None,
        penalty: Penalty | None = None,
    ) -> Tensor:
        """One optimiser step on the weighted losses of a batch; returns the detached losses ``[T]``.

        ``row_weights`` are, for some tasks, what each training row's loss is multiplied with, ``[n_t]``; the losses
        are then Σ r_i ℓ_i over the number of labels. A ``penalty`` is added; of several micro-batches, their sum.

        With accumulation the batch is all rows of the step, cut into micro-batches whose losses are divided by the
        labels of the *whole* step: the gradient is that of one large batch, whatever rows lack labels.
        """
        if penalty is not None and self._world > 1:
            raise SteelyardError(
                "a penalty on what rows look like, such as adversarial's, is a mean over each process's own rows: "
                "with several processes it would be another; train in one"
            )
        scale = self._batcher.scale(self.step)
        micro, counts = self._micro_batches(batch)
        if self.training.accumulate > 1 and counts is not None and not isinstance(weights, Tensor):
            weights = weights(self._losses_of(micro, counts, row_weights))
        losses, used, summed = self.loss_sum, self.last_weights, None
        for number, part in enumerate(micro):
            with self._synchronised(last=number == len(micro) - 1):
                sums, own = self._sums(part, row_weights)
                means = sums / (own if counts is None else counts).clamp(min=1)
                losses = losses + means.detach() if number else means.detach()
                if isinstance(weights, Tensor):
                    used = weights
                else:
                    summed = self._summed(losses)
                    used = weights(summed)
                total = means @ _scaled(used, scale, self._world).to(means)
                self.optimisation.backward(total if penalty is None else total + penalty(part))
        losses = self._summed(losses) if summed is None else summed
        self._finish(losses, used)
        return losses

    def minimise(
        self, batch: Batch, objective: Callable[[Tensor], Tensor], weights: Tensor, rate: float = 1.0
    ) -> Tensor:
        """As `descend`, for an objective of the losses ``[T]``; ``weights`` are what is written to the log.

        ``rate`` multiplies the learning rate of this step.
        """
        micro, counts = self._micro_batches(batch)
        if counts is None:
            means = self.losses(batch)
            self.optimisation.backward(objective(means))
            losses = means.detach()
        else:
            # The objective's slopes at the whole step's losses weigh each micro-batch: the chain rule, exactly.
            losses, slopes, moved = self.last_weights, self.last_weights, dict[str, Tensor]()
            if self.training.accumulate > 1:
                losses = self._losses_of(micro, counts)
                slopes, moved = self._slopes(objective, losses)
            for number, part in enumerate(micro):
                with self._synchronised(last=number == len(micro) - 1):
                    means = self._sums(part)[0] / counts.clamp(min=1)
                    if self.training.accumulate == 1:
                        losses = self._summed(means.detach())
                        slopes, moved = self._slopes(objective, losses)
                    self.optimisation.backward((means * slopes * self._world).sum())
            # Every process has an objective's whole gradient by the method's own parameters: there is nothing to sum.
            own = self._own_parameters() if moved else {}
            for name, value in moved.items():
                parameter = own[name]
                parameter.grad = value if parameter.grad is None else parameter.grad + value
        self._finish(losses, weights, rate)
        return losses

    def _slopes(self, objective: Callable[[Tensor], Tensor], losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """An objective's slopes at the losses ``[T]``, and its gradient by what is neither encoder nor head."""
        leaf = losses.clone().requires_grad_()
        scale = self.optimisation.loss_scale
        found = gradient(objective(leaf) * scale, {"": leaf, **self._own_parameters()})
        slopes = found.pop("", torch.zeros_like(leaf))
        return slopes / scale, found

    def _own_parameters(self) -> dict[str, nn.Parameter]:
        """The method's own: what is neither encoder nor head."""
        named = self.model.named_parameters()
        return {name: p for name, p in named if p.requires_grad and not name.startswith(("encoder.", "heads."))}

    def apply(self, given: Mapping[str, Tensor], losses: Tensor, weights: Tensor) -> None:
        """One optimiser step along given gradients (parameter name to gradient)."""
        parameters = dict(self.model.named_parameters())
        scale = self.optimisation.loss_scale
        for name, value in given.items():
            parameters[name].grad = (value if scale == 1.0 else value * scale).to(parameters[name])
        self._finish(losses.detach(), weights)

    def then(self, rest: Callable[[], None]) -> None:
        """Runs the rest of a step: the parameters have moved."""
        rest()

    def loss_on(self, role: Role, task: str) -> Tensor:
        """The mean loss of a task over all its rows of a role, in evaluation mode, without gradient."""
        rows = self.suite[task].rows[role]
        total = torch.zeros(2, device=self.device)
        with torch.no_grad(), gradients.pure(self.model):
            for index in torch.split(torch.arange(len(rows)), 256):
                chosen = (rows.inputs, index, [(task, rows.labels)])
                found = self.model.losses(self._placed(collate([chosen], self.suite.spec.padding)))
                total += torch.stack([found.sums.sum(), found.counts.sum()])
        return total[0] / total[1].clamp(min=1)

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of all parameters and buffers."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Puts a snapshot back, in place."""
        self.model.load_state_dict(dict(snapshot))

    def flush(self) -> None:
        """Takes the losses of the last steps in; the only wait for the device.

        Raises:
            NonFiniteLossError: If a loss was not finite; it names the task and the step.
        """
        if not self._recent:
            return
        losses, steps = torch.stack([loss for _, loss, _ in self._recent]), [step for step, _, _ in self._recent]
        self.last_weights = self._recent[-1][2]
        self._recent.clear()
        bad = (~losses.isfinite()).nonzero()
        if len(bad):
            step, task = steps[int(bad[0, 0])] + 1, self.tasks[int(bad[0, 1])]
            raise NonFiniteLossError(
                f"task {task!r}: the loss is not a finite number at step {step} "
                f"(epoch {(step - 1) // self.steps_per_epoch + 1}); "
                "lower learning_rate, set clip, or look for extreme values in this task's rows"
            )
        self.loss_sum += losses.sum(0)
        self.loss_steps += (losses != 0).sum(0)

    def mean_losses(self) -> list[float]:
        """Each task's mean loss since they were last forgotten, over the steps in which it had rows."""
        means: list[float] = (self.loss_sum / self.loss_steps.clamp(min=1)).tolist()
        return means

    def forget_losses(self) -> None:
        """Starts `mean_losses` anew."""
        self.loss_sum.zero_()
        self.loss_steps.zero_()

    def _finish(self, losses: Tensor, weights: Tensor, rate: float = 1.0) -> None:
        # A method may take several optimiser steps in one step of the loop; the schedule counts the loop's.
        self.optimisation.step(rate, advance=self._advanced != self.step)
        self._advanced = self.step
        self._share_buffers()
        self._recent.append((self.step, losses.detach(), weights.detach()))

    def _placed(self, batch: Batch) -> Batch:
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def _sums(self, batch: Batch, row_weights: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        if len(batch) == 1 and self._rows_mix():
            raise SteelyardError(
                f"task {batch.tasks[0]!r}: a step has one row of it alone, from which BatchNorm cannot learn; raise "
                "batch_size, set sampling = 'balanced', or use an encoder without BatchNorm"
            )
        found = self.model.losses(batch, self.network(batch), row_weights)
        return self._in_order(found.sums), self._in_order(found.counts)

    def _in_order(self, values: Tensor) -> Tensor:
        """The suite's tasks to the job's."""
        return values if self._chosen is None else values[self._chosen]

    def _micro_batches(self, batch: Batch) -> tuple[list[Batch], Tensor | None]:
        """The micro-batches, and the labels of the whole step where one micro-batch does not know them."""
        pieces = self.training.accumulate
        if pieces == 1 and self._world == 1:
            return [batch], None
        counts = batching.label_counts(batch, self.tasks).to(self.device)
        counts = self._summed(counts)
        return cut(batch, pieces), counts

    def _places(self, tasks: tuple[str, ...]) -> Tensor:
        """Where these tasks stand among the suite's, ``LongTensor[len(tasks)]``."""
        return torch.tensor([self.model.tasks.index(name) for name in tasks], device=self.device)

    def _losses_of(
        self,
        micro: list[Batch],
        counts: Tensor,
        row_weights: Mapping[str, Tensor] | None = None,
        mode: Literal["eval", "keep"] = "eval",
    ) -> Tensor:
        """The losses of a whole step, without graph and without touching buffers or randomness."""
        with torch.no_grad(), gradients.pure(self.model, mode):
            sums = [self._sums(part, row_weights)[0] for part in micro]
            losses = torch.stack(sums).sum(0) / counts.clamp(min=1)
        return self._summed(losses)

    def _shared(self, batch: Batch) -> bool:
        """Whether other processes hold other rows of this batch."""
        return self._world > 1 and not batch.whole

    def _of_all(self, mine: Tensor) -> Tensor:
        """The sum over the processes, with the graph of this process's part."""
        return mine + (self._summed(mine.detach()) - mine.detach())

    @contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        """Processes exchange gradients once per step: with its last micro-batch."""
        with contextlib.nullcontext() if last or self._world == 1 else self._accelerator.no_sync(self.network):
            yield


def _scaled(weights: Tensor, scale: Tensor | None, world: int) -> Tensor:
    if scale is not None:
        weights = weights * scale.to(weights)
    # Processes average their gradients, but each holds a share of one sum.
    return weights * world if world > 1 else weights
