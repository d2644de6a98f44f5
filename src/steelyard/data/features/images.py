"""Images from files, resized to one size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from steelyard.data.features.base import Columns, Featuriser
from steelyard.data.table import View
from steelyard.errors import SteelyardError
from steelyard.tasks import Inputs

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.data.cache import Writer
    from steelyard.data.schema import FeatureOptions


@dataclass(frozen=True)
class Images(Featuriser):
    """Pixels in [0, 1].

    Attributes:
        size: Height and width.
        channels: 1 for grey, 3 for colour.
        base: The folder that relative paths start from.
    """

    size: tuple[int, int]
    channels: int
    base: str = "."

    @classmethod
    def fit(cls, view: View, column: str, options: FeatureOptions, base: Path) -> Images:
        """The size of the first training image, unless ``image_size`` gives one."""
        if options.image_size:
            size = (options.image_size, options.image_size)
        else:
            first = next(view.batches([column])).column(0)[0].as_py()
            with _opened(base / str(first), view.where(0)) as image:
                size = (image.height, image.width)
        return cls(size, options.channels, str(base))

    def write(self, view: View, columns: Columns, writer: Writer) -> None:
        """Writes ``float32[rows, channels, height, width]``."""
        row = 0
        for batch in view.batches(columns.names):
            for name in batch.column(0).to_pylist():
                if not name:
                    raise SteelyardError(f"{view.where(row)}: there is no image; give its path or leave the row out")
                writer.add("values", self._pixels(Path(self.base) / name, view.where(row))[None])
                row += 1

    def _pixels(self, path: Path, place: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        with _opened(path, place) as image:
            grey = image.convert("L" if self.channels == 1 else "RGB")
            if grey.size != self.size[::-1]:
                grey = grey.resize(self.size[::-1])
            pixels = np.asarray(grey, dtype=np.float32) / np.float32(255)
        shaped: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = pixels.reshape(*pixels.shape[:2], -1)
        return np.ascontiguousarray(shaped.transpose(2, 0, 1))

    def read(self, tensors: dict[str, Tensor]) -> Inputs:
        """The images."""
        return tensors["values"]

    def to_json(self) -> dict[str, Any]:
        """Its settings."""
        return {"kind": "images", "size": list(self.size), "channels": self.channels, "base": self.base}

    @classmethod
    def from_json(cls, settings: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        height, width = settings["size"]
        return cls((height, width), settings["channels"], settings["base"])


def _opened(path: Path, place: str) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(path)
    except FileNotFoundError:
        raise SteelyardError(
            f"{place}: there is no image {path.name!r} in {path.parent.name!r}; check its path"
        ) from None
    except (UnidentifiedImageError, OSError) as error:
        raise SteelyardError(
            f"{place}: {path.name!r} cannot be read as an image; replace it or leave it out"
        ) from error
