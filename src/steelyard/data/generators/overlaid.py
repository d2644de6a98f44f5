"""MultiMNIST from any pair of image sets: two images on one canvas, a task for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.tasks import Kind, Role, Rows, Suite, Task

CHUNK = 4_096

Images = tuple[Tensor, Tensor]
"""Images ``[N, channels, height, width]`` and class indices ``[N]``."""


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
    for start in range(0, len(first), CHUNK):
        yield first[start : start + CHUNK], second[start : start + CHUNK]


def overlaid_pairs(
    first: Images, second: Images, count: int, seed: int, shift: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Overlaid images, and the labels of the top left and the bottom right.

    Args:
        first: Images ``[N, channels, height, width]`` and labels ``[N]`` for the top left; the first ``count`` pairs
            use each of them before any comes twice.
        second: The same for the bottom right, drawn at random.
        count: The number of pairs.
        seed: Of the pairing.
        shift: See `overlay`; by default two sevenths of the width, as MultiMNIST's 8 of 28.

    Raises:
        SteelyardError: If the two sets hold images of different shapes.
    """
    if first[0].shape[1:] != second[0].shape[1:]:
        raise SteelyardError(
            f"images of {list(first[0].shape[1:])} cannot be overlaid with images of {list(second[0].shape[1:])} "
            "(channels, height, width); resize one set"
        )
    shift = max(1, first[0].shape[-1] * 2 // 7) if shift is None else shift
    generator = np.random.default_rng(seed)
    rounds = -(-count // len(first[0]))
    left = np.concatenate([generator.permutation(len(first[0])) for _ in range(rounds)])[:count]
    right = generator.integers(0, len(second[0]), count)
    images = overlay(first[0][torch.from_numpy(left)], second[0][torch.from_numpy(right)], shift)
    return images, first[1][torch.from_numpy(left)], second[1][torch.from_numpy(right)]


def overlay_tasks(
    first: Mapping[Role | str, Images],
    second: Mapping[Role | str, Images],
    *,
    names: tuple[str, str] = ("left", "right"),
    counts: Mapping[Role | str, int] | None = None,
    shift: int | None = None,
    seed: int = 0,
) -> Suite:
    """Two classification tasks on the same overlaid images; the first is the target.

    The pairs of a role are made of that role's images alone, so no image stands on two sides.

    Args:
        first: By role, the images and labels of the top left.
        second: By role, those of the bottom right; it may be the same set.
        names: What the two tasks are called.
        counts: Pairs per role; by default as many as ``first`` has images.
        shift: See `overlaid_pairs`.
        seed: Of the pairing.
    """
    rows: tuple[dict[Role, Rows], dict[Role, Rows]] = ({}, {})
    for number, (name, images) in enumerate(first.items()):
        role = Role(name)
        count = (counts or {}).get(name, len(images[0]))
        inputs, *labels = overlaid_pairs(images, second[name], count, seed * len(Role) + number, shift)
        for side, y in zip(rows, labels, strict=True):
            side[role] = Rows(inputs.float(), y, f"{names[0]} over {names[1]} ({role})")
    classes = [max(int(images[1].max()) for images in side.values()) + 1 for side in (first, second)]
    tasks = [Task(n, Kind.CLASSIFICATION, side, outputs=c) for n, side, c in zip(names, rows, classes, strict=True)]
    return Suite(tasks, target=names[0])
