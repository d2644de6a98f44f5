"""Covariance alignment (Wu, Zhang and Ré, ICLR 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from steelyard.errors import SteelyardError
from steelyard.methods import base
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job
from steelyard.model import SharedModel, evaluating


class Alignment(Method):
    """A matrix R_t per task turns its embeddings, Z_t = X_t R_t, so that the tasks' covariances meet in B.

    1. B and the heads A_t are trained, R_t = I, for the first ``warmup`` of the epochs.
    2. Then B is held, as it is in evaluation mode, and on every batch one step is taken on the heads of its tasks
       and one on their R_t.

    With ``steps = "joint"`` B, A_t and R_t move together, from the first step. In pre-training the target's R_t
    comes in with the fine-tuning, which then holds B (or moves all, with ``joint``).
    """

    name = "alignment"
    search: ClassVar[Search] = {"warmup": (0.0, 0.5, 0.8)}
    summary = "a matrix per task aligns its embeddings' covariance with the other tasks'"
    paper = "Wu, Zhang and Ré 2020, Understanding and Improving Information Transfer in Multi-Task Learning"
    cost = "1 step; 2 once B is held"
    fine_tunes = True

    class Options(base.Options):
        """Options of `Alignment`."""

        matrix: Literal["full", "orthogonal", "low_rank"] = Field(default="full", description="what R_t may be")
        rank: int = Field(default=8, ge=1, description="the rank of R_t - I, where it is low")
        stage: str | None = Field(
            default=None, description="input, output or a module of the encoder; unset: the encoder's own stage"
        )
        tasks: Literal["all", "target", "sources"] = Field(default="all", description="which tasks get an R_t")
        steps: Literal["alternating", "joint"] = Field(
            default="alternating", description="heads and R_t in turns with B held, or everything in one step"
        )
        warmup: float = Field(default=0.5, ge=0, le=1, description="share of the epochs before B is held")

    options: Options

    def adapt(self, model: SharedModel) -> None:
        """Puts R_t = I between embeddings and B."""
        options = self.options
        if options.tasks != "all" and model.target is None:
            raise SteelyardError(f"method 'alignment', tasks = {options.tasks!r}: the suite has no target; name one")
        chosen = [name for name in model.tasks if options.tasks == "all" or (name == model.target) == self._target]
        model.add_alignment(chosen, options.matrix, options.rank, options.stage)

    def step(self, job: Job) -> None:
        """One step on everything; or one on the heads and one on the matrices, with B held."""
        batch, model = job.batch(), job.model
        alignment = model.alignment
        if alignment is None:
            raise SteelyardError("method 'alignment' needs its matrices in the model: call method.adapt(model) first")
        joint = self.options.steps == "joint"
        aligned = [name for name in batch.tasks if name in alignment.tasks]
        if joint or not aligned or job.step < self._held_from(job):
            with _moving(model, model.parameters() if joint else _but(model, alignment), held=None):
                self.descend(job, batch, self.weights)
            return
        for turn in (model.scope("heads").values(), alignment.parameters()):
            with _moving(model, turn, held=model.encoder):
                self.descend(job, batch, self.weights)

    @property
    def _target(self) -> bool:
        return self.options.tasks == "target"

    def _held_from(self, job: Job) -> int:
        """The step from which on B is held."""
        if job.fine_tuning:
            return 0
        return round(self.options.warmup * job.epochs) * job.steps_per_epoch


def _but(model: nn.Module, without: nn.Module) -> Iterator[nn.Parameter]:
    left_out = {id(p) for p in without.parameters()}
    return (p for p in model.parameters() if id(p) not in left_out)


@contextmanager
def _moving(model: nn.Module, chosen: Iterable[nn.Parameter], held: nn.Module | None) -> Iterator[None]:
    """Lets only some parameters get gradients, with one module in evaluation mode; puts all back.

    A parameter without a gradient is passed over by the optimiser: neither momentum nor weight decay moves it.
    """
    moving = {id(p) for p in chosen}
    still = [p for p in model.parameters() if p.requires_grad and id(p) not in moving]
    for parameter in still:
        parameter.requires_grad_(False)
    try:
        if held is None:
            yield
        else:
            with evaluating(held), _recurrent(held):
                yield
    finally:
        for parameter in still:
            parameter.requires_grad_(True)


@contextmanager
def _recurrent(module: nn.Module) -> Iterator[None]:
    """CuDNN takes no gradient through a recurrent layer in evaluation mode; torch's own kernels do."""
    if torch.cuda.is_available() and any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        with torch.backends.cudnn.flags(enabled=False):
            yield
    else:
        yield
