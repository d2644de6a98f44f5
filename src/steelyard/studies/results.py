"""What the cells of a grid gave, by their keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from steelyard.studies.statistics import Estimate, estimate, paired

Key = Mapping[str, Any]
"""What tells a cell from the others, by name: ``{"method": "tawt", "seed": 3}``; plain values only."""

Value = Mapping[str, Any]
"""What a cell gave, by name; plain values only."""


class Results:
    """The values of some cells.

    Args:
        cells: Keys with their values.
    """

    def __init__(self, cells: list[tuple[Key, Value]]) -> None:
        self.cells = cells

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def where(self, **match: Any) -> Results:
        """The cells whose keys have these entries."""
        return Results([cell for cell in self.cells if all(cell[0].get(k) == v for k, v in match.items())])

    def levels(self, name: str) -> list[Any]:
        """The different entries of that name among the keys, in the order in which they come."""
        return list(dict.fromkeys(key[name] for key, _ in self.cells if name in key))

    def series(self, what: str | Callable[[Value], float], by: str = "seed", **match: Any) -> dict[Hashable, float]:
        """One number of each matching cell, by its seed."""
        read = what if callable(what) else lambda value: float(value[what])
        return {key[by]: read(value) for key, value in self.where(**match)}

    def estimate(self, what: str | Callable[[Value], float], **match: Any) -> Estimate:
        """The mean of a number over the matching cells, with its interval."""
        return estimate(list(self.series(what, **match).values()))

    def gain(self, what: str | Callable[[Value], float], treated: Key, control: Key, **match: Any) -> Estimate:
        """The paired difference of a number between two kinds of cells: ``gain("accuracy", {"method": "tawt"}, …)``."""
        return paired(self.series(what, **match, **treated), self.series(what, **match, **control))
