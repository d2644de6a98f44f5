"""What mattered: which objectives and primitives were weighted early and late (the paper's Figs 4 and 5), as data."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.objectives import Space

EARLY, LATE = 0.1, 0.5
"""The first tenth of the training is early, its second half late."""


def table(space: Space, history: Sequence[Mapping[str, Any]]) -> str:
    """A csv file: objectives and primitives with their mean weight among the objectives, early, late and in all.

    Args:
        space: The objectives.
        history: The lines of ``metrics.jsonl``, of which those with the method's notes count.
    """
    notes = [line["method"] for line in history if "lambda_e" in line.get("method", {})]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["what", "name", "data", "transform", "representation", "output", "early", "late", "all"])
    for objective in space.objectives:
        writer.writerow(["objective", objective.name, *objective.stages, *_means(notes, objective.name)])
    for key in space.shares(space.points[:, 0].double()):
        stage, _, name = key.partition(": ")
        writer.writerow([stage, name, "", "", "", "", *_means(notes, key)])
    return file.getvalue()


def _means(notes: Sequence[Mapping[str, float]], key: str) -> list[str]:
    """The means over the first tenth of the epochs, the second half, and all."""
    count = len(notes)
    if not count:
        return ["", "", ""]
    early, late = notes[: math.ceil(count * EARLY)], notes[math.floor(count * LATE) :]
    return [f"{sum(note[key] for note in some) / len(some):.6f}" for some in (early, late, notes)]
