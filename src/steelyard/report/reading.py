"""What a run folder says."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError


@dataclass(frozen=True)
class RunRecord:
    """A finished run, as its folder holds it.

    Attributes:
        summary: ``summary.json``.
        metrics: The lines of ``metrics.jsonl``.
        weights: For each task its ``(step, weight)`` pairs.
        comparison: Test values per method and seed, where the folder holds a comparison.
    """

    path: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    weights: dict[str, list[tuple[int, float]]]
    comparison: dict[str, list[float]] = field(default_factory=dict)


def read(path: Path) -> RunRecord:
    """Reads a run folder."""
    if not (path / "summary.json").exists():
        raise SteelyardError(f"{path} is not a finished run's folder: it has no summary.json")
    weights: dict[str, list[tuple[int, float]]] = {}
    with (path / "weights.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            weights.setdefault(row["task"], []).append((int(row["step"]), float(row["weight"])))
    metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    comparison = path / "comparison.json"
    return RunRecord(
        path,
        json.loads((path / "summary.json").read_text(encoding="utf-8")),
        metrics,
        weights,
        json.loads(comparison.read_text(encoding="utf-8")) if comparison.exists() else {},
    )
