"""A look before training: what the sources' answers about the target's rows say of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.functional import cautious_ridge, leave_one_out_errors
from steelyard.methods.job import Job
from steelyard.methods.tawt import evidence
from steelyard.methods.tawt.heads import head_inputs
from steelyard.tasks import Role, labelled, taken

ROWS = 2048
"""Most rows of a task that are looked at."""

CHUNK = 256
"""Rows in one call of the encoder."""


Task = tuple[Tensor, Tensor]
"""Features ``[n, d]`` of a task's labelled rows (or tokens), and their labels as numbers ``[n, k]``."""


def effects(job: Job, goal: Mapping[str, float], sources: tuple[str, ...], role: Role) -> Tensor:
    """How far each source is from the others by its answers (`told`), on the encoder as it is: ``[len(sources)]``."""
    known = [_rows(job, name, Role.TRAIN) for name in sources]
    total = torch.zeros(len(sources), dtype=torch.float64)
    for target, part in goal.items():
        total += part * told(_rows(job, target, role), known)
    return total


def told(target: Task, sources: Sequence[Task]) -> Tensor:
    """What the sources' answers about a target's rows say of its labels; what says much is negative: ``[S]``.

    A linear head is fitted to each source's rows. Its answers about the target's rows are all that a second one,
    fitted to the target's labels, is given; that one's squared error on each row that it was not fitted to is one
    look at the source. The looks make effects, in standard deviations between sources, shrunk by the evidence. No row
    is held out, as nothing else has been fitted to these; and a source whose labels its features do not tell answers
    nothing.
    """
    features, labels = target
    if len(labels) < 2:
        return torch.zeros(len(sources), dtype=torch.float64)
    looks = []
    for inputs, wanted in sources:
        head, level = (
            cautious_ridge(inputs, wanted) if len(wanted) > 1 else (features.new_zeros(features.shape[1], 1), 0)
        )
        looks.append(leave_one_out_errors(features @ head + level, labels))
    return evidence.of_looks(torch.stack(looks, 1))


def _rows(job: Job, task: str, role: Role) -> Task:
    """A task's rows, as its head is given them; texts of like length together."""
    batch = job.draw(role, ROWS, (task,))
    part = batch.parts[0]
    order = torch.arange(len(part.inputs)) if part.mask is None else part.mask.sum(1).argsort().cpu()
    features, labels = [], []
    for rows in torch.split(order, CHUNK):
        piece = taken(batch, rows.to(part.inputs.device))
        seen, said = head_inputs(job.model, piece, task).cpu(), piece.parts[0].members[0].labels.cpu()
        if not bool(seen.isfinite().all()):
            raise SteelyardError(
                f"task {task!r}: what the encoder makes of its {role.value} rows is not finite before training; look "
                "for extreme values in these rows, and in the encoder"
            )
        given = labelled(said) if not said.is_floating_point() else labelled(said).reshape(len(said), -1).any(1)
        features.append(seen[given].flatten(1).double())
        labels.append(said[given])
    found = torch.cat(features), numbers(torch.cat(labels))
    if len(found[0]) <= ROWS:
        return found
    some = torch.randperm(len(found[0]), generator=job.generator)[:ROWS]
    return found[0][some], found[1][some]


def numbers(labels: Tensor) -> Tensor:
    """Labels as numbers ``[n, k]``: 1 for a row's class and 0 for others; or standard deviations, 0 where missing."""
    if not labels.is_floating_point():
        return F.one_hot(labels, int(labels.max()) + 1 if len(labels) else 1).double()
    columns = labels if labels.dim() > 1 else labels[:, None]
    given, values = labelled(columns), columns.nan_to_num().double()
    count = given.sum(0).clamp(min=1)
    values = torch.where(given, values - (values * given).sum(0) / count, 0.0)
    return values / (values.square().sum(0) / count).sqrt().clamp_min(1e-30)
