"""What every featuriser offers, and the cache before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from steelyard.data import cache
from steelyard.tasks import Inputs, Ragged

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.data.table import View

WORTH_KEEPING = 2_000
"""Features of fewer rows are made again rather than kept on disk."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are a task's inputs; one of these is set."""

    text: tuple[str, ...] = ()
    token: str | None = None
    numbers: tuple[str, ...] = ()
    image: str | None = None
    dense: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        one = [name for name in (self.token, self.image, self.dense) if name]
        return (*self.text, *self.numbers, *one)

    @classmethod
    def from_json(cls, settings: dict[str, Any]) -> Columns:
        """The inverse of ``dataclasses.asdict``."""
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        return cls(**plain)


@dataclass(frozen=True, eq=False)
class Pieces(Ragged):
    """Sub-words of tokens.

    Attributes:
        word: For each piece that begins a token the token's number in its row, else -1: ``LongTensor[total]``.
    """

    word: Tensor

    def select(self, index: Tensor) -> Pieces:
        """The chosen sequences."""
        ids = super().select(index)
        return Pieces(ids.values, ids.offsets, Ragged(self.word, self.offsets).select(index).values)


class Featuriser(ABC):
    """Turns the rows of a view into inputs. It is fitted on train, and the run keeps its settings."""

    @abstractmethod
    def write(self, view: View, columns: Columns, writer: cache.Writer) -> None:
        """Streams the features of a view."""

    @abstractmethod
    def read(self, tensors: dict[str, Tensor]) -> Inputs:
        """Inputs from what was written."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Its settings, with its ``kind``."""

    @classmethod
    @abstractmethod
    def from_json(cls, settings: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""


def cached(featuriser: Featuriser, view: View, columns: Columns, folder: Path | None = None) -> Inputs:
    """The features of a view, memory-mapped from the cache if it is large.

    Args:
        featuriser: How they are made.
        view: The rows.
        columns: The input columns.
        folder: Where features are kept; by default the user's cache.
    """
    if len(view) < WORTH_KEEPING:
        memory = _Memory()
        featuriser.write(view, columns, memory)
        return featuriser.read(memory.tensors())
    key = cache.digest("features", view.digest, asdict(columns), featuriser.to_json())

    def make(draft: Path) -> None:
        writer = cache.Writer(draft)
        featuriser.write(view, columns, writer)
        writer.close()

    place = cache.made_once((folder or cache.directory()) / "features" / key, make)
    return featuriser.read(cache.read(place))


class _Memory(cache.Writer):
    """The same stream, kept in memory."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Any]] = {}

    def add(self, name: str, piece: Any) -> None:
        self.parts.setdefault(name, []).append(piece)

    def tensors(self) -> dict[str, Tensor]:
        """What was added."""
        import numpy as np
        import torch

        return {name: torch.from_numpy(np.concatenate(parts)) for name, parts in self.parts.items()}
