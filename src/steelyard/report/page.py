"""``report.html``: the target's figures first, then what each source was worth, then how it went."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from steelyard.report import plots
from steelyard.report.reading import RunRecord, read
from steelyard.training import checkpoint

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.lead { font-size: 2.4rem; font-weight: 600; margin: .6rem 0 0 } .dim { color: #5a5a5a }
.wide { overflow-x: auto } table { border-collapse: collapse } svg { max-width: 100%; height: auto }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #ddd }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
"""


def write(folder: Path | str) -> Path:
    """Writes ``report.html`` into a finished run's folder, and says where it is."""
    run = read(Path(folder))
    path = run.path / "report.html"
    checkpoint.write_atomically(path, _page(run).encode())
    return path


def _page(run: RunRecord) -> str:
    summary = run.summary
    title = f"{summary['target'] or 'all tasks'} · {summary['method']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _lead(run),
        _comparison(run),
        "<h2>Tasks</h2>",
        _tasks(run),
        "<h2>Weights</h2>",
        "<p class=dim>What each task counted for while the model was trained.</p>",
        plots.weights(run),
        "<h2>Progress</h2>",
        plots.progress(run),
        "<h2>How it was made</h2>",
        _facts(run),
    ]
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(title)}</title>"
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


def _lead(run: RunRecord) -> str:
    metric, roles = run.summary["metric"], run.summary["metrics"]
    for role, name in (("test", "test rows"), ("dev_select", "dev rows (on which the epoch was chosen)")):
        if role in roles:
            value = f"<p class=lead>{roles[role][metric]:.4f}</p>"
            return f"{value}<p class=dim>{escape(metric)} of {escape(run.summary['target'])} on {name}</p>"
    return "<p class=dim>There were no dev or test rows to judge the target by.</p>"


def _comparison(run: RunRecord) -> str:
    if not run.comparison:
        return ""
    rows = [
        [
            method,
            f"{statistics.mean(values):.4f}",
            f"{_spread(values):.4f}",
            ", ".join(f"{v:.4f}" for v in values),
        ]
        for method, values in run.comparison.items()
    ]
    return "<h2>Side by side</h2>" + _table(["method", "test mean", "± sd", "by seed"], rows, {1, 2})


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _tasks(run: RunRecord) -> str:
    rows = []
    for name, roles in run.summary["tasks"].items():
        found = {
            role: next((f"{v:.4f} ({k})" for k, v in values.items() if k != "loss"), "")
            for role, values in roles.items()
        }
        weight = run.summary["weights"].get(name)
        rows.append([
            name + (" (target)" if name == run.summary["target"] else ""), str(run.summary["rows"].get(name, "")),
            found.get("dev_select", "–"), found.get("test", "–"), "–" if weight is None else f"{weight:.3f}",
        ])  # fmt: skip
    return _table(["task", "training rows", "dev", "test", "last weight"], rows, {1, 2, 3, 4})


def _facts(run: RunRecord) -> str:
    summary = run.summary
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    rows = [
        ["paradigm", summary["paradigm"]],
        ["steps", str(summary["steps"])],
        ["best epoch", str(summary["best_epoch"] or "the last: there were no dev rows")],
        ["seconds", f"{summary['seconds']:.1f}"],
        ["seed", str(summary["seed"])],
        ["versions", versions],
    ]
    return _table(["", ""], rows, set())


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        kinds = [" class=n" if i in numbers else "" for i in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for c, k in zip(cells, kinds, strict=True)) + "</tr>"

    head = row(columns, "th") if any(columns) else ""
    return f"<div class=wide><table>{head}{''.join(row(cells, 'td') for cells in rows)}</table></div>"
