"""One JSON object per line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data import cache
from steelyard.data.readers.registry import Dialect, utf8_told
from steelyard.data.table import Table
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK = 20_000


def read_jsonl(path: Path, origin: str, dialect: Dialect) -> Table:
    """Keys become columns; a key that a line lacks is a missing value; lists stay lists."""
    del dialect  # JSON says everything itself
    import pyarrow as pa

    lists: dict[str, bool] = {}
    parts: list[dict[str, list[Any]]] = []
    lines: list[int] = []
    for numbers, objects in _chunks(path, origin):
        columns: dict[str, list[Any]] = {}
        for position, value in enumerate(objects):
            for key, cell in value.items():
                if cell is not None and lists.setdefault(key, isinstance(cell, list)) != isinstance(cell, list):
                    raise SteelyardError(
                        f"{origin}, line {numbers[position]}: {key!r} is a list in some lines "
                        "and not in others; write it the same way everywhere"
                    )
                columns.setdefault(key, [None] * len(objects))[position] = _cell(cell)
        parts.append(columns)
        lines += numbers
    names = list(dict.fromkeys(name for part in parts for name in part))
    schema = pa.schema([(name, pa.list_(pa.string()) if lists.get(name) else pa.string()) for name in names])
    batches = []
    start = 0
    for part in parts:
        size = min(CHUNK, len(lines) - start)
        start += size
        empty = [None] * size
        batches.append(pa.record_batch([pa.array(part.get(f.name, empty), f.type) for f in schema], schema=schema))
    return Table(
        pa.Table.from_batches(batches, schema),
        origin,
        cache.digest("jsonl", cache.file_digest(path)),
        np.array(lines, dtype=np.int64),
    )


def _chunks(path: Path, origin: str) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
    numbers: list[int] = []
    objects: list[dict[str, Any]] = []
    with utf8_told(path, origin), path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            numbers.append(number)
            objects.append(_parsed(line, origin, number))
            if len(objects) == CHUNK:
                yield numbers, objects
                numbers, objects = [], []
    yield numbers, objects


def _parsed(line: str, origin: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise SteelyardError(
            f"{origin}, line {number}: not JSON ({error.msg} at column {error.colno}); "
            "each line must be one whole object (is the file cut off?)"
        ) from None
    if not isinstance(value, dict):
        raise SteelyardError(f'{origin}, line {number}: each line must be an object like {{"text": …}}')
    return value


def _cell(cell: Any) -> str | list[str] | None:
    if isinstance(cell, list):
        return [_scalar(item) for item in cell]
    return None if cell is None else _scalar(cell)


def _scalar(cell: Any) -> str:
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
