"""Tables: standardised numbers, and categories as one column each; both fitted on train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from steelyard.data.cells import NUMBER, number_batches
from steelyard.data.features.base import Columns, Featuriser
from steelyard.data.table import View, strings
from steelyard.errors import SteelyardError
from steelyard.tasks import Inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from steelyard.data.cache import Writer

MAX_CATEGORIES = 1_000
MOSTLY = 0.5
"""A column is numeric if more than this share of its given train cells are numbers."""


@dataclass(frozen=True)
class Numbers(Featuriser):
    """Float features: ``(value - mean) / deviation`` for numbers, then 0/1 for each category.

    Attributes:
        numeric: The numeric columns.
        mean: Their means in train.
        deviation: Their standard deviations in train; 1 for a constant.
        categories: For each categorical column the categories of train; others become all zeros.
    """

    numeric: tuple[str, ...]
    mean: tuple[float, ...] = field(repr=False)
    deviation: tuple[float, ...] = field(repr=False)
    categories: dict[str, tuple[str, ...]] = field(repr=False)

    @classmethod
    def fit(cls, views: Iterable[View], columns: Sequence[str], categorical: Sequence[str] = ()) -> Numbers:
        """Reads kinds, moments and categories from the training rows of all tasks, shared rows once."""
        distinct = list({view.digest: view for view in views}.values())
        named = [c for c in columns if c in categorical or not all(is_numeric(v, c) for v in distinct)]
        numeric = tuple(c for c in columns if c not in named)
        means, deviations = [], []
        for column in numeric:
            values = np.concatenate([part for view in distinct for part in _parsed(view, column)])
            means.append(float(values.mean()))
            deviations.append(float(values.std()) or 1.0)
        categories = {column: _categories(distinct, column) for column in named}
        return cls(numeric, tuple(means), tuple(deviations), categories)

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.numeric) + sum(map(len, self.categories.values()))

    def write(self, view: View, columns: Columns, writer: Writer) -> None:
        """Writes ``float32[rows, width]``."""
        del columns  # it was fitted on its columns
        numbers = zip(*(_parsed(view, column) for column in self.numeric), strict=True)
        flags = zip(*(_one_hot(view, column, names) for column, names in self.categories.items()), strict=True)
        mean, deviation = np.array(self.mean), np.array(self.deviation)
        for given, hot in zip_longest(numbers, flags, fillvalue=()):
            scaled = [((np.stack(given, 1) - mean) / deviation).astype(np.float32)] if given else []
            writer.add("values", np.concatenate([*scaled, *hot], 1))

    def read(self, tensors: dict[str, Tensor]) -> Inputs:
        """The features."""
        return tensors["values"]

    def to_json(self) -> dict[str, Any]:
        """Its settings."""
        return {"kind": "numbers", **asdict(self)}

    @classmethod
    def from_json(cls, settings: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        categories = {column: tuple(names) for column, names in settings["categories"].items()}
        return cls(tuple(settings["numeric"]), tuple(settings["mean"]), tuple(settings["deviation"]), categories)


def is_numeric(view: View, column: str) -> bool:
    """Whether most of a column's given cells are numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = view.table.arrow.schema.field(column).type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return True
    if view.table.is_list(column) or not view.table.is_plain(column):
        return False
    values = strings(view.column(column)).drop_null()
    hits = pc.sum(pc.match_substring_regex(pc.utf8_trim_whitespace(values), NUMBER)).as_py() or 0
    nan = pc.sum(pc.is_in(pc.utf8_lower(values), value_set=pa.array(["nan", "inf", "-inf"]))).as_py() or 0
    return len(values) > 0 and hits + nan > MOSTLY * len(values)


def _parsed(view: View, column: str) -> Iterator[NDArray[np.float64]]:
    return number_batches(
        view,
        column,
        lambda cell: (
            f"the feature {column!r} is {cell!r}, not a finite number; fill it in, leave the row out, "
            "or leave the column out of features"
            if cell
            else f"the feature {column!r} is empty; fill it in, leave the row out, or leave the column out of features"
        ),
    )


def _categories(views: Iterable[View], column: str) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for view in views:
        for pair in strings(view.column(column)).value_counts().to_pylist():
            if pair["values"] is not None:
                counts[pair["values"]] += pair["counts"]
    if len(counts) > MAX_CATEGORIES:
        raise SteelyardError(
            f"the feature {column!r} has {len(counts)} different values in train, too many for categories; "
            "name it in text, or leave it out of features"
        )
    return tuple(sorted(counts))


def _one_hot(view: View, column: str, names: tuple[str, ...]) -> Iterator[NDArray[np.float32]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.array(names, pa.string())
    flags = np.eye(len(names) + 1, len(names), dtype=np.float32)
    for batch in view.batches([column]):
        codes = pc.fill_null(pc.index_in(strings(batch.column(0)), value_set=known), len(names))
        yield flags[codes.to_numpy(zero_copy_only=False)]
