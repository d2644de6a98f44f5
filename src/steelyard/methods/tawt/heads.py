"""Training the target's head with φ frozen: the lower half of the bilevel problem, in pre-training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steelyard import gradients
from steelyard.methods.job import Job
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Role

ROWS = 1024
"""Most rows of the target that its head is fitted on at once."""


def fit_head(job: Job, task: str, steps: int, rate: float) -> None:
    """Moves a head towards argmin_f L(φ, f): ``steps`` of Adam on the head alone, from where it is.

    The encoder runs once; its features do not change while the head learns. Nothing but the head moves.
    """
    batch = job.draw(Role.TRAIN, ROWS, (task,))
    head = job.model.head(task)
    features = head_inputs(job.model, batch, task)
    parameters = [p for p in head.parameters() if p.requires_grad]
    if not parameters:
        return
    optimizer = torch.optim.Adam(parameters, lr=rate)
    modes = [(part, part.training) for part in head.modules()]
    head.eval()
    for _ in range(steps):
        values, counts = job.model.row_losses(batch, {task: head(features)})[task]
        found = torch.autograd.grad(values.sum() / counts.sum().clamp(min=1), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient
        optimizer.step()
    optimizer.zero_grad()
    for part, mode in modes:
        part.training = mode


def head_inputs(model: SharedModel, batch: Batch, task: str) -> Tensor:
    """What a task's head is given for a batch of that task, in evaluation mode, without gradient."""
    seen: list[Tensor] = []

    def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        del module
        seen.append(arguments[0])

    handle = model.head(task).register_forward_pre_hook(note)
    try:
        with torch.no_grad(), gradients.pure(model):
            model(batch)
    finally:
        handle.remove()
    return seen[0]
