"""Writes findings so that people, spreadsheets and the report can read them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steelyard.studies.base import Findings
from steelyard.studies.plainly import finite
from steelyard.training import checkpoint
from steelyard.training.run import versions


def publish(
    folder: Path,
    findings: Findings,
    failed: Mapping[str, str],
    *,
    asked: str = "",
    titles: Mapping[str, str] | None = None,
    matrices: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes each table (``table1.csv``, …), each figure (svg), and ``findings.json``.

    Args:
        folder: Where.
        findings: What was found.
        failed: A message for each cell that failed.
        asked: The question, in a sentence.
        titles: Of the figures, and of other csv files in the folder, by file name.
        matrices: Tables of numbers to be shown as colours, as the report reads them.
    """
    for number, table in enumerate(findings.tables, 1):
        with (folder / f"table{number}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([table.columns, *table.rows])  # two columns may have one name
    for name, svg in findings.figures.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    of_tables = {f"table{number}": table for number, table in enumerate(findings.tables, 1)}
    said = {
        "asked": asked, "answer": findings.answer, "differs": findings.differs, "failed": dict(failed),
        "titles": {name: table.title for name, table in of_tables.items()} | dict(titles or {}),
        "notes": {name: table.note for name, table in of_tables.items()},
        "versions": versions(),
        **({"matrices": list(matrices)} if matrices else {}),
    }  # fmt: skip
    checkpoint.write_atomically(folder / "findings.json", json.dumps(finite(said), indent=1).encode())


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same columns as csv."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
