"""How every figure looks: one set of colours for light and dark, SVG as text."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

# Colour-blind safe (after Okabe and Ito, darkened to 3:1 on white), each with its twin for a dark page.
_COLOURS = (
    ("#0072B2", "#4FB0F5"), ("#C65200", "#FF9655"), ("#00825F", "#2FC99B"), ("#B3528A", "#E8A0CC"),
    ("#8F6300", "#F0BE45"), ("#3A7CA5", "#A3DCFA"), ("#3D3D3D", "#F2F2F2"), ("#767676", "#A8A8A8"),
)  # fmt: skip
_DASHES = ("-", "--", ":", "-.")
_INK, _FAINT, _PAPER = ("#1B1B1B", "#ECECEC"), ("#8A8A8A", "#7A7A7A"), ("#FFFFFF", "#14171A")
_NAMED = {"ink": _INK, "faint": _FAINT, "paper": _PAPER} | {f"line{i}": pair for i, pair in enumerate(_COLOURS)}
BELOW = 3
"""So many names stand side by side in a legend."""
_LIGHT_TEXT, _DARK_TEXT = "#FEFEFE", "#010101"
"""Text on a coloured cell: its colour follows the cell, not the page."""


def theme() -> str:
    """The colours as CSS variables, for light and dark pages."""
    light = "".join(f"--sy-{name}:{pair[0]};" for name, pair in _NAMED.items())
    dark = "".join(f"--sy-{name}:{pair[1]};" for name, pair in _NAMED.items())
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def style(number: int) -> dict[str, str]:
    """Colour and dashes of the ``number``-th line."""
    return {
        "color": _COLOURS[number % len(_COLOURS)][0],
        "linestyle": _DASHES[number // len(_COLOURS) % len(_DASHES)],
    }


def figure(width: float = 6.4, height: float = 3.4) -> tuple[Any, Any]:
    """An empty figure (of so many inches) and its axes."""
    from matplotlib.figure import Figure

    with _look():
        made = Figure(figsize=(width, height), layout="constrained")
        axes = made.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.35)
    return made, axes


def svg(made: Any, axes: Any, *, legend: bool = True) -> str:
    """A figure as SVG text, with its legend below it; its colours follow light and dark pages."""
    from matplotlib.text import Text

    buffer = io.StringIO()
    with _look():
        if legend and axes.get_legend_handles_labels()[0]:
            made.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=BELOW)
        for words in made.findobj(Text):
            words.set_parse_math(False)  # a name with a dollar in it is a name
            if words.get_color() == "black":
                words.set_color(_INK[0])
        made.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Element names that nothing refers to would meet those of the next figure on a page.
    used = set(re.findall(r"(?:url\(|href=\")#([\w.-]+)", text))
    return re.sub(r"<[a-z][^>]*>", lambda tag: _themed(tag[0], used), text).replace(
        "<defs>", f"<defs><style>{theme()}</style>", 1
    )


def _themed(tag: str, used: set[str]) -> str:
    """An opening tag without an unused name, and with variables in place of colours."""
    tag = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", tag)
    for name, (light, _) in _NAMED.items():
        tag = re.sub(light, f"var(--sy-{name}, {light})", tag, flags=re.IGNORECASE)
    return tag


@contextmanager
def _look() -> Iterator[None]:
    """Text as text, in the page's own font and colours; the same names for the same figure, always."""
    import matplotlib as mpl

    ink, faint = _INK[0], _FAINT[0]
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": "steelyard", "font.family": "sans-serif",
        "text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.edgecolor": faint,
        "grid.color": faint, "figure.facecolor": _PAPER[0], "axes.facecolor": "none", "savefig.facecolor": _PAPER[0],
    }  # fmt: skip
    with mpl.rc_context(settings):
        yield


