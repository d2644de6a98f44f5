"""Encoders of images ``[N, channels, height, width]``, or ``[N, height, width]`` with one channel."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from steelyard.encoders.options import Size
from steelyard.errors import SteelyardError

Norm = Literal["batch", "group"]


def _image_shape(encoder: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width."""
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) != 3:
        raise SteelyardError(
            f"encoder {encoder} reads images [channels, height, width] or [height, width], but the rows have "
            f"shape {list(shape)}; reshape them, or use mlp"
        )
    return shape[0], shape[1], shape[2]


def _with_channel(inputs: Tensor) -> Tensor:
    return inputs.unsqueeze(1) if inputs.dim() == 3 else inputs


class LeNet(nn.Module):
    """The shared part of alpha-VIL's MultiMNIST network: conv 10@5, pool, conv 20@5, pool, linear 320 by 50.

    Args:
        shape: The shape of an image.
        channels: The channels of the two convolutions.
        kernel: Their size.
        padding: Zeros around their inputs; small images need some.
        hidden: The size of the linear layer.
    """

    embedding_stage = "first"

    def __init__(
        self,
        shape: tuple[int, ...] = (1, 28, 28),
        *,
        channels: tuple[Size, Size] = (10, 20),
        kernel: Size = 5,
        padding: Annotated[int, Field(ge=0)] = 0,
        hidden: Size = 50,
    ) -> None:
        super().__init__()
        depth, *size = _image_shape("lenet", shape)
        for _ in range(2):
            size = [(side + 2 * padding - kernel + 1) // 2 for side in size]
            if min(size) < 1:
                raise SteelyardError(
                    f"encoder lenet: images of {shape[-2]} x {shape[-1]} are too small for two convolutions "
                    f"of size {kernel} with pooling; set padding={kernel // 2}, or use mlp"
                )
        self.first = nn.Conv2d(depth, channels[0], kernel, padding=padding)
        self.second = nn.Conv2d(channels[0], channels[1], kernel, padding=padding)
        self.linear = nn.Linear(channels[1] * math.prod(size), hidden)
        self.width = hidden

    def forward(self, inputs: Tensor) -> Tensor:
        """``[N, (channels,) height, width]`` to ``[N, hidden]``."""
        maps = F.relu(F.max_pool2d(self.first(_with_channel(inputs)), 2))
        maps = F.relu(F.max_pool2d(self.second(maps), 2))
        return F.relu(self.linear(maps.flatten(1)))


class ResNet(nn.Module):
    """A small residual network with a 3x3 stem and average pooling.

    Args:
        shape: The shape of an image.
        channels: The channels of the first stage; each further stage doubles them and halves the image.
        stages: How many stages there are.
        blocks: Residual blocks per stage.
        norm: ``batch``, or ``group``, which does not mix rows and has no running averages.
    """

    embedding_stage = "stem"

    def __init__(
        self,
        shape: tuple[int, ...] = (3, 32, 32),
        *,
        channels: Size = 16,
        stages: Size = 3,
        blocks: Size = 1,
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        depth = _image_shape("resnet", shape)[0]
        normalise = _norm(norm)
        widths = [channels, *(channels << stage for stage in range(stages) for _ in range(blocks))]
        self.stem = nn.Sequential(nn.Conv2d(depth, channels, 3, padding=1, bias=False), normalise(channels), nn.ReLU())
        self.blocks = nn.Sequential(
            *(Block(before, after, 1 + (after > before), normalise) for before, after in pairwise(widths))
        )
        self.width = widths[-1]

    def forward(self, inputs: Tensor) -> Tensor:
        """``[N, (channels,) height, width]`` to ``[N, width]``."""
        maps: Tensor = self.blocks(self.stem(_with_channel(inputs)))
        return maps.mean((2, 3))


class Block(nn.Module):
    """Two 3x3 convolutions, added to their input.

    Args:
        before: Channels in.
        after: Channels out.
        stride: 2 halves the image.
        normalise: Makes a normalisation of so many channels.
    """

    def __init__(self, before: int, after: int, stride: int, normalise: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = normalise(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = normalise(after)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), normalise(after))

    def forward(self, maps: Tensor) -> Tensor:
        """``[N, before, H, W]`` to ``[N, after, H / stride, W / stride]``."""
        change = F.relu(self.first_norm(self.first(maps)))
        return F.relu(self.second_norm(self.second(change)) + self.skip(maps))


def _norm(name: str) -> Callable[[int], nn.Module]:
    if name == "batch":
        return nn.BatchNorm2d
    if name == "group":
        return lambda channels: nn.GroupNorm(math.gcd(channels, 8), channels)
    raise SteelyardError(f"encoder resnet: norm must be 'batch' or 'group', not {name!r}")
