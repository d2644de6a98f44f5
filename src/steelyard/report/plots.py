"""Plots as SVG text, so that the page is one file."""

from __future__ import annotations

import io
from typing import Any

from steelyard.report.reading import RunRecord

# Colour-blind safe (Okabe and Ito), with dashes for a ninth task and beyond.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_DASHES = ("-", "--", ":", "-.")


def weights(run: RunRecord) -> str:
    """The weight of each task over the steps."""
    figure, axes = _figure()
    for number, (task, pairs) in enumerate(run.weights.items()):
        steps, values = zip(*pairs, strict=True)
        width = 2.5 if task == run.summary["target"] else 1.5
        axes.plot(
            steps,
            values,
            label=task,
            linewidth=width,
            marker="o" if len(steps) == 1 else None,
            **_style(number),
        )
    axes.set_xlabel("step")
    axes.set_ylabel("weight")
    axes.set_ylim(bottom=0)
    return _svg(figure, axes)


def progress(run: RunRecord) -> str:
    """Each task's metric on its dev rows over the steps."""
    figure, axes = _figure()
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
                **_style(number),
            )
    axes.set_xlabel("step")
    axes.set_ylabel(str(run.summary["metric"] or "metric") + " on dev rows")
    return _svg(figure, axes)


def _style(number: int) -> dict[str, str]:
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number // len(_COLOURS) % len(_DASHES)],
    }


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def _svg(figure: Any, axes: Any) -> str:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
