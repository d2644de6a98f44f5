"""Several runs side by side, and the page of a study or a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from steelyard.report import plots
from steelyard.report.answer import answer
from steelyard.report.html import Figure, Table, document, number, picture, section, side_by_side, text
from steelyard.report.reading import RunRecord, StudyRecord


def runs_page(runs: Sequence[RunRecord]) -> str:
    """Several runs: their figures in one table, their curves in one figure, and what differs between them."""
    names = named(runs)
    metric = runs[0].summary["metric"]
    traces = {
        name: trace for name, run in names.items()
        for task, trace in plots.per_task(run, _is_metric).items() if task == run.target
    }  # fmt: skip
    curve = plots.lines("The target on its dev rows", f"The {metric} of {len(traces)} runs over the steps.",
                          traces, ("step", str(metric))) if traces else None  # fmt: skip
    best = _best(names)
    weights = [_weights(name, run) for name, run in names.items() if run.weights]
    answers = "".join(
        f"<h3>{text(name)}</h3>" + "".join(f"<p class=dim>{text(each)}</p>" for each in answer(run))
        for name, run in names.items()
    )
    return document(
        f"{len(runs)} runs side by side",
        f"<p class=answer>{text(best)}</p>",
        [
            section("Runs", _runs_table(names)),
            section("Progress", side_by_side(curve)),
            section("Weights", side_by_side(*weights)),
            section("What differs", _differences(names)),
            section("Each run", answers),
        ],
    )


def named(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Runs by name; those of the same name are numbered."""
    found: dict[str, RunRecord] = {}
    for run in runs:
        name, count = run.name, 2
        while name in found:
            name, count = f"{run.name} ({count})", count + 1
        found[name] = run
    return found


def _is_metric(key: str) -> bool:
    return key.startswith("dev_") and key != "dev_loss"


def _value(run: RunRecord, role: str) -> float | None:
    found: float | None = run.summary["metrics"].get(role, {}).get(run.summary["metric"])
    return found


def _best(names: Mapping[str, RunRecord]) -> str:
    """Which run has the highest figure, where they can be compared at all."""
    targets = {(run.target, run.summary["metric"]) for run in names.values()}
    if len(targets) > 1:
        return "These runs have different targets or metrics; their figures cannot be compared."
    metric = next(iter(names.values())).summary["metric"]
    values = {name: value for name, run in names.items() if (value := _value(run, "test")) is not None}
    if len(values) < 2:
        return f"The {metric} of each run stands below."
    ordered = sorted(values, key=lambda name: -values[name])
    said = ", ".join(f"{name} {number(values[name])}" for name in ordered)
    return f"Test {metric}: {said}. Single runs: chance may decide their order."


def _runs_table(names: Mapping[str, RunRecord]) -> Table:
    columns = ["run", "target", "method", "paradigm", "metric", "dev", "test", "steps", "seconds", "seed"]
    rows = [
        [name, run.target or "", run.summary["method"], run.summary["paradigm"], run.summary["metric"] or "",
         _value(run, "dev_select"), _value(run, "test"), run.summary["steps"], run.summary["seconds"],
         run.summary["seed"]]
        for name, run in names.items()
    ]  # fmt: skip
    return Table("Runs", columns, rows)


def _weights(name: str, run: RunRecord) -> Figure:
    return plots.lines(f"Weights: {name}", f"The weight of each task in {name}.", run.weights, ("step", "weight"),
                         run.target, floor=0)  # fmt: skip


def _differences(names: Mapping[str, RunRecord]) -> Table | str:
    """The keys of the configuration that are not the same in all runs."""
    flat = {name: dict(_flat(run.config)) for name, run in names.items()}
    keys = dict.fromkeys(key for each in flat.values() for key in each)
    rows = [
        [key, *(str(each.get(key, "–")) for each in flat.values())]
        for key in keys if len({str(each.get(key)) for each in flat.values()}) > 1
    ]  # fmt: skip
    return (
        Table("Settings that differ", ["setting", *names], rows)
        if rows
        else "<p>Their configurations are the same.</p>"
    )


