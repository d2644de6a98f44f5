"""Encoders of rows of numbers."""

import math
from itertools import pairwise

from torch import Tensor, nn

from steelyard.encoders.options import Chance, Size


class MLP(nn.Module):
    """Linear layers, each with ReLU and dropout after it: ``[N, ...]`` to ``[N, hidden[-1]]``.

    Args:
        shape: The shape of a row; it is flattened.
        hidden: The size of each layer; none at all gives the flattened row.
        dropout: The chance that a hidden value is dropped.
    """

    embedding_stage = "input"

    def __init__(self, shape: tuple[int, ...], *, hidden: tuple[Size, ...] = (128, 128), dropout: Chance = 0.0) -> None:
        super().__init__()
        sizes = [math.prod(shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers)
        self.width = sizes[-1]

    def forward(self, inputs: Tensor) -> Tensor:
        """``[N, ...]`` to ``[N, width]``."""
        features: Tensor = self.layers(inputs)
        return features
