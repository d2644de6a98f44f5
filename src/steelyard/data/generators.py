"""The papers' generators: overlaid images, tasks with a known flip rate, label noise, size ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Inputs, Kind, Ragged, Role, Rows, Suite, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

OVERLAY_CHUNK = 4_096


def overlay(first: Tensor, second: Tensor, shift: int) -> Tensor:
    """Two images on one canvas, one at its top left and one at its bottom right, at the size of either.

    The canvas is ``shift`` wider and higher than an image, pixels that meet keep the brighter, and the canvas
    is resized to the size of an image, as MultiMNIST is made (Sabour et al. 2017; Sener and Koltun 2018).

    Args:
        first: ``[N, channels, height, width]``, top left.
        second: The same shape, bottom right.
        shift: By how many pixels they are apart in each direction.

    Returns:
        The same shape and dtype.
    """
    blocks = []
    for a, b in _chunks(first, second):
        canvas = torch.maximum(F.pad(a.float(), (0, shift, 0, shift)), F.pad(b.float(), (shift, 0, shift, 0)))
        small = F.interpolate(canvas, size=a.shape[-2:], mode="bilinear", align_corners=False, antialias=True)
        blocks.append(small if first.is_floating_point() else small.round().to(first.dtype))
    return torch.cat(blocks)


def _chunks(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(first), OVERLAY_CHUNK):
        yield first[start : start + OVERLAY_CHUNK], second[start : start + OVERLAY_CHUNK]


def overlaid_pairs(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], count: int, seed: int, shift: int
) -> tuple[Tensor, Tensor, Tensor]:
    """MultiMNIST from any pair of image sets: images, and the labels of the top left and the bottom right.

    Args:
        first: Images ``[N, channels, height, width]`` and labels ``[N]`` for the top left; the first ``count`` pairs
            use each of them before any comes twice.
        second: The same for the bottom right, drawn at random.
        count: The number of pairs.
        seed: Of the pairing.
        shift: See `overlay`.
    """
    generator = np.random.default_rng(seed)
    rounds = -(-count // len(first[0]))
    left = np.concatenate([generator.permutation(len(first[0])) for _ in range(rounds)])[:count]
    right = generator.integers(0, len(second[0]), count)
    images = overlay(first[0][torch.from_numpy(left)], second[0][torch.from_numpy(right)], shift)
    return images, first[1][torch.from_numpy(left)], second[1][torch.from_numpy(right)]


def teacher_student(
    flips: Mapping[str, float] | Sequence[float],
    *,
    rows: int = 10_000,
    target_rows: int = 1_000,
    held_rows: int = 2_000,
    dim: int = 100,
    hidden: int = 10,
    seed: int = 0,
) -> Suite:
    """TAWT's tasks with a known distance: one teacher network labels all, and each source's labels are flipped.

    The target's labels are the teacher's sign; a source of flip rate p reports the opposite sign with
    probability p, so 0 is as good as the target, 0.5 is noise, and 1 is the opposite task.

    Args:
        flips: The flip rate of each source, by name or in order.
        rows: Training rows of each source.
        target_rows: Training rows of the target.
        held_rows: Rows of the target's dev, and of its test.
        dim: The number of features, standard normal.
        hidden: The width of the teacher.
        seed: Of everything.
    """
    named = flips if isinstance(flips, Mapping) else {f"flip-{p:g}": p for p in flips}
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randn(dim, hidden, generator=generator) / dim**0.5
    outer = torch.randn(hidden, generator=generator)

    def drawn(count: int, flip: float) -> Rows:
        inputs = torch.randn(count, dim, generator=generator)
        labels = ((inputs @ inner).relu() @ outer > (inner.norm(dim=0) @ outer) / (2 * torch.pi) ** 0.5).long()
        wrong = torch.rand(count, generator=generator) < flip
        return Rows(inputs, torch.where(wrong, 1 - labels, labels), f"teacher-student, flip rate {flip:g}")

    roles = {Role.TRAIN: target_rows, Role.DEV_SELECT: held_rows, Role.TEST: held_rows}
    target = Task("target", Kind.CLASSIFICATION, {r: drawn(n, 0.0) for r, n in roles.items()}, ("0", "1"))
    sources = [Task(n, Kind.CLASSIFICATION, {Role.TRAIN: drawn(rows, p)}, ("0", "1")) for n, p in named.items()]
    return Suite([target, *sources], target="target")


def flip_labels(labels: Inputs, rate: float, classes: int, seed: int = 0) -> Inputs:
    """Label noise: each class index becomes one of the others with probability ``rate``; missing ones stay so."""
    if isinstance(labels, Ragged):
        values = flip_labels(labels.values, rate, classes, seed)
        return Ragged(values, labels.offsets) if isinstance(values, Tensor) else labels
    transition = torch.full((classes, classes), rate / (classes - 1)).fill_diagonal_(1 - rate)
    return transition_labels(labels, transition, seed)


def transition_labels(labels: Tensor, transition: Tensor, seed: int = 0) -> Tensor:
    """Label noise by class: class i becomes class j with probability ``transition[i, j]``.

    Args:
        labels: Class indices ``[N]``.
        transition: ``[C, C]``, each row adding up to 1.
        seed: Of the noise.
    """
    if not torch.allclose(transition.sum(1), torch.ones(len(transition))):
        raise SteelyardError("label noise: each row of the transition matrix must add up to 1")
    given = labels != IGNORE
    generator = torch.Generator().manual_seed(seed)
    noisy = labels.clone()
    noisy[given] = torch.multinomial(transition[labels[given]], 1, generator=generator).squeeze(1)
    return noisy


def add_noise(labels: Tensor, deviation: float, seed: int = 0) -> Tensor:
    """Additive normal noise on real-valued labels."""
    return labels + deviation * torch.randn(labels.shape, generator=torch.Generator().manual_seed(seed))


def with_sizes(suite: Suite, sizes: Mapping[str, int | float], seed: int = 0) -> Suite:
    """The same suite with smaller training sets.

    Args:
        suite: Any suite.
        sizes: By task, a number of rows, or a ratio to the target's training rows if it is a float.
        seed: Of the draw.
    """
    tasks = []
    for number, (name, task) in enumerate(suite.tasks.items()):
        data: dict[Role | str, Rows] = dict(task.rows.items())
        if name in sizes:
            data[Role.TRAIN] = _shrunk(suite, task, sizes[name], np.random.default_rng([seed, number]))
        tasks.append(
            Task(name, task.kind, data, task.classes, task.outputs, task.head, task.loss, task.metric, task.allow)
        )
    return Suite(tasks, suite.target, padding=suite.spec.padding, vocabulary=suite.spec.vocabulary or None)


def _shrunk(suite: Suite, task: Task, size: float, generator: np.random.Generator) -> Rows:
    rows = task.rows[Role.TRAIN]
    if isinstance(size, float) and suite.target is None:
        raise SteelyardError(f"task {task.name!r}: a size ratio needs a target; give a number of rows")
    count = round(size * suite[suite.target or task.name].size()) if isinstance(size, float) else size
    if not 0 < count <= len(rows):
        raise SteelyardError(f"task {task.name!r} has {len(rows)} training rows, {count} are asked for")
    chosen: NDArray[np.int64] = np.sort(generator.permutation(len(rows))[:count])
    return rows.select(torch.from_numpy(chosen))
