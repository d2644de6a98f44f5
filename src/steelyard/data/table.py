"""What every reader returns: named columns (Arrow underneath), their origin, and views of their rows."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

BATCH = 65_536
"""Rows that are held in memory at a time while a table is turned into features, at most."""

BATCH_BYTES = 64 * 2**20
"""What they may take in the table; rows of long texts come in smaller batches."""

PAIR = " \u241e "
"""Stands between the texts of a row that has several (premise and hypothesis): a token of its own."""


def near(name: str, known: Sequence[str]) -> str:
    """A hint at the closest of the known names, or nothing."""
    folded = {k.casefold(): k for k in known}
    match = difflib.get_close_matches(name.casefold(), list(folded), 1, 0.6)
    return f"; did you mean {folded[match[0]]!r}?" if match else ""


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Names in a line, the first of them if there are many."""
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length.

    Attributes:
        arrow: A ``pyarrow.Table``.
        origin: What messages call it: a file as the user wrote it, or a suite.
        digest: A hash of the content, by which features are cached.
        lines: The line at which each row starts, where rows have lines.
        tensors: Columns that are dense arrays, such as images.
    """

    arrow: Any
    origin: str
    digest: str
    lines: NDArray[np.int64] | None = field(default=None, repr=False)
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        for tensor in self.tensors.values():
            return len(tensor)
        return int(self.arrow.num_rows)

    @cached_property
    def batch(self) -> int:
        """Rows that are looked at together, of whatever columns."""
        width = int(self.arrow.nbytes) // max(int(self.arrow.num_rows), 1)
        return max(1, min(BATCH, BATCH_BYTES // max(width, 1)))

    @property
    def names(self) -> list[str]:
        """All columns."""
        return [*self.arrow.column_names, *self.tensors]

    def where(self, row: int) -> str:
        """A row's place, in words."""
        if self.lines is None:
            return f"{self.origin}, row {row + 1}"
        return f"{self.origin}, line {int(self.lines[row])}"

    def require(self, columns: Sequence[str], task: str) -> None:
        """Raises if a column is missing."""
        for column in columns:
            if column not in self.names:
                hint = near(column, self.names)
                if len(self.names) == 1 and any(mark in self.names[0] for mark in ";\t|"):
                    hint = "; is the delimiter right (delimiter = …)?"
                raise SteelyardError(
                    f"{self.origin}: task {task!r} needs the column {column!r}, "
                    f"but there are only: {listed(self.names)}{hint}"
                )

            self._require_plain(column, task)

    def _require_plain(self, column: str, task: str) -> None:
        if not self.is_plain(column):
            kind = self.arrow.schema.field(column).type
            raise SteelyardError(
                f"{self.origin}: task {task!r} reads the column {column!r}, which holds {kind}; "
                "make columns of text, numbers or lists of these from it"
            )

    def is_plain(self, column: str) -> bool:
        """Whether a column holds text, numbers or lists of these: nothing nested deeper."""
        import pyarrow as pa

        if column in self.tensors:
            return True
        kind = self.arrow.schema.field(column).type
        kind = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
        return not pa.types.is_nested(kind)

    def is_list(self, column: str) -> bool:
        """Whether a column holds lists (tokens, tags, several labels)."""
        import pyarrow as pa

        kind = self.arrow.schema.field(column).type
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


@dataclass(frozen=True, eq=False)
class View:
    """Some rows of a table, in the table's order."""

    table: Table
    index: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.table) if self.index is None else len(self.index)

    @cached_property
    def digest(self) -> str:
        """A hash of the content: equal views have equal features."""
        if self.index is None:
            return self.table.digest
        content = self.table.digest.encode() + np.ascontiguousarray(self.index).tobytes()
        return hashlib.sha256(content).hexdigest()

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The row numbers in the table."""
        return np.arange(len(self.table)) if self.index is None else self.index

    def where(self, position: int) -> str:
        """The place of one of the view's rows, in words."""
        return self.table.where(int(self.rows[position]))

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """The chosen columns as Arrow record batches of bounded size."""
        table = self.table.arrow.select(list(columns))
        size = self.table.batch
        for start in range(0, len(self.table), size):
            part = table.slice(start, size).combine_chunks()
            if self.index is not None:
                low, high = np.searchsorted(self.index, (start, start + size))
                part = part.take(self.index[low:high] - start)
            yield part

    def column(self, name: str) -> Any:
        """One column as an Arrow array; for columns that are small, such as labels."""
        import pyarrow as pa

        parts = [part.column(0) for part in self.batches([name])]
        chunks = [chunk for part in parts for chunk in part.chunks]
        return pa.chunked_array(chunks, type=self.table.arrow.schema.field(name).type).combine_chunks()

    def twins(self, columns: Sequence[str]) -> NDArray[np.int64]:
        """For each row the first row with the same raw inputs; rows without inputs are their own."""
        found = np.empty(len(self), dtype=np.int64)
        own = np.arange(len(self))
        start = 0
        for batch in self.batches(columns):
            rows = keys(batch, columns)
            found[start : start + len(rows)] = [hash(key) for key in rows.to_pylist()]
            own[start : start + len(rows)][rows.is_valid().to_numpy(zero_copy_only=False)] = -1
            start += len(rows)
        _, first, group = np.unique(found, return_index=True, return_inverse=True)
        return np.where(own < 0, first[group], own)

    def tensor(self, name: str) -> Tensor:
        """One dense column."""
        import torch

        whole = self.table.tensors[name]
        return whole if self.index is None else whole[torch.from_numpy(self.index)]

    def subset(self, positions: NDArray[np.int64]) -> View:
        """Some of these rows."""
        return View(self.table, np.sort(self.rows[positions]))


def texts(batch: Any, columns: Sequence[str]) -> Any:
    """The text of each row: one column, or several joined by a mark."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [_as_text(batch.column(name)) for name in columns]
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, pa.scalar(PAIR), null_handling="replace", null_replacement="")


def keys(batch: Any, columns: Sequence[str]) -> Any:
    """Each row's raw inputs as one string, by which rows are compared; rows without any are nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = texts(batch, columns)
    return pc.if_else(pc.equal(pc.utf8_trim_whitespace(text), ""), pa.scalar(None, pa.string()), text)


def _as_text(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return pc.binary_join(column.cast(pa.list_(pa.string())), " ")
    return column if pa.types.is_string(column.type) else pc.cast(column, pa.string())


def strings(column: Any) -> Any:
    """A scalar column as strings; empty cells (and only those) become null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = _as_text(column)
    empty = pc.equal(pc.utf8_trim_whitespace(text), "")
    return pc.if_else(empty, pa.scalar(None, pa.string()), text)
