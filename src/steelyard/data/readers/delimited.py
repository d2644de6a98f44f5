"""csv and tsv. Python's strict parser reads them, because it knows at which line a file goes wrong."""

from __future__ import annotations

import csv
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data import cache
from steelyard.data.readers.registry import Dialect, utf8_told
from steelyard.data.table import Table, listed
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

LARGE = 32 << 20
"""Larger files (in bytes) are turned into a memory-mapped Arrow file once, and read from there."""

CHUNK = 20_000
"""Rows that are parsed at a time."""

LONGEST_CELL = 16 << 20


def read_csv(path: Path, origin: str, dialect: Dialect) -> Table:
    """A file with a header line, its cells separated by commas (or by ``delimiter``)."""
    return _read(path, origin, dialect.delimiter or ",", dialect.quote)


def read_tsv(path: Path, origin: str, dialect: Dialect) -> Table:
    """A file with a header line, its cells separated by tabs."""
    return _read(path, origin, dialect.delimiter or "\t", dialect.quote)


def _read(path: Path, origin: str, delimiter: str, quote: str) -> Table:
    import pyarrow as pa

    content = cache.file_digest(path)
    digest = cache.digest("csv", content, delimiter, quote)
    if path.stat().st_size > LARGE:
        return _read_large(path, origin, delimiter, quote, digest)
    parts, lines = [], []
    for batch, numbers in _batches(path, origin, delimiter, quote):
        parts.append(batch)
        lines.append(numbers)
    return Table(pa.Table.from_batches(parts), origin, digest, np.concatenate(lines))


def _read_large(path: Path, origin: str, delimiter: str, quote: str, digest: str) -> Table:
    import pyarrow as pa

    def make(folder: Path) -> None:
        batches = _batches(path, origin, delimiter, quote)
        first, numbers = next(batches)
        lines = [numbers]
        with pa.ipc.new_file(str(folder / "table.arrow"), first.schema) as writer:
            writer.write_batch(first)
            for batch, numbers in batches:
                writer.write_batch(batch)
                lines.append(numbers)
        np.save(folder / "lines.npy", np.concatenate(lines))

    folder = cache.made_once(cache.directory() / "tables" / digest, make)
    table = pa.ipc.open_file(pa.memory_map(str(folder / "table.arrow"))).read_all()
    return Table(table, origin, digest, np.load(folder / "lines.npy", mmap_mode="r"))


def _batches(path: Path, origin: str, delimiter: str, quote: str) -> Iterator[tuple[Any, NDArray[np.int64]]]:
    """Arrow batches of strings, with the line at which each of their rows starts."""
    import pyarrow as pa

    limit = csv.field_size_limit(LONGEST_CELL)
    try:
        with utf8_told(path, origin), path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(
                file,
                delimiter=delimiter,
                quotechar=quote or None,
                quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
                strict=True,
            )
            names = _header(rows, origin)
            schema = pa.schema([(name, pa.string()) for name in names])
            for cells, lines in _chunks(rows, len(names), origin):
                columns = [pa.array(column, pa.string()) for column in zip(*cells, strict=True)] or [
                    pa.array([], pa.string()) for _ in names
                ]
                yield pa.record_batch(columns, schema=schema), np.frombuffer(lines, np.int64)
    finally:
        csv.field_size_limit(limit)


def _header(rows: Any, origin: str) -> list[str]:
    names = [name.strip() for name in next(_located(rows, origin), ([], 0))[0]]
    if not any(names):
        raise SteelyardError(f"{origin}: the first line names no columns; give the file a header line")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SteelyardError(f"{origin}, line 1: columns with the same name: {listed(twice)}; rename them")
    return names


def _chunks(rows: Any, width: int, origin: str) -> Iterator[tuple[list[list[str]], array[int]]]:
    cells: list[list[str]] = []
    lines = array("q")
    for row, line in _located(rows, origin):
        if len(row) != width:
            raise SteelyardError(_wrong_width(row, width, origin, line, rows.line_num))
        cells.append(row)
        lines.append(line)
        if len(cells) == CHUNK:
            yield cells, lines
            cells, lines = [], array("q")
    yield cells, lines


def _wrong_width(row: list[str], width: int, origin: str, line: int, end: int) -> str:
    reason = "the file is cut off, or a delimiter inside a cell is not quoted"
    if end - line > 1:
        reason = f"the row runs on to line {end}: a quote that opens there may never close"
    return f"{origin}, line {line}: {len(row)} cells where the header has {width}; {reason}"


def _located(rows: Any, origin: str) -> Iterator[tuple[list[str], int]]:
    """The non-empty rows, with the line at which each starts."""
    line = rows.line_num + 1
    try:
        for row in rows:
            if row:
                yield row, line
            line = rows.line_num + 1
    except csv.Error as error:
        reason = str(error)
        if "unexpected end" in reason or "field larger" in reason:
            reason = "a quote opens and never closes"
        elif "expected after" in reason:
            reason = "text follows a closing quote: write a quote inside a cell twice"
        raise SteelyardError(
            f"{origin}, line {line}: {reason}; correct it, or say quote = '' if quotes are plain text"
        ) from None
