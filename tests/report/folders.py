"""Folders as runs and studies leave them, with everything that a page can show, and nasty names in all of it."""

import json
from pathlib import Path

from steelyard import Rows, Suite, Task, fit, testing

NASTY = "<img src=x onerror=alert(1)> $x$ & \"q\" 'a'"
SCRIPT = "</td></script><script>alert(2)</script>"


def nasty_suite() -> Suite:
    tasks = []
    for name, task in zip((NASTY, SCRIPT, "_plain"), testing.suite().tasks.values(), strict=True):
        data = {str(role): Rows(rows.inputs, rows.labels) for role, rows in task.rows.items()}
        tasks.append(Task(name, "classification", data, outputs=2))
    return Suite(tasks, target=NASTY)


def write_run(folder: Path, method: str = "tawt", full: bool = True, **settings: object) -> Path:
    """A run on three tasks; a full one has a comparison, sources' values, matrices, notes and rows to read."""
    settings = {"epochs": 3, "log_every": 2, "seed": 0, **settings}
    fit(nasty_suite(), testing.encoder(), method, out=folder, progress=False, **settings)
    if full:
        add_everything(folder)
    return folder


def add_everything(folder: Path) -> None:
    names = [NASTY, SCRIPT, "_plain"]
    values = {"single": [0.70, 0.72, 0.71], "uniform": [0.74, 0.73, 0.75], "tawt": [0.78, 0.79, 0.80]}
    sources = [
        {"source": SCRIPT, "gain": 0.03, "low": 0.01, "high": 0.05},
        {"source": "_plain", "gain": -0.02, "low": -0.05, "high": 0.01},
    ]
    grid = [[None if r == c else (r - c) / 50 for c in range(3)] for r in range(3)]
    matrix = {"title": f"Transfer {SCRIPT}", "rows": names, "columns": names, "values": grid, "centred": True}
    rows = [
        {"task": SCRIPT, "place": "f.csv, line 2", "weight": 2.5, "label": NASTY, "text": SCRIPT * 3},
        {"task": SCRIPT, "place": "f.csv, line 9", "weight": 0.1, "label": "b", "text": "fine"},
    ]
    (folder / "comparison.json").write_text(json.dumps(values))
    (folder / "sources.json").write_text(json.dumps(sources))
    (folder / "matrices.json").write_text(json.dumps([matrix]))
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "objectives.csv").write_text(f'what,name,early,late\nobjective,"{SCRIPT}",0.2,0.7\n')
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line["method"] = {f"stage: {SCRIPT}": 0.2 + number / 10, "stage: other": 0.5, "temperature": 1.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_study(folder: Path) -> Path:
    """A study's folder with a table, a figure and cells."""
    folder.mkdir()
    cells = [
        {"key": {"method": m, "seed": s}, "value": {"accuracy": 0.7 + s / 100, "note": SCRIPT}} for m in ("a", NASTY)
        for s in range(3)
    ]  # fmt: skip
    (folder / "cells.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells) + '{"key": {"cut sho')
    (folder / "study.json").write_text(
        json.dumps({"study": f"mine {SCRIPT}", "size": "small", "settings": {"seeds": 3}})
    )
    (folder / "numbers.csv").write_text("method,mean\na,0.7123456789\n")
    (folder / "table1.csv").write_text("method,mean,against\na,0.71,\n<b>b</b>,0.72,+0.01 ± 0.02\n")
    (folder / "curve.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(3)</script></svg>')
    said = {
        "answer": f"It helps. {SCRIPT}", "differs": "fewer seeds", "failed": {"method c": f"broke {SCRIPT}"},
        "titles": {"table1": "Accuracy", "curve": "A curve"}, "notes": {"table1": "Over three seeds."},
    }  # fmt: skip
    (folder / "findings.json").write_text(json.dumps(said))
    return folder
