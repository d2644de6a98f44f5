"""The figures of a run. Each carries its legend, its numbers as a table, and what it shows in a sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steelyard.report import drawing
from steelyard.report.html import Figure, Table, number
from steelyard.report.reading import KINDS, RunRecord, Trace, read
from steelyard.training import Run

LINES, POINTS = 12, 300
"""As many lines as one figure holds, and points as one line."""


def figures(run: Run | RunRecord | Path | str) -> dict[str, Figure]:
    """A run's figures by name, for notebooks: each shows itself.

    Args:
        run: A run, or its folder.

    Returns:
        ``weights``, ``progress``, ``losses``; and ``comparison``, ``sources``, ``notes``, ``matrix1``, … where the run
        holds what they show.
    """
    record = run if isinstance(run, RunRecord) else RunRecord.of(run) if isinstance(run, Run) else read(Path(run))
    found: dict[str, Figure | None] = {
        "comparison": comparison(record), **sources(record), "weights": weights(record),
        "progress": progress(record), "losses": losses(record),
    }  # fmt: skip
    found |= {f"matrix{place}": each for place, each in enumerate(matrices(record), 1)}
    found |= notes(record)
    return {name: figure for name, figure in found.items() if figure is not None}


def weights(run: RunRecord) -> Figure | None:
    """The weight of each task over the steps."""
    if not run.weights:
        return None
    last = sorted(((trace[-1][1], task) for task, trace in run.weights.items()), reverse=True)
    ends = "; ".join(f"{task} ends at {number(value, 3)}" for value, task in last[:6])
    return lines(
        "Weights", f"The weight of each of {len(last)} tasks over the steps: {ends}.", run.weights,
        ("step", "weight"), bold=run.target, floor=0,
    )  # fmt: skip


def progress(run: RunRecord) -> Figure | None:
    """Each task's metric on its dev rows over the steps."""
    found = per_task(run, lambda key: key.startswith("dev_") and key != "dev_loss")
    if not found:
        return None
    metric = str(run.summary["metric"] or "metric")
    subject = run.target if run.target in found else next(iter(found))
    best = f"{subject} ends at {number(found[subject][-1][1])} on its dev rows"
    others = {str(name) for name in found} != {str(subject)}
    note = "Tasks may be judged by different metrics; see the table of tasks." if others else ""
    return lines("Metric on dev rows", f"The {metric} over the steps: {best}.", found, ("step", metric), run.target,
                 note=note)  # fmt: skip


def losses(run: RunRecord) -> Figure | None:
    """The target's losses over the steps, in training and on dev rows; and the other tasks' in training."""
    found = {f"{name} (train)": trace for name, trace in per_task(run, lambda key: key == "train_loss").items()}
    held = per_task(run, lambda key: key == "dev_loss")
    if run.target in held:
        found = {f"{run.target} (dev)": held[run.target]} | found
    if not found:
        return None
    return lines("Losses", f"Training losses of {len(found)} tasks over the steps.", found, ("step", "loss"),
                 f"{run.target} (dev)")  # fmt: skip


def notes(run: RunRecord) -> dict[str, Figure | None]:
    """What the method says of itself after each epoch (`Method.notes`), such as the weights of AANG's stages.

    Names of the form ``group: name`` stand together in one figure.
    """
    groups: dict[str, Trace] = {}
    for line in run.metrics:
        for name, value in line.get("method", {}).items():
            group, colon, own = str(name).partition(": ")
            trace = groups.setdefault(group if colon else "notes", {}).setdefault(own if colon else group, [])
            if isinstance(value, (int, float)) and math.isfinite(value):
                trace.append((line["step"], float(value)))
    made: dict[str, Figure | None] = {}
    for group, traces in groups.items():
        kept = {name: trace for name, trace in traces.items() if trace}
        if kept:
            title = f"{run.summary['method']}: {group if group != 'notes' else 'what it notes'}"
            ends = "; ".join(f"{name} ends at {number(trace[-1][1], 3)}" for name, trace in list(kept.items())[:6])
            made[group] = lines(title, f"{title}: {ends}.", kept, ("step", "value"))
    return made


def comparison(run: RunRecord) -> Figure | None:
    """Test values of several methods over seeds."""
    found = {name: values for name, values in run.comparison.items() if values}
    return spread(found, f"test {run.summary['metric']}") if found else None


def spread(found: Mapping[str, Sequence[float]], what: str) -> Figure:
    """Values over seeds, a row for each of several methods: the mean and its 95 % interval."""
    rows = {name: mean_interval(values) for name, values in found.items()}
    ordered = dict(sorted(rows.items(), key=lambda item: -item[1][0]))
    most = max(map(len, found.values()))
    table = Table(
        f"{what} by method and seed", ["method", "mean", "low", "high", *(f"run {i + 1}" for i in range(most))],
        [[name, *rows[name], *values, *[None] * (most - len(values))] for name, values in found.items()],
    )  # fmt: skip
    says = ", ".join(f"{name} {number(row[0])}" for name, row in ordered.items())
    return Figure(
        f"Side by side: {what}", f"Mean {what} by method: {says}.", drawing.intervals(ordered, what, zero=False),
        table=table, note="Dots are means over seeds, bars 95 % intervals (Student's t).",
    )  # fmt: skip


