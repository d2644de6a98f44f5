"""The figures of a comparison: gains with their intervals, learning curves, and weights, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from steelyard.report import drawing
from steelyard.studies.statistics import estimate

if TYPE_CHECKING:
    from steelyard.studies.comparison import Comparison

MOST_LINES = 8
"""More lines than this cannot be told apart; of more methods, those that were asked about are drawn first."""

MOST_WEIGHTS = 6
"""So many methods have their weights drawn."""


def pictures(found: Comparison) -> tuple[dict[str, str], dict[str, str]]:
    """The figures (SVG text) and their titles, by name."""
    made, titles = {}, {}
    for control in ("uniform", "single"):
        rows = {row.method: row.against[control].gain for row in found.rows if control in row.against}
        if rows and all(gain.count > 1 for gain in rows.values()):
            ordered = sorted(rows.items(), key=lambda item: -item[1].mean)
            bars = {name: (gain.mean, gain.low, gain.high) for name, gain in ordered}
            made[f"against_{control}"] = drawing.intervals(bars, f"{found.ground} against {control}")
            titles[f"against_{control}"] = f"What each method gains over {control}: mean and 95 % interval over seeds"
    names = [row.method for row in sorted(found.rows, key=lambda row: row.control)][:MOST_LINES]
    lines = {name: points for name in names if (points := _over_seeds(found, name, lambda point: point["dev"]))}
    if lines:
        made["curves"] = drawing.curves(lines, "step", f"{found.ground.metric} on dev rows")
        titles["curves"] = "The target on its dev rows over the steps: mean and 95 % interval over seeds"
    for row in [row for row in found.rows if not row.control][:MOST_WEIGHTS]:
        tasks = _tasks(found, row.method)
        shares = {task: _over_seeds(found, row.method, _weight(task)) for task in tasks}
        if any(len({point[1] for point in points}) > 1 for points in shares.values()):  # weights that move
            name = f"weights_{row.method.replace('/', '_').replace(':', '_')}"
            made[name] = drawing.curves({task: points for task, points in shares.items() if points}, "step", "weight")
            titles[name] = f"Weights of the tasks under {row.method}: mean and 95 % interval over seeds"
    return made, titles


def _weight(task: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda point: point["weights"].get(task)


def _tasks(found: Comparison, method: str) -> list[str]:
    values = (value for _, value in found.results.where(method=method))
    return list(dict.fromkeys(task for value in values for point in value["curve"] for task in point["weights"]))


def _over_seeds(
    found: Comparison, method: str, read: Callable[[Mapping[str, Any]], float | None]
) -> list[drawing.Point]:
    """Mean and interval by step; runs that stopped early are in the mean as far as they went."""
    by_step: dict[int, list[float]] = {}
    for _, value in found.results.where(method=method):
        for point in value["curve"]:
            number = read(point)
            if number is not None:
                by_step.setdefault(point["step"], []).append(number)
    points: list[drawing.Point] = []
    for step, numbers in sorted(by_step.items()):
        each = estimate(numbers)
        alone = each.count < 2
        points.append((step, each.mean, each.mean if alone else each.low, each.mean if alone else each.high))
    return points
