"""Predictions beside the rows that they belong to, in the form that the rows came in."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

from steelyard.data import Table
from steelyard.training.checkpoint import write_atomically

_JSON_LINES = (".jsonl", ".ndjson", ".json")


def rows(path: Path, table: Table, predictions: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Each row of a file, as the file has it, with its predictions."""
    if path.suffix.lower() in _JSON_LINES:
        # The table holds text; the file's numbers, booleans and nested values go back as they came.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        own = [json.loads(line) for line in lines if line and not line.isspace()]
    else:
        own = table.arrow.to_pylist() if table.arrow.num_columns else [{} for _ in range(len(table))]
    names = list(predictions)
    return [
        row | dict(zip(names, values, strict=True))
        for row, values in zip(own, zip(*predictions.values(), strict=True), strict=True)
    ]


def write(found: list[dict[str, Any]], like: Path, out: Path | None) -> None:
    """Writes rows as csv or jsonl, to a file or to standard output.

    The form is that of ``out``, else that of the input; rows that hold lists (tokens, tags) are always jsonl.
    """
    suffix = (out or like).suffix.lower()
    lists = any(isinstance(value, list) for value in (found[0].values() if found else ()))
    text = _json_lines(found) if suffix in _JSON_LINES or lists else _csv(found, "\t" if suffix == ".tsv" else ",")
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode())


def _json_lines(found: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in found)


def _csv(found: list[dict[str, Any]], delimiter: str) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(found[0]) if found else [], delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return buffer.getvalue()