def _flat(tables: Any, place: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(tables, dict):
        for key, value in tables.items():
            yield from _flat(value, f"{place}.{key}" if place else str(key))
    elif isinstance(tables, list) and any(isinstance(each, dict) for each in tables):
        for i, value in enumerate(tables):
            yield from _flat(value, f"{place}[{i}]")
    else:
        yield place, tables


def study_page(studies: Sequence[StudyRecord], runs: Sequence[RunRecord]) -> str:
    """Studies and comparisons one after the other; runs among them in a table."""
    names = named(runs)
    parts = [part for study in studies for part in _study(study, len(studies) > 1)]
    title = " · ".join(study.name for study in studies)
    lead = "".join(_lead(study) for study in studies)
    return document(title, lead, [*parts, section("Runs", _runs_table(names)) if names else ""])


def _lead(study: StudyRecord) -> str:
    asked = study.findings.get("asked", "")
    before = f"<p class=dim>Asked: {text(asked)}</p>" if asked else ""
    return f"{before}<p class=answer>{text(study.findings.get('answer', ''))}</p>"


def _study(study: StudyRecord, several: bool) -> list[str]:
    before = f"{study.name}: " if several else ""
    titles: Mapping[str, str] = study.findings.get("titles", {})
    noted: Mapping[str, str] = study.findings.get("notes", {})
    tables = {
        name: Table(titles.get(name, name), rows[0], rows[1:], noted.get(name, ""))
        for name, rows in study.tables.items() if rows
    }  # fmt: skip
    to_read = [table for name, table in tables.items() if name.startswith("table")]
    raw = [_folded(table) for name, table in tables.items() if not name.startswith("table")]
    pictures = [
        f"<figure><figcaption>{text(title)}</figcaption>{picture(svg, title)}</figure>"
        for title, svg in ((titles.get(name, name), svg) for name, svg in study.figures.items())
    ]
    drawn = [plots.matrix(each) for each in study.findings.get("matrices", [])]
    shown = f"<div class=figures>{''.join(pictures)}</div>" if pictures else ""
    differs = study.findings.get("differs", "")
    failed = "".join(f"<li>{text(k)}: {text(v)}</li>" for k, v in study.findings.get("failed", {}).items())
    return [
        section(f"{before}Tables", *to_read, name=_place(before, "tables")),
        section(f"{before}Figures", shown, side_by_side(*drawn), name=_place(before, "figures")),
        section(f"{before}What differs from the paper", f"<p>{text(differs)}</p>" if differs else "",
                name=_place(before, "differs")),
        section(f"{before}Failed", f"<ul>{failed}</ul>" if failed else "", name=_place(before, "failed")),
        section(f"{before}Every number", *raw, _cells(study), _settings(study), name=_place(before, "numbers")),
    ]  # fmt: skip


def _place(before: str, name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", (before + name).lower())


def _cells(study: StudyRecord) -> str:
    """Every cell that was measured, keys first."""
    keys = dict.fromkeys(name for cell in study.cells for name in cell["key"])
    flat = [dict(_flat(cell["value"])) for cell in study.cells]
    values = list(dict.fromkeys(name for each in flat for name in each))[:40]
    rows = [
        [*(str(cell["key"].get(name, "")) for name in keys), *(_plain(each.get(name)) for name in values)]
        for cell, each in zip(study.cells, flat, strict=True)
    ]
    table = Table("Cells", [*keys, *values], rows)
    return f"<details><summary>{len(rows):,} cells</summary>{table}</details>"


def _folded(table: Table) -> str:
    """A table of raw numbers behind its heading."""
    return f"<details><summary>{text(table.title)}</summary>{table}</details>"


def _plain(value: Any) -> object:
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)[:80]


def _settings(study: StudyRecord) -> Table:
    said = [*_flat(study.about), *study.findings.get("versions", {}).items()]
    return Table("Settings and versions", ["", ""], [[key, str(value)] for key, value in said])
