"""How every figure looks: one size, one set of colours, SVG as text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

# Colour-blind safe (Okabe and Ito), with dashes for a ninth line and beyond.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_DASHES = ("-", "--", ":", "-.")


def style(number: int) -> dict[str, str]:
    """Colour and dashes of the ``number``-th line."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number // len(_COLOURS) % len(_DASHES)],
    }


def figure() -> tuple[Any, Any]:
    """An empty figure and its axes."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = made.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return made, axes


def svg(made: Any, axes: Any) -> str:
    """A figure as SVG text, with its legend beside it."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    buffer = io.StringIO()
    made.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


Point = tuple[float, float, float, float]
"""x, mean, and the ends of its interval."""


def curves(
    lines: Mapping[str, Sequence[Point]], x: str, y: str, *, zero: bool = False, logarithmic: bool = False
) -> str:
    """Lines with a band for the interval of each point.

    Args:
        lines: Points by name.
        x: What the horizontal axis says.
        y: What the vertical axis says.
        zero: Draw a line at zero: gains above it, losses below.
        logarithmic: A logarithmic horizontal axis.
    """
    made, axes = figure()
    for number, (name, points) in enumerate(lines.items()):
        across, means, low, high = zip(*points, strict=True)
        axes.plot(across, means, label=name, marker="o", markersize=3.5, **style(number))
        axes.fill_between(across, low, high, color=style(number)["color"], alpha=0.15, linewidth=0)
    if zero:
        axes.axhline(0, color="#666666", linewidth=0.8)
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return svg(made, axes)


def heatmap(
    values: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], label: str = "", digits: int = 2
) -> str:
    """A matrix as colours, with its numbers written in."""
    made, axes = figure()
    axes.grid(visible=False)
    shown = axes.imshow(values, cmap="cividis", aspect="auto")
    middle = (shown.norm.vmin + shown.norm.vmax) / 2
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            colour = "black" if value > middle else "white"
            axes.text(j, i, f"{value:.{digits}f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    made.colorbar(shown, ax=axes, label=label)
    return svg(made, axes)
