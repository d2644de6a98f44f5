"""What a folder says: a run's, or a study's."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError, as_written
from steelyard.training import Run
from steelyard.training.folder import refuse_links

_SAID = {
    "target",
    "metric",
    "metrics",
    "tasks",
    "method",
    "paradigm",
    "weights",
    "rows",
    "steps",
    "seconds",
    "versions",
}
_MEASURED = {"phase", "epoch", "step", "tasks", "weights"}

KINDS = {
    "searched": "what it adds to a group of sources",
    "left_out": "what all sources lose without it",
    "alone": "added to the target alone",
}
"""Of several ways to measure a source's worth the first one that is there makes the answer."""

Trace = dict[str, list[tuple[int, float]]]
"""``(step, value)`` pairs by name."""


@dataclass(frozen=True)
class RunRecord:
    """A finished run, as its folder holds it.

    Attributes:
        path: The folder; of a run that wrote none, nothing.
        summary: ``summary.json``.
        metrics: The lines of ``metrics.jsonl``.
        weights: For each task its ``(step, weight)`` pairs.
        config: ``config.toml``.
        data: ``data.json``, where files were read.
        comparison: Test values per method and seed, where the folder holds a comparison.
        examples: Rows with a weight of their own, to read (``examples.jsonl``).
        matrices: Tables of numbers to be shown as colours (``matrices.json``).
        sources: What each source was worth, with intervals (``sources.json``).
        tables: What the method added (csv files such as AANG's ``objectives.csv``), as rows of text, columns first.
        rows: The digest of the rows that it saw (``data.sha256``).
        apart: What other folders have measured of the same target, in a sentence each.
    """

    path: Path | None
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    weights: Trace
    config: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    comparison: dict[str, list[float]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    matrices: list[dict[str, Any]] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    rows: str = ""
    apart: list[str] = field(default_factory=list)

    @property
    def target(self) -> str | None:
        """The target's name."""
        found: str | None = self.summary["target"]
        return found

    @property
    def name(self) -> str:
        """What the run is called where it stands beside others: its folder's name."""
        return self.path.resolve().name if self.path else str(self.summary["method"])

    @classmethod
    def of(cls, run: Run) -> RunRecord:
        """A run that is held in Python."""
        if run.folder is not None:
            return read(run.folder)
        return cls(None, run.summary, run.history, _trace(run.weight_trace))


@dataclass(frozen=True)
class StudyRecord:
    """A finished study or comparison, as its folder holds it.

    Attributes:
        path: The folder.
        about: ``study.json``: its name, size and settings.
        findings: ``findings.json``: the answer, notes, and the titles of tables and figures.
        tables: Each table as rows of text, the first of them its columns, by file name.
        figures: SVG text by file name.
        cells: What was measured: one line per cell of ``cells.jsonl``.
        measured: ``transfer.json`` or ``comparison.json``, where it is one of these.
    """

    path: Path
    about: dict[str, Any]
    findings: dict[str, Any]
    tables: dict[str, list[list[str]]]
    figures: dict[str, str]
    cells: list[dict[str, Any]]
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.about.get("study") or self.path.resolve().name)


def read(path: Path) -> RunRecord:
    """Reads a run folder."""
    if not (path / "summary.json").exists():
        raise SteelyardError(f"{path} is not a finished run's folder: it has no summary.json")
    refuse_links(path)
    with as_written(path / "weights.csv"), (path / "weights.csv").open(encoding="utf-8", newline="") as file:
        weights = _trace((int(row["step"]), row["task"], float(row["weight"])) for row in csv.DictReader(file))
    summary = _json(path / "summary.json", {})
    if not isinstance(summary, dict) or not summary.keys() >= _SAID:
        raise SteelyardError(f"{path / 'summary.json'}: it is not what a run writes; get the folder anew")
    metrics = _lines(path / "metrics.jsonl")
    if not all(isinstance(line, dict) and line.keys() >= _MEASURED for line in metrics):
        raise SteelyardError(f"{path / 'metrics.jsonl'}: it is not what a run writes; get the folder anew")
    config = path / "config.toml"
    with as_written(config):
        settings = tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    return RunRecord(
        path,
        summary,
        metrics,
        weights,
        settings,
        _json(path / "data.json", {}),
        _json(path / "comparison.json", {}),
        _lines(path / "examples.jsonl"),
        _json(path / "matrices.json", []),
        _json(path / "sources.json", []),
        _tables(path, ("weights", "row_weights")),
        _word(path / "data.sha256"),
    )


def read_any(path: Path) -> RunRecord | StudyRecord:
    """Reads a run folder, or that of a study or a comparison."""
    if (path / "summary.json").exists():
        return read(path)
    if not path.exists():
        raise SteelyardError(f"{path}: there is no such folder; give a run's or a study's")
    if not (path / "cells.jsonl").exists():
        state = "its run has not finished; run the same command again" if (path / "checkpoint").exists() else ""
        raise SteelyardError(f"{path} has nothing to report: {state or 'it is neither a run nor a study'}")
    refuse_links(path)
    tables = _tables(path)
    figures = {each.stem: each.read_text(encoding="utf-8") for each in sorted(path.glob("*.svg"))}
    about, findings = _json(path / "study.json", {}), _json(path / "findings.json", {})
    measured = _json(path / "transfer.json", {}) or _json(path / "comparison.json", {})
    known = measured if isinstance(measured, dict) else {}
    return StudyRecord(path, about, findings, tables, figures, _lines(path / "cells.jsonl"), known)


def _tables(path: Path, without: tuple[str, ...] = ()) -> dict[str, list[list[str]]]:
    """A folder's csv files that hold anything."""
    found = {}
    for each in sorted(path.glob("*.csv")):
        with each.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        if rows and each.stem not in without:
            found[each.stem] = rows
    return found


def _trace(rows: Iterable[tuple[int, str, float]]) -> Trace:
    found: Trace = {}
    for step, task, weight in rows:
        found.setdefault(task, []).append((step, weight))
    return found


def _json(path: Path, otherwise: Any) -> Any:
    if not path.exists():
        return otherwise
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SteelyardError(f"{path}: not valid JSON ({error}); it is not what the run wrote") from None


def _word(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines; a last one that a kill cut short is left out."""
    found: list[dict[str, Any]] = []
    if not path.exists():
        return found
    with as_written(path):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                raise SteelyardError(f"{path}, line {number}: not valid JSON ({error})") from None
    return found