def short(name: str, length: int = 20) -> str:
    """A name that fits beside an axis."""
    plain = " ".join(str(name).split())
    return plain if len(plain) <= length else plain[: length - 1] + "…"


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
    made, axes = figure(4.8, 3.1 + 0.18 * math.ceil(len(lines) / BELOW))
    for number, (name, points) in enumerate(lines.items()):
        across, means, low, high = zip(*points, strict=True)
        axes.plot(across, means, label=name, marker="o", markersize=3.5, **style(number))
        axes.fill_between(across, low, high, color=style(number)["color"], alpha=0.15, linewidth=0)
    if zero:
        axes.axhline(0, color=_FAINT[0], linewidth=0.8)
    if logarithmic:
        axes.set_xscale("log")
    axes.set_ylim(*_room([point for points in lines.values() for point in points], axes.get_ylim()))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return svg(made, axes)


def _room(points: Sequence[Point], drawn: tuple[float, float]) -> tuple[float, float]:
    """What a figure shows: all means; of bands that are far wider than what the means do, a part."""
    means = [point[1] for point in points if math.isfinite(point[1])]
    if not means:
        return drawn
    reach = 1.5 * (max(means) - min(means)) or 1.0
    return max(drawn[0], min(means) - reach), min(drawn[1], max(means) + reach)


def intervals(rows: Mapping[str, tuple[float, float, float]], x: str, *, zero: bool = True) -> str:
    """A dot with its interval per row, the first row on top.

    Args:
        rows: Mean, low and high by name; NaN ends draw no interval.
        x: What the axis says.
        zero: Draw a line at zero: gains to its right, losses to its left.
    """
    made, axes = figure(4.6, 0.9 + 0.34 * len(rows))
    for place, (mean, low, high) in enumerate(rows.values()):
        colour = style(0 if not zero or low > 0 else 1 if high < 0 else 7)["color"]
        axes.plot([low, high], [place, place], color=colour, linewidth=2.5, alpha=0.6)
        axes.plot([mean], [place], marker="o", markersize=6, color=colour)
    if zero:
        axes.axvline(0, color=_FAINT[0], linewidth=1)
    axes.set_yticks(range(len(rows)), [short(name) for name in rows], fontsize=10)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(x)
    return svg(made, axes, legend=False)


def heatmap(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    label: str = "",
    digits: int = 2,
    *,
    centred: bool = False,
) -> str:
    """A matrix as colours, with its numbers written in where there is room.

    Args:
        values: The numbers; NaN leaves a cell empty.
        rows: What stands at the left.
        columns: What stands below.
        label: What the colours mean.
        digits: Digits after the point.
        centred: Whether zero is the middle: losses in one colour, gains in another.
    """
    import numpy as np

    array = np.ma.masked_invalid(np.asarray(values, dtype=float))
    made, axes = figure(5.2, max(3.2, 1.2 + 0.3 * len(rows)))
    axes.grid(visible=False)
    reach = {"vmin": -float(abs(array).max()), "vmax": float(abs(array).max())} if centred and array.count() else {}
    shown = axes.pcolormesh(array, cmap="PuOr_r" if centred else "cividis", linewidth=0, **reach)
    if array.size <= 200:
        for i, j in zip(*np.nonzero(~np.ma.getmaskarray(array)), strict=True):
            red, green, blue, _ = shown.cmap(shown.norm(array[i, j]))
            colour = _DARK_TEXT if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else _LIGHT_TEXT
            axes.text(
                j + 0.5,
                i + 0.5,
                f"{round(array[i, j], digits) + 0:.{digits}f}",
                ha="center",
                va="center",
                fontsize=9,
                color=colour,
            )
    axes.set_xticks([j + 0.5 for j in range(len(columns))], [short(c, 16) for c in columns], rotation=30, ha="right",
                    fontsize=9)  # fmt: skip
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [short(r, 16) for r in rows], fontsize=9)
    axes.invert_yaxis()
    made.colorbar(shown, ax=axes, label=label)
    return svg(made, axes)
