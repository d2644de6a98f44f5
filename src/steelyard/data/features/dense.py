"""Rows that are arrays already, such as the images of a packaged suite."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from steelyard.data.cells import parse_numbers
from steelyard.data.features.base import Columns, Featuriser
from steelyard.errors import SteelyardError
from steelyard.tasks import Inputs

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.data.cache import Writer
    from steelyard.data.table import View


@dataclass(frozen=True)
class Dense(Featuriser):
    """Arrays of one shape, divided by a constant.

    Attributes:
        shape: The shape of a row.
        scale: What the stored values are divided by (255 for bytes).
    """

    shape: tuple[int, ...]
    scale: float = 1.0

    def write(self, view: View, columns: Columns, writer: Writer) -> None:
        """Writes ``float32[rows, *shape]``: from the dense column, or from as many numeric columns as it has cells."""
        if columns.dense and columns.dense in view.table.tensors:
            values = view.tensor(columns.dense).numpy()
            for start in range(0, len(values), 65_536):
                writer.add("values", values[start : start + 65_536].astype(np.float32) / np.float32(self.scale))
            return
        names = view.table.names
        if len(names) < prod(self.shape):
            raise SteelyardError(
                f"{view.table.origin}: rows of shape {list(self.shape)} need {prod(self.shape)} numeric columns, "
                f"but there are {len(names)}"
            )
        cells = [parse_numbers(view, c, partial(_complaint, c)) for c in names[: prod(self.shape)]]
        block = np.stack(cells, 1).reshape(-1, *self.shape) / self.scale
        writer.add("values", block.astype(np.float32))

    def read(self, tensors: dict[str, Tensor]) -> Inputs:
        """The arrays."""
        return tensors["values"]

    def to_json(self) -> dict[str, Any]:
        """Its settings."""
        return {"kind": "dense", "shape": list(self.shape), "scale": self.scale}

    @classmethod
    def from_json(cls, settings: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(tuple(settings["shape"]), settings["scale"])


def _complaint(column: str, cell: str) -> str:
    return f"the pixel {column!r} is {cell!r}, not a finite number; correct it"
