"""Label noise: flips, flips by class, and additive noise, on labels or on a suite's training rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Inputs, Kind, Ragged, Role, Rows, Suite, Task


def flip_labels(labels: Inputs, rate: float, classes: int = 2, seed: int = 0) -> Inputs:
    """Each class index becomes one of the others with probability ``rate``, and each 0/1 label the other.

    Args:
        labels: Class indices ``LongTensor[N]``, tags (ragged), or 0/1 labels ``float Tensor[N, K]``. Missing
            labels stay missing.
        rate: In [0, 1].
        classes: The number of classes; not needed for 0/1 labels.
        seed: Of the noise.
    """
    if not 0 <= rate <= 1:
        raise SteelyardError(f"label noise: the rate {rate:g} is no share; give a number from 0 to 1")
    if isinstance(labels, Tensor) and labels.is_floating_point():
        wrong = torch.rand(labels.shape, generator=torch.Generator().manual_seed(seed)) < rate
        return torch.where(wrong, 1 - labels, labels)
    if classes < 2:
        raise SteelyardError("label noise: with fewer than two classes there is no other label")
    transition = torch.full((classes, classes), rate / (classes - 1)).fill_diagonal_(1 - rate)
    return transition_labels(labels, transition, seed)


def transition_labels(labels: Inputs, transition: Tensor, seed: int = 0) -> Inputs:
    """Noise by class: class i becomes class j with probability ``transition[i, j]``.

    Args:
        labels: Class indices ``LongTensor[N]``, or tags (ragged). Missing labels stay missing.
        transition: ``[C, C]``, each row adding up to 1.
        seed: Of the noise.
    """
    if isinstance(labels, Ragged):
        values = transition_labels(labels.values, transition, seed)
        return Ragged(values, labels.offsets) if isinstance(values, Tensor) else labels
    square = transition.dim() == 2 and transition.shape[0] == transition.shape[1]
    if not square or bool((transition < 0).any()) or not torch.allclose(transition.sum(1), torch.ones(len(transition))):
        raise SteelyardError(
            "label noise: a transition matrix is square, without negative entries, and each row must add up to 1"
        )
    given = labels != IGNORE
    if given.any() and int(labels[given].max()) >= len(transition):
        raise SteelyardError(
            f"label noise: the transition matrix has {len(transition)} classes, but there is a label "
            f"{int(labels[given].max())}; give a row for every class"
        )
    noisy = labels.clone()
    if given.any():
        generator = torch.Generator().manual_seed(seed)
        noisy[given] = torch.multinomial(transition[labels[given]], 1, generator=generator).squeeze(1)
    return noisy


def add_noise(labels: Tensor, deviation: float, seed: int = 0) -> Tensor:
    """Normal noise added to real-valued labels; missing ones stay missing."""
    if deviation < 0:
        raise SteelyardError(f"label noise: the deviation {deviation:g} is negative")
    return labels + deviation * torch.randn(labels.shape, generator=torch.Generator().manual_seed(seed))


def with_noise(suite: Suite, noise: Mapping[str, float | Tensor], seed: int = 0) -> Suite:
    """The same suite with noisy training labels; dev, test and the other roles stay clean.

    Args:
        suite: Any suite.
        noise: By task, the rate of flips (for a regression: the deviation of additive noise), or a transition
            matrix ``[C, C]``.
        seed: Of the noise; tasks differ in theirs.
    """
    unknown = sorted(set(noise) - set(suite.tasks))
    if unknown:
        raise SteelyardError(f"label noise: there is no task {unknown[0]!r}, only {', '.join(suite.tasks)}")
    tasks = []
    for number, (name, task) in enumerate(suite.tasks.items()):
        data = dict(task.rows)
        if name in noise:
            rows = data[Role.TRAIN]
            labels = _noisy(task, rows.labels, noise[name], seed * 1_000_003 + number)
            data[Role.TRAIN] = Rows(rows.inputs, labels, rows.origin, rows.lines)
        tasks.append(task.with_rows(data))
    return suite.with_tasks(tasks)


def _noisy(task: Task, labels: Inputs, noise: float | Tensor, seed: int) -> Inputs:
    if isinstance(noise, Tensor):
        if task.kind not in (Kind.CLASSIFICATION, Kind.TAGGING):
            raise SteelyardError(f"task {task.name!r} is {task.kind}: noise by class needs classes; give one number")
        return transition_labels(labels, noise, seed)
    if task.kind is Kind.REGRESSION and isinstance(labels, Tensor):
        return add_noise(labels, noise, seed)
    return flip_labels(labels, noise, task.outputs, seed)
