"""Steps along a combination of the tasks' gradients, micro-batches and processes summed before they are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from steelyard import gradients
from steelyard.errors import SteelyardError
from steelyard.methods.job import Objective, Penalty, Place, Rule, Weights
from steelyard.model import SharedModel
from steelyard.tasks import Batch
from steelyard.training import processes
from steelyard.training.batching import Batcher
from steelyard.training.optimisers import Optimisation
from steelyard.training.probing import task_of_rows
from steelyard.training.settings import Training
from steelyard.training.stepping import Direct, Forward, Named, Stored, added, gradient, over_processes, read_by_heads

STORED = 1 << 31
"""Bytes up to which every task's gradient is kept; beyond, a second backward follows the Gram matrix."""

Parameters = dict[str, nn.Parameter]


@dataclass(frozen=True)
class _Chosen:
    """A step's weights.

    Attributes:
        weights: w, ``[T]``.
        used: What the losses are multiplied with, where a step has rows of one task alone.
        moved: The gradient of an objective by the method's own parameters.
    """

    weights: Tensor
    used: Tensor
    moved: Named


class Combining:
    """The part of a job that combines the tasks' gradients; see `steelyard.methods.Job`."""

    model: SharedModel
    network: nn.Module
    tasks: tuple[str, ...]
    device: torch.device
    step: int
    training: Training
    optimisation: Optimisation
    descend: Callable[..., Tensor]
    minimise: Callable[..., Tensor]
    flush: Callable[[], None]
    _accelerator: Any
    _batcher: Batcher
    _world: int
    _recent: list[tuple[int, Tensor, Tensor]]
    _finish: Callable[[Tensor, Tensor], None]
    _losses_of: Callable[..., Tensor]
    _micro_batches: Callable[[Batch], tuple[list[Batch], Tensor | None]]
    _sums: Callable[..., tuple[Tensor, Tensor]]

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
        """As `descend`, with the shared parameters moving along Σ c_t w_t ∇L_t, c = rule(Gram matrix).

        The gradients are those of the whole step: micro-batches and processes are summed before they are combined.
        They come from the training step's own forward, by the engine where it can (see `gradients.record`), else by a
        backward per task: with several labels per row, and with BatchNorm that trains, whose rows mix.
        """
        if penalty is not None and self._world > 1:
            return self.descend(batch, weights, row_weights, penalty)  # which refuses it
        shared, own = self._parted()
        micro, counts = self._micro_batches(batch)
        if not shared:  # a frozen encoder: nothing that the tasks could disagree on
            return self._uncombined(batch, weights, row_weights, objective, penalty)
        chosen: _Chosen | None = None
        if len(micro) > 1 and not (objective is None and isinstance(weights, Tensor)):
            chosen = self._choose(weights, objective, self._losses_of(micro, counts, row_weights), own)
        losses, heads = torch.zeros(1, device=self.device), Named()
        found: Stored | Direct | None = None
        for part in micro:
            forward = self._recorded(part, counts, row_weights, shared, at)
            losses = losses + forward.losses.detach() / self.optimisation.loss_scale
            chosen = chosen or self._choose(weights, objective, self._summed(losses), own)
            heads = added(heads, gradient(forward.losses @ chosen.used.to(losses), own))
            if penalty is not None:
                heads = added(heads, gradient(self._penalty(penalty(part)), shared | own))
            piece = self._gradients(forward, shared, at, whole=self.training.accumulate == 1)
            found = found.plus(piece) if isinstance(found, Stored) and isinstance(piece, Stored) else piece
        if chosen is None or found is None:
            raise SteelyardError("the batch has no rows")
        if self._world > 1:
            reached = own if penalty is None else shared | own
            found, heads = found.over_processes(self._summed), over_processes(heads, reached, self._summed)
        losses = self._summed(losses)
        self._move(losses, added(heads, chosen.moved), found, chosen, rule)
        return losses

    def _penalty(self, value: Tensor) -> Tensor:
        """A micro-batch's share of a penalty, under the loss scale: a sum over them, a mean over processes."""
        return value * (self.optimisation.loss_scale / self._world)

    def _uncombined(
        self,
        batch: Batch,
        weights: Weights,
        row_weights: Mapping[str, Tensor] | None,
        objective: Objective | None,
        penalty: Penalty | None,
    ) -> Tensor:
        if objective is None:
            return self.descend(batch, weights, row_weights, penalty)
        return self.minimise(batch, objective, weights)

    def _parted(self) -> tuple[Parameters, Parameters]:
        """Trainable parameters: those of the encoder, and all others."""
        every = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        shared = {name: p for name, p in every.items() if name.startswith("encoder.")}
        return shared, {name: p for name, p in every.items() if name not in shared}

    def _choose(self, weights: Weights, objective: Objective | None, losses: Tensor, own: Parameters) -> _Chosen:
        """The weights of this step, and an objective's gradient to the method's own parameters."""
        moved, scale = Named(), self.optimisation.loss_scale
        if objective is not None:
            leaf = losses.clone().requires_grad_()
            found = gradient(objective(leaf) * scale, {"": leaf, **own})
            chosen = found.pop("", torch.zeros_like(leaf)) / scale
            moved = found
        else:
            chosen = (weights if isinstance(weights, Tensor) else weights(losses)).detach().to(losses)
        turn = self._batcher.scale(self.step)
        return _Chosen(chosen, chosen if turn is None else chosen * turn.to(chosen), moved)

    def _recorded(
        self,
        part: Batch,
        counts: Tensor | None,
        row_weights: Mapping[str, Tensor] | None,
        shared: Parameters,
        at: Place,
    ) -> Forward:
        """A training forward of which every task's gradient can be told."""
        rows = None if self._rows_mix() else task_of_rows(part, self.tasks)
        recording: AbstractContextManager[Any] = nullcontext()
        if rows is not None:
            recording = gradients.record(self.model, rows, shared)
        reading: AbstractContextManager[Any] = nullcontext()
        if at == "representation":
            reading = read_by_heads(self.model, self.tasks)
        # Processes exchange by themselves only what a backward of the whole loss gives; this step takes none.
        quiet: Any = self._accelerator.no_sync(self.network) if self._world > 1 else nullcontext()
        with quiet, reading as blocks, recording as tape:
            sums, labels = self._sums(part, row_weights)
            losses = sums / (labels if counts is None else counts).clamp(min=1)
        return Forward(part, losses * self.optimisation.loss_scale, tape, blocks)

    def _gradients(self, forward: Forward, shared: Parameters, at: Place, whole: bool) -> Stored | Direct:
        gram = forward.gram_at_heads(self.tasks) if at == "representation" else None
        if not whole:
            return Stored.of(forward, shared, gram)
        if gram is not None:
            return Direct(forward, shared, gram)
        numbers = len(self.tasks) * sum(p.numel() for p in shared.values())
        if forward.tape is not None and self._world == 1 and 4 * numbers > STORED:
            return Direct(forward, shared, forward.tape.gram(forward.losses))
        return Stored.of(forward, shared, None)

    def _move(self, losses: Tensor, heads: Named, found: Stored | Direct, chosen: _Chosen, rule: Rule) -> None:
        """Solves, sets the gradients, and steps."""
        used, gram = chosen.used.double(), found.gram().double() / self.optimisation.loss_scale**2
        coefficients = torch.ones_like(used)
        if bool(gram.isfinite().all()):
            coefficients = rule(used[:, None] * gram * used).to(used)
        elif not self.optimisation.scaled:
            # A gradient that is no number is told as a loss that is none: by the task's name, and without a step.
            bad = torch.where(gram.diagonal().isfinite(), losses.double(), torch.nan)
            self._recent.append((self.step, bad.to(losses), chosen.weights))
            self.flush()
        named = dict(self.model.named_parameters())
        for name, value in added(found.combine(coefficients * used), heads).items():
            named[name].grad = value.to(named[name])
        self._finish(losses, (coefficients * chosen.weights).to(losses))

    def _rows_mix(self) -> bool:
        layers = (layer for layer in self.model.modules() if isinstance(layer, _BatchNorm))
        return any(layer.training or layer.running_mean is None for layer in layers)

    def _summed(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        total: Tensor = self._accelerator.reduce(value, "sum") if self._world > 1 else value
        return total

    def _share_buffers(self) -> None:
        """Buffers as the first process has them."""
        if self._world > 1:
            processes.share_buffers(self.model)
