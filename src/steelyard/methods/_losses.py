"""What methods share that look at the losses of a step."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.methods.job import Job


def require_all_tasks(name: str, job: Job, what: str) -> None:
    """Refuses a batching under which the tasks never meet."""
    if job.tasks_per_step < len(job.tasks):
        raise SteelyardError(f"method {name!r} compares the tasks' {what} within a step: set batching = 'all_tasks'")


def latest(state: dict[str, Tensor], losses: Tensor) -> Tensor:
    """Each task's last finite loss: a task without a label in this step counts with the loss that it had before."""
    before = state.get("losses", torch.zeros_like(losses))
    found = torch.where((losses != 0) & losses.isfinite(), losses, before.to(losses))
    state["losses"] = found
    return found
