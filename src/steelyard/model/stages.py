"""The embedding stage: where a task's rows X_t are, before (or after) the module that all tasks share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.tasks import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.tasks import Member, Part

    Ask = Callable[[Part], Tensor]
    Change = Callable[[Tensor], Tensor]

INPUT, OUTPUT = "input", "output"
"""The stages that are no module: the rows as the encoder gets them, and the features that it gives back."""

_WIDTHS = ("width", "out_features", "out_channels", "embedding_dim", "num_features")


@dataclass(frozen=True)
class Stage:
    """A place in the encoder where every row has a vector, or one per token or pixel.

    Attributes:
        name: ``input``, ``output``, or the name of a module of the encoder, whose output it is.
        width: The size d of the vectors; channels, for maps.
        sequences: Whether its maps are one-dimensional, ``[N, d, L]``.
    """

    name: str
    width: int
    sequences: bool = False

    def through(self, encoder: nn.Module, part: Part, ask: Ask, change: Change) -> Tensor:
        """The encoder's features for a part, with what stands at the stage changed on the way.

        Args:
            encoder: The encoder.
            part: The rows.
            ask: Asks the encoder for the features of a part.
            change: From the values at the stage (``[N, d]``, ``[N, L, d]`` or maps ``[N, d, H, W]``, as they are) to
                what goes on instead.
        """
        if self.name == INPUT:
            return ask(replace(part, inputs=change(part.inputs)))
        if self.name == OUTPUT:
            return change(ask(part))

        def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
            del module, args
            return change(output)

        handle = encoder.get_submodule(self.name).register_forward_hook(hook)
        try:
            return ask(part)
        finally:
            handle.remove()

    def watch(
        self, encoder: nn.Module, part: Part, ask: Ask, change: Callable[[Tensor, Part], Tensor] | None = None
    ) -> Tensor:
        """What goes on from the stage when the encoder is asked for a part, changed or not, as `vectors`."""
        seen: list[Tensor] = []

        def passing(values: Tensor) -> Tensor:
            values = values if change is None else change(values, part)
            seen.append(self.vectors(values))
            return values

        self.through(encoder, part, ask, passing)
        return seen[-1]

    def vectors(self, values: Tensor) -> Tensor:
        """Values at the stage with their vectors on the last axis: ``[N, d]``, ``[N, L, d]`` or ``[N, H, W, d]``.

        Raises:
            SteelyardError: If that is not the shape of what the stage gives.
        """
        shape = list(values.shape)
        if self.name == INPUT:
            values = values.flatten(1)
        elif self._channels_first(values):
            values = values.movedim(1, -1)
        if not values.is_floating_point() or values.shape[-1] != self.width:
            raise SteelyardError(
                f"the embedding stage {self.name!r} gives {values.dtype} of shape {shape}, not vectors of size "
                f"{self.width}; name another module of the encoder as the stage"
            )
        return values

    def restored(self, vectors: Tensor, like: Tensor) -> Tensor:
        """The inverse of `vectors`."""
        if self.name == INPUT:
            return vectors.view_as(like)
        if not self._channels_first(like):
            return vectors
        # The same layout in memory, so that the next convolution takes the kernel that it takes without alignment.
        maps = vectors.movedim(-1, 1)
        return maps.contiguous() if like.is_contiguous() else maps

    def _channels_first(self, values: Tensor) -> bool:
        return values.dim() > 3 or self.sequences


def find_stage(encoder: nn.Module, name: str | None, width: int, hugging_face: bool) -> Stage:
    """An encoder's embedding stage.

    It is what the encoder's own ``embedding_stage`` says. Without one: a Hugging Face model's output; the rows
    themselves, where the first layer is linear; the first layer's output, where that is a convolution or an
    embedding; the output of any other.

    Args:
        encoder: The encoder.
        name: ``input``, ``output`` or a module of the encoder; None for the encoder's own.
        width: The width of its features.
        hugging_face: Whether it is a Hugging Face model.
    """
    first = next(
        ((path, m) for path, m in encoder.named_modules() if next(m.parameters(recurse=False), None) is not None),
        ("", encoder),
    )
    name = name or getattr(encoder, "embedding_stage", None) or _guess(first[0], first[1], hugging_face)
    if name == OUTPUT:
        return Stage(name, width)
    if name == INPUT:
        reads = getattr(first[1], "in_features", width if first[1] is encoder else None)
        if not isinstance(reads, int):
            raise SteelyardError(
                f"the encoder {type(encoder).__name__} does not begin with a linear layer, so that its input is no row "
                "of numbers; name another embedding stage: 'output', or one of its modules"
            )
        return Stage(name, reads)
    try:
        module = encoder.get_submodule(name)
    except AttributeError:
        known = ", ".join(path for path, _ in list(encoder.named_modules())[1:9])
        raise SteelyardError(
            f"there is no embedding stage {name!r}; choose input, output or a module of the encoder, such as {known}"
        ) from None
    widths = [getattr(module, attribute, None) for attribute in _WIDTHS]
    widths += [getattr(layer, attribute, None) for layer in reversed(list(module.modules())) for attribute in _WIDTHS]
    found = next((value for value in widths if isinstance(value, int)), None)
    if found is None:
        raise SteelyardError(f"the width of the embedding stage {name!r} is not known; give its module a 'width'")
    return Stage(name, found, sequences=isinstance(module, nn.Conv1d))


def _guess(path: str, first: nn.Module, hugging_face: bool) -> str:
    if not hugging_face:
        if isinstance(first, nn.Linear) or next(first.parameters(), None) is None:
            return INPUT
        if path and isinstance(first, (nn.Conv2d, nn.Conv3d, nn.Embedding)):
            return path
    return OUTPUT


def apart(part: Part) -> Part:
    """A part in which no two tasks share rows, and every row is some task's: shared rows are repeated."""
    start = 0
    for member in part.members:
        if member.rows.start != start:
            break
        start = member.rows.stop
    else:
        if start == len(part.inputs):
            return part
    members: list[Member] = []
    start = 0
    for member in part.members:
        stop = start + member.rows.stop - member.rows.start
        members.append(replace(member, rows=slice(start, stop)))
        start = stop
    inputs = torch.cat([part.inputs[member.rows] for member in part.members])
    mask = None if part.mask is None else torch.cat([part.mask[member.rows] for member in part.members])
    view = None if part.view is None else View.joined([part.view.select(m.rows) for m in part.members])
    return replace(part, inputs=inputs, mask=mask, members=tuple(members), view=view)


def flat_vectors(vectors: Tensor, mask: Tensor | None, rows: slice) -> Tensor:
    """Vectors of some rows in a list, ``[n, d]``; without those of padding, where there is one for each token."""
    if mask is None or vectors.dim() < 3 or vectors.shape[1] < mask.shape[1]:
        return vectors[rows].flatten(0, -2)
    return vectors[rows, : mask.shape[1]][mask[rows]]
