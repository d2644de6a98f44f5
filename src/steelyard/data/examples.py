"""Rows with a weight of their own, with what they say, so that a person can read which count and which do not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steelyard.tasks import Role, Suite

if TYPE_CHECKING:
    from steelyard.data.build import Prepared

LENGTH = 500
"""Characters of a row that are kept."""


def examples(prepared: Prepared, suite: Suite, weights: Mapping[str, Tensor], count: int = 10) -> str:
    """The heaviest and the lightest training rows of each task that has weights for its rows, as JSON lines.

    Args:
        prepared: The data as it was read.
        suite: The suite that was trained on, as the method cut it.
        weights: Every training row's weight, ``[n_t]``, by task.
        count: How many of each.
    """
    lines = []
    for name, values in weights.items():
        order = values.argsort(descending=True, stable=True).cpu()
        ends = torch.cat([order[:count], order[max(count, len(order) - count) :]])
        lines += _lines(prepared, suite, name, ends, values)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _lines(prepared: Prepared, suite: Suite, name: str, chosen: Tensor, weights: Tensor) -> list[dict[str, Any]]:
    rows, table, recipe = suite[name].rows[Role.TRAIN], prepared.tables[name], prepared.recipe.tasks[name]
    numbers = chosen if rows.lines is None else rows.lines[chosen]
    shown = [column for column in recipe.columns.names if column in table.arrow.column_names]
    labels = [column for column in recipe.labels.columns if column in table.arrow.column_names]
    picked = table.arrow.select(list(dict.fromkeys([*shown, *labels]))).take(numbers.numpy()).to_pydict()
    return [
        {
            "task": name, "place": table.where(number), "weight": weight,
            "label": _joined([picked[column][place] for column in labels]),
            "text": _content(shown, [picked[column][place] for column in shown]),
        }
        for place, (number, weight) in enumerate(zip(numbers.tolist(), weights[chosen].tolist(), strict=True))
    ]  # fmt: skip


def _content(columns: Sequence[str], cells: Sequence[Any]) -> str:
    """What a row says: its text, or its columns by name."""
    named = zip(columns, cells, strict=True)
    text = _joined(cells) if len(cells) == 1 else "; ".join(f"{column}: {_joined([cell])}" for column, cell in named)
    return text if len(text) <= LENGTH else text[: LENGTH - 1] + "…"


def _joined(cells: Sequence[Any]) -> str:
    return " | ".join(" ".join(map(str, cell)) if isinstance(cell, list) else str(cell) for cell in cells)
