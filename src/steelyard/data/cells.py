"""Cells as values: lists, sets of labels, and numbers, with the place of what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.table import View, strings
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOT_A_NUMBER = r"(?i)^\s*nan\s*$"
NUMBER = r"(?i)^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$"


def label_sets(column: Any) -> Any:
    """Cells that hold several labels as lists of strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return array.cast(pa.list_(pa.string()))
    return pc.split_pattern_regex(pc.utf8_trim_whitespace(strings(array)), r"\s*\|\s*")


def parse_numbers(
    view: View, name: str, complaint: Callable[[str], str], *, missing: bool = False
) -> NDArray[np.float64]:
    """A column as numbers; missing cells are NaN where that is allowed, else (and for text and inf) an error."""
    return np.concatenate(list(number_batches(view, name, complaint, missing=missing)))


def number_batches(
    view: View, name: str, complaint: Callable[[str], str], *, missing: bool = False
) -> Iterator[NDArray[np.float64]]:
    """The same, by batches of rows."""
    start = 0
    for batch in view.batches([name]):
        column = batch.column(0).combine_chunks()
        values, absent = _parsed(column)
        bad = ~np.isfinite(values) & ~(absent & missing)
        if bad.any():
            row = int(bad.argmax())
            cell = column[row].as_py()
            raise SteelyardError(f"{view.where(start + row)}: {complaint('' if cell is None else str(cell))}")
        yield values
        start += len(values)


def _parsed(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers of an Arrow array (NaN for text that is none), and where it is empty or NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers = pc.fill_null(column.cast(pa.float64(), safe=False), float("nan"))
        absent = pc.is_nan(numbers)
    else:
        text = pc.utf8_trim_whitespace(strings(column))
        good = pc.match_substring_regex(text, NUMBER)
        numbers = pc.fill_null(pc.if_else(good, text, None).cast(pa.float64()), float("nan"))
        absent = pc.equal(pc.fill_null(pc.utf8_lower(text), "nan"), "nan")
    return numbers.to_numpy(zero_copy_only=False), absent.to_numpy(zero_copy_only=False)


def lists(column: Any) -> Any:
    """A column of lists as lists of strings."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.cast(pa.list_(pa.string()))


def list_lengths(array: Any) -> NDArray[np.int64]:
    """The length of each list; none is 0."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(array), 0)
    counted: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return counted


def without(values: Any, unwanted: tuple[str, ...]) -> Any:
    """The values, with nothing in place of the unwanted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.is_in(values, value_set=pa.array(unwanted)), pa.scalar(None, pa.string()), values)
