"""``report.html`` of one run: what was asked, the answer, what each source was worth, how it went, every number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from steelyard.errors import SteelyardError
from steelyard.report import plots
from steelyard.report.answer import answer, asked
from steelyard.report.apart import joined
from steelyard.report.html import GENERATOR, Table, document, number, section, side_by_side, text
from steelyard.report.reading import RunRecord, StudyRecord, read_any
from steelyard.report.several import runs_page, study_page
from steelyard.training import checkpoint

NAME = "report.html"


def write(*folders: Path | str, out: Path | str | None = None) -> Path:
    """Writes the page of a folder, or of several runs side by side, and says where it is.

    Args:
        *folders: A run's folder, a study's or a comparison's, or several runs'. Of one run and transfers or comparisons
            of the same target it is the run's page, with what they have measured.
        out: The file; by default ``report.html`` in the run's folder, or the only one's, or the working directory.
    """
    if not folders:
        raise SteelyardError("nothing to report: name a run's folder")
    records = _joined([read_any(Path(folder)) for folder in folders])
    own = records[0].path if len(records) == 1 else None
    path = Path(out) if out is not None else (own or Path()) / NAME
    if path.is_dir():
        path /= NAME
    if path.exists() and GENERATOR not in path.read_text(encoding="utf-8", errors="replace")[:400]:
        raise SteelyardError(f"{path} exists and is not a report of ours; choose another file (--out)")
    checkpoint.write_atomically(path, page(records).encode())
    return path


def page(records: Sequence[RunRecord | StudyRecord]) -> str:
    """The page as text."""
    runs = [record for record in records if isinstance(record, RunRecord)]
    if len(runs) == len(records):
        return run_page(runs[0]) if len(runs) == 1 else runs_page(runs)
    return study_page([record for record in records if isinstance(record, StudyRecord)], runs)


def _joined(records: Sequence[RunRecord | StudyRecord]) -> Sequence[RunRecord | StudyRecord]:
    """One run with what the other folders have measured of it; or the records as they are."""
    runs = [record for record in records if isinstance(record, RunRecord)]
    studies = [record for record in records if isinstance(record, StudyRecord)]
    found = joined(runs[0], studies) if len(runs) == 1 else None
    return records if found is None else [found]


def run_page(run: RunRecord) -> str:
    """The page of one run."""
    summary = run.summary
    title = f"{run.target or 'All tasks'} · {summary['method']}"
    made = plots.figures(run)
    fixed = ("comparison", "weights", "progress", "losses")
    worths = [figure for name, figure in made.items() if name.startswith("sources")]
    notes = {
        name: figure
        for name, figure in made.items()
        if name not in fixed and not name.startswith(("matrix", "sources"))
    }
    return document(
        title,
        lead(run),
        [
            section("Against the controls", side_by_side(made.get("comparison"))),
            section("Sources", side_by_side(*worths), tasks(run)),
            section("Weights", "<p class=dim>What each task counted for while the model was trained.</p>",
                    side_by_side(made.get("weights"), *notes.values())) if run.weights else "",
            section("Progress", side_by_side(made.get("progress"), made.get("losses"))),
            section("Similarity and transfer", side_by_side(*(f for n, f in made.items() if n.startswith("matrix")))),
            section("What the method adds", *(Table(name, rows[0], rows[1:]) for name, rows in run.tables.items())),
            section("Rows to read", examples(run)),
            section("Data", data(run)),
            section("How it was made", facts(run), configuration(run)),
        ],
    )  # fmt: skip


def lead(run: RunRecord) -> str:
    """What was asked, the figure, and the answer."""
    metric, roles = run.summary["metric"], run.summary["metrics"]
    role = next((each for each in ("test", "dev_select") if each in roles), None)
    figure = f"<p class=lead>{number(roles[role][metric])}</p>" if role else ""
    said = "".join(f"<p{'' if i else ' class=answer'}>{text(each)}</p>" for i, each in enumerate(answer(run)))
    apart = "".join(f"<p class=dim>{text(each)}</p>" for each in run.apart)
    return f"<p class=dim>Asked: {text(asked(run))}</p>{figure}{said}{apart}"


def tasks(run: RunRecord) -> Table:
    """Every task: rows, metrics, last weight."""
    rows: list[list[object]] = []
    for name, roles in run.summary["tasks"].items():
        metrics = {r: next(((v, k) for k, v in values.items() if k != "loss"), None) for r, values in roles.items()}
        metric = next((found[1] for found in metrics.values() if found), "")
        values = [found[0] if (found := metrics.get(role)) else None for role in ("dev_select", "test")]
        rows.append([
            f"{name} (target)" if name == run.target else name, run.summary["rows"].get(name), metric, *values,
            run.summary["weights"].get(name),
        ])  # fmt: skip
    return Table("Tasks", ["task", "training rows", "metric", "dev", "test", "last weight"], rows)


def examples(run: RunRecord) -> str:
    """Rows with weights of their own: the heaviest and the lightest of each source."""
    parts = []
    for task in dict.fromkeys(str(each["task"]) for each in run.examples):
        own = sorted((each for each in run.examples if str(each["task"]) == task), key=lambda each: -each["weight"])
        rows = [[each["weight"], each.get("place", ""), each.get("label", ""), each.get("text", "")] for each in own]
        half = (len(rows) + 1) // 2
        for which, some in (("heaviest", rows[:half]), ("lightest", rows[half:][::-1])):
            if some:
                note = f"The {which} first. A row's weight within its source: 1 is the mean."
                shown = Table(f"{task}: the {which} rows", ["weight", "row", "label", "content"], some, note)
                parts.append(f"<div class=reading>{shown}</div>")
    return "".join(parts)


def data(run: RunRecord) -> str:
    """What was read from files."""
    if not run.data:
        return ""
    rows = [
        [
            each["task"],
            each["role"],
            each["kind"],
            each["rows"],
            each["missing"],
            _labels(each["labels"]),
            each["origin"],
        ]
        for each in run.data.get("entries", [])
    ]
    found = Table("Rows that were read", ["task", "role", "kind", "rows", "unlabelled", "labels", "from"], rows)
    twice = [
        f"{task}: {count} rows of {role} also stand in train" for task, roles in run.data.get("duplicates", {}).items()
        for role, count in roles.items() if count
    ]  # fmt: skip
    said = "".join(f"<li>{text(note)}</li>" for note in [*twice, *run.data.get("notes", [])])
    return f"{found}{f'<ul>{said}</ul>' if said else ''}"


def _labels(counts: dict[str, float]) -> str:
    top = sorted(counts.items(), key=lambda item: -item[1])[:4]
    more = f", … ({len(counts)})" if len(counts) > 4 else ""
    return ", ".join(f"{name} {number(value, 3).removesuffix('.000')}" for name, value in top) + more


def facts(run: RunRecord) -> Table:
    """Steps, time, seed, versions."""
    summary = run.summary
    rows: list[list[object]] = [
        ["method", summary["method"]],
        ["paradigm", summary["paradigm"]],
        ["steps", summary["steps"]],
        ["best epoch", summary["best_epoch"] or "the last: there were no dev rows"],
        ["seconds", summary["seconds"]],
        *([["peak memory, MB", summary["peak_memory_mb"]]] if "peak_memory_mb" in summary else []),
        ["seed", summary["seed"]],
        *([name, version] for name, version in summary["versions"].items()),
    ]
    return Table("Run", ["", ""], [[str(key), number(value)] for key, value in rows])


def configuration(run: RunRecord) -> str:
    """The configuration with every default said."""
    return folded("Configuration, with every default said (config.toml)", run.config) if run.config else ""


def folded(title: str, tables: dict[str, Any]) -> str:
    """Tables of a configuration behind their heading."""
    shown = text(tomli_w.dumps(tables))
    return f"<details><summary>{text(title)}</summary><pre tabindex=0>{shown}</pre></details>"
