"""Plots as SVG text, so that the page is one file."""

from __future__ import annotations

from steelyard.report import drawing
from steelyard.report.reading import RunRecord


def weights(run: RunRecord) -> str:
    """The weight of each task over the steps."""
    figure, axes = drawing.figure()
    for number, (task, pairs) in enumerate(run.weights.items()):
        steps, values = zip(*pairs, strict=True)
        width = 2.5 if task == run.summary["target"] else 1.5
        axes.plot(
            steps,
            values,
            label=task,
            linewidth=width,
            marker="o" if len(steps) == 1 else None,
            **drawing.style(number),
        )
    axes.set_xlabel("step")
    axes.set_ylabel("weight")
    axes.set_ylim(bottom=0)
    return drawing.svg(figure, axes)


def progress(run: RunRecord) -> str:
    """Each task's metric on its dev rows over the steps."""
    figure, axes = drawing.figure()
    names = list(run.summary["tasks"])
    for number, task in enumerate(names):
        points = [
            (line["step"], value)
            for line in run.metrics
            for key, value in line["tasks"].get(task, {}).items()
            if key.startswith("dev_") and key != "dev_loss"
        ]
        if points:
            steps, values = zip(*points, strict=True)
            width = 2.5 if task == run.summary["target"] else 1.5
            axes.plot(
                steps,
                values,
                label=task,
                linewidth=width,
                marker="." if len(steps) < 30 else None,
                **drawing.style(number),
            )
    axes.set_xlabel("step")
    axes.set_ylabel(str(run.summary["metric"] or "metric") + " on dev rows")
    return drawing.svg(figure, axes)
