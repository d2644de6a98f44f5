"""Primitives for rows of numbers and for images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steelyard.objectives.draft import Draft
from steelyard.objectives.outputs import flat
from steelyard.objectives.stages import Output, Question, Representation, Transform, register
from steelyard.tasks import Kind, Role, Spec, Task

TILES = 2
"""A jigsaw cuts an image into so many rows and columns of tiles."""


def _over_channels(places: Tensor, like: Tensor) -> Tensor:
    """Pixels as a mask of an image's values."""
    return places.unsqueeze(1).expand_as(like) if like.dim() == 4 else places


@register
class Hide(Transform):
    """Zero in the chosen places: the mean, for standardised numbers; black, for pixels."""

    name, reads, about = "mask", ("numbers", "images"), "zero in the chosen places"

    def __call__(self, draft: Draft, tokens: Any, generator: torch.Generator) -> Draft:
        """Zero."""
        del tokens, generator
        return draft.changed(inputs=draft.inputs.masked_fill(_over_channels(draft.chosen, draft.inputs), 0))


@register
class Swap(Transform):
    """In the chosen places the number that another row of the step has there."""

    name, reads, about = "swap", ("numbers",), "another row's number in the chosen places"
    reveals = True

    def __call__(self, draft: Draft, tokens: Any, generator: torch.Generator) -> Draft:
        """Swap noise: every column keeps its distribution."""
        del tokens
        donor = torch.randint(len(draft), draft.inputs.shape, generator=generator)
        return draft.changed(inputs=torch.where(draft.chosen, draft.original.gather(0, donor), draft.inputs))


@register
class Grain(Transform):
    """Gaussian noise on every value, as strong as a tenth of the row's range."""

    name, reads, about = "noise", ("numbers", "images"), "noise on every value"

    def __call__(self, draft: Draft, tokens: Any, generator: torch.Generator) -> Draft:
        """A tenth of the range."""
        del tokens
        values = draft.inputs
        reach = (values.flatten(1).amax(1) - values.flatten(1).amin(1)).view(-1, *[1] * (values.dim() - 1))
        return draft.changed(inputs=values + 0.1 * reach * torch.randn(values.shape, generator=generator).to(values))


@register
class Rotate(Transform):
    """Quarter turns; an image that is not square is turned by half."""

    name, reads, about, turns = "rotate", ("images",), "turned by quarters", 4

    def __call__(self, draft: Draft, tokens: Any, generator: torch.Generator) -> Draft:
        """0 to 3 quarters, by chance."""
        del tokens
        square = draft.inputs.shape[-1] == draft.inputs.shape[-2]
        code = torch.randint(4, (len(draft),), generator=generator)
        code = code if square else code // 2 * 2
        inputs = draft.inputs.clone()
        for quarters in range(1, 4):
            rows = code == quarters
            if rows.any():
                inputs[rows] = torch.rot90(draft.inputs[rows], quarters, (2, 3))
        return draft.changed(inputs=inputs, code=code)


@register
class Jigsaw(Transform):
    """Tiles in another order; what does not fill a tile stays where it is."""

    name, reads, about = "jigsaw", ("images",), "cut into tiles in another order"

    def __call__(self, draft: Draft, tokens: Any, generator: torch.Generator) -> Draft:
        """Each image in an order of its own."""
        del tokens
        n, channels, height, width = draft.inputs.shape
        h, w = height // TILES, width // TILES
        body = draft.inputs[:, :, : h * TILES, : w * TILES]
        tiles = body.reshape(n, channels, TILES, h, TILES, w).permute(0, 2, 4, 1, 3, 5).reshape(n, TILES**2, -1)
        order = torch.rand(n, TILES**2, generator=generator).argsort(1)
        tiles = tiles.gather(1, order.unsqueeze(2).expand_as(tiles))
        placed = tiles.reshape(n, TILES, TILES, channels, h, w).permute(0, 3, 1, 4, 2, 5).reshape(body.shape)
        inputs = draft.inputs.clone()
        inputs[:, :, : h * TILES, : w * TILES] = placed
        return draft.changed(inputs=inputs)


@register
class Whole(Representation):
    """The encoder's own representation of the row."""

    name, reads, about = "whole", ("numbers", "images"), "the encoder's representation of the row"

    def __call__(self, draft: Draft, generator: torch.Generator) -> Tensor | None:
        """There are no places to hide from each other."""
        del draft, generator
        return None


@register
class Reconstruct(Output):
    """The row as it was."""

    name, reads, about = "reconstruct", ("numbers", "images"), "the row as it was"

    def question(self, task: Task, spec: Spec, transforms: list[Transform]) -> Question:
        """A regression on all numbers of the row."""
        del spec, transforms
        values = flat(task.rows[Role.TRAIN].inputs)
        return Question(Kind.REGRESSION, values, values.shape[1])

    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """The original."""
        del representation
        return draft.original.flatten(1).float()


@register
class Detect(Output):
    """Which numbers of the row are not its own."""

    name, reads, about = "detect", ("numbers",), "which numbers of the row are not its own"

    def fits(self, transform: Transform, representation: Representation) -> bool:
        """Only where changed numbers look like others."""
        del representation
        return transform.reveals

    def question(self, task: Task, spec: Spec, transforms: list[Transform]) -> Question:
        """A yes or no per number."""
        del spec, transforms
        values = flat(task.rows[Role.TRAIN].inputs)
        return Question(Kind.MULTILABEL, torch.zeros_like(values), values.shape[1])

    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """1 where the number is another."""
        del representation
        return (draft.inputs != draft.original).float()


@register
class Rotation(Output):
    """By how much the image was turned."""

    name, reads, about = "rotation", ("images",), "by how many quarters the image was turned"

    def fits(self, transform: Transform, representation: Representation) -> bool:
        """Only after a transform that turns."""
        del representation
        return transform.turns > 0

    def question(self, task: Task, spec: Spec, transforms: list[Transform]) -> Question:
        """A class per turn."""
        del spec
        count = max((transform.turns for transform in transforms), default=1)
        return Question(Kind.CLASSIFICATION, torch.zeros(len(task.rows[Role.TRAIN]), dtype=torch.long), count)

    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """Quarters."""
        del representation
        return draft.code
