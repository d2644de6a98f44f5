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

Cell = str | list[str] | None


def read_jsonl(path: Path, origin: str, dialect: Dialect) -> Table:
    """Keys become columns; a key that a line lacks is a missing value; lists stay lists."""
    del dialect  # JSON says everything itself
    import pyarrow as pa

    lists: dict[str, bool] = {}
    parts: list[dict[str, Any]] = []
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
                columns.setdefault(key, [None] * len(objects))[position] = cell
        # As Arrow at once: Python's own lists of a large file would take several times the memory.
        parts.append({key: pa.array(cells, _type(lists.get(key))) for key, cells in columns.items()})
        lines += numbers
    names = list(dict.fromkeys(name for part in parts for name in part))
    schema = pa.schema([(name, _type(lists.get(name))) for name in names])
    batches = []
    start = 0
    for part in parts:
        size = min(CHUNK, len(lines) - start)
        start += size
        given = [part[f.name] if f.name in part and part[f.name].type == f.type else None for f in schema]
        cells = [pa.nulls(size, f.type) if cell is None else cell for f, cell in zip(schema, given, strict=True)]
        batches.append(pa.record_batch(cells, schema=schema))
    return Table(
        pa.Table.from_batches(batches, schema),
        origin,
        cache.digest("jsonl", cache.file_digest(path)),
        np.array(lines, dtype=np.int64),
    )


def _type(is_list: bool | None) -> Any:
    import pyarrow as pa

    return pa.list_(pa.string()) if is_list else pa.string()


def _chunks(path: Path, origin: str) -> Iterator[tuple[list[int], list[dict[str, Cell]]]]:
    numbers: list[int] = []
    objects: list[dict[str, Cell]] = []
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


def _parsed(line: str, origin: str, number: int) -> dict[str, Cell]:
    try:
        value = json.loads(line)
        cells = {key: _cell(cell) for key, cell in value.items()} if isinstance(value, dict) else {}
        if "\\ud" in line.lower():
            json.dumps(cells, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        if number == 1 and line.lstrip().startswith("["):
            raise SteelyardError(_array(origin)) from None
        raise SteelyardError(
            f"{origin}, line {number}: not JSON ({error.msg} at column {error.colno}); "
            "each line must be one whole object (is the file cut off?)"
        ) from None
    except UnicodeEncodeError:
        raise SteelyardError(
            f"{origin}, line {number}: half of a surrogate pair (\\ud800 to \\udfff) is no character; "
            "write the whole pair, or the character itself"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, or lists in a thousand lists
        raise SteelyardError(f"{origin}, line {number}: not a row ({error})") from None
    if number == 1 and isinstance(value, list) and value and isinstance(value[0], dict):
        raise SteelyardError(_array(origin))
    if not isinstance(value, dict):
        raise SteelyardError(f'{origin}, line {number}: each line must be an object like {{"text": …}}')
    return cells


def _array(origin: str) -> str:
    return f"{origin}: the file is one JSON array; write one object per line, without brackets and commas between them"


def _cell(cell: Any) -> Cell:
    if isinstance(cell, list):
        return [_scalar(item) for item in cell]
    return None if cell is None else _scalar(cell)


def _scalar(cell: Any) -> str:
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