def sources(run: RunRecord) -> dict[str, Figure]:
    """What each source was worth to the target, a figure for each way in which that was measured."""
    kinds = dict.fromkeys(str(each.get("kind", "")) for each in run.sources)
    return {
        f"sources {kind}".strip(): _worths(
            kind, [each for each in run.sources if str(each.get("kind", "")) == kind], run
        )
        for kind in kinds
    }


def _worths(kind: str, found: Sequence[Mapping[str, Any]], run: RunRecord) -> Figure:
    """``source``, ``gain``, ``low`` and ``high`` of each."""
    ordered = sorted(found, key=lambda each: -each["gain"])
    rows = {str(each["source"]): (_end(each, "gain"), _end(each, "low"), _end(each, "high")) for each in ordered}
    says = "; ".join(f"{name} {number(row[0])}" for name, row in rows.items())
    numbers = [[name, *row] for name, row in rows.items()]
    how = f": {KINDS[kind]}" if kind in KINDS else ""
    return Figure(
        f"What each source was worth{how}", f"Gain of the target by source{how}: {says}.",
        drawing.intervals(rows, f"gain in {run.summary['metric']}"),
        table=Table(f"Source value{how}", ["source", "gain", "low", "high"], numbers),
        note="Above zero the target is better with the source than without it. What crosses zero decides nothing.",
    )  # fmt: skip


def _end(worth: Mapping[str, Any], name: str) -> float:
    return math.nan if worth.get(name) is None else float(worth[name])


def matrices(run: RunRecord) -> list[Figure]:
    """Similarities and transfer, as colours."""
    return [matrix(each) for each in run.matrices]


def matrix(each: Mapping[str, Any]) -> Figure:
    """One matrix: ``title``, ``rows``, ``columns``, ``values``, and ``label``, ``note``, ``centred`` if they matter."""
    values = [[math.nan if value is None else float(value) for value in row] for row in each["values"]]
    rows, columns = list(map(str, each["rows"])), list(map(str, each["columns"]))
    known = [(value, r, c) for r, row in zip(rows, values, strict=True)
             for c, value in zip(columns, row, strict=True) if math.isfinite(value) and r != c]  # fmt: skip
    extremes = f": highest {max(known)[1]} to {max(known)[2]}, {number(max(known)[0], 3)}" if known else ""
    return Figure(
        str(each["title"]), f"{each['title']}, {len(rows)} by {len(columns)}{extremes}.",
        drawing.heatmap(values, rows, columns, str(each.get("label", "")), centred=bool(each.get("centred"))),
        table=Table(str(each["title"]), ["of", *columns], [[r, *row] for r, row in zip(rows, values, strict=True)]),
        note=str(each.get("note", "")),
    )  # fmt: skip


def lines(
    title: str, says: str, traces: Trace, axes_say: tuple[str, str], bold: str | None = None, *,
    floor: float | None = None, note: str = "",
) -> Figure:  # fmt: skip
    """A line for each trace; of very many, those that matter and moved most."""
    ordered = sorted(traces, key=lambda name: (name != bold, -_movement(traces[name])))[:LINES]
    shown = [name for name in traces if name in ordered]
    made, axes = drawing.figure(4.6, 2.9)
    for place, name in enumerate(shown):
        points = thinned(traces[name])
        steps, values = zip(*points, strict=True)
        axes.plot(
            steps, values, linewidth=3 if name == bold else 1.8, marker="o" if len(points) < 8 else None,
            markersize=4, **drawing.style(place),
        )  # fmt: skip
    axes.set_xlabel(axes_say[0])
    axes.set_ylabel(axes_say[1])
    if floor is not None:
        axes.set_ylim(bottom=floor)
    if len(shown) < len(traces):
        note = f"{note} {len(shown)} of {len(traces)} lines are drawn: those that moved most.".strip()
    legend = [(f"{name} (target)" if name == bold and "(" not in name else name, i) for i, name in enumerate(shown)]
    return Figure(title, says, drawing.svg(made, axes, legend=False), legend, _pivot(title, axes_say[0], traces), note)


def thinned(trace: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """At most `POINTS` of a trace's points, the first and the last among them."""
    every = math.ceil(len(trace) / POINTS)
    return trace if every <= 1 else [*trace[:-1:every], trace[-1]]


def per_task(run: RunRecord, wanted: Any) -> Trace:
    """A number of each evaluation by task, where its name is wanted."""
    found: Trace = {}
    for line in run.metrics:
        for task, values in line["tasks"].items():
            for key, value in values.items():
                if wanted(key) and isinstance(value, (int, float)) and math.isfinite(value):
                    found.setdefault(task, []).append((line["step"], float(value)))
                    break
    return found


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of some values with its 95 % interval (Student's t); NaN ends with fewer than two."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan, math.nan
    from scipy import stats

    reach = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - reach, mean + reach


def _movement(trace: Sequence[tuple[int, float]]) -> float:
    values = [value for _, value in trace]
    return max(values) - min(values)


def _pivot(title: str, index: str, traces: Trace) -> Table:
    steps = sorted({step for trace in traces.values() for step, _ in trace})
    held = {name: dict(trace) for name, trace in traces.items()}
    return Table(title, [index, *traces], [[step, *(held[name].get(step) for name in traces)] for step in steps])
