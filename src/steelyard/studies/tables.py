"""Tables that most studies want."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from steelyard.studies.base import Table
from steelyard.studies.results import Results, Value
from steelyard.studies.statistics import holm


def comparison(
    title: str,
    results: Results,
    what: str | Callable[[Value], float],
    *,
    vary: str = "method",
    against: Sequence[str] = ("uniform", "single"),
    note: str = "",
    published: Mapping[str, str] | None = None,
    **match: Any,
) -> Table:
    """A row for each method: mean, interval, and paired differences to some of them, corrected for their number.

    Args:
        title: The table's.
        results: Cells whose keys have ``vary`` and ``seed``.
        what: The number that is compared, by name or as a function of a cell's value.
        vary: The name in the keys that tells the rows apart.
        against: The rows that the others are compared with, where they are there.
        note: What stands below.
        published: The paper's figures by row, to stand beside ours.
        match: The cells that count, by entries of their keys.
    """
    chosen = results.where(**match)
    names = chosen.levels(vary)
    controls = [name for name in against if name in names]
    columns = [vary, "mean ± 95 %", "sd", "seeds"]
    found = {name: chosen.estimate(what, **{vary: name}) for name in names}
    rows = {name: [str(name), str(each), f"{each.sd:.4f}", str(each.count)] for name, each in found.items()}
    for control in controls:
        gains = {n: chosen.gain(what, {vary: n}, {vary: control}) for n in names if n != control}
        corrected = dict(zip(gains, holm([gain.p for gain in gains.values()]), strict=True))
        columns += [f"against {control}", "p (Holm)"]
        for name, row in rows.items():
            row.extend([gains[name].signed, probability(corrected[name])] if name in gains else ["", ""])
    if published is not None:
        columns.insert(2, "paper")
        for name, row in rows.items():
            row.insert(2, published.get(name, ""))
    return Table(title, tuple(columns), list(rows.values()), note)


def probability(p: float) -> str:
    """A p-value as people read it."""
    if math.isnan(p):
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def markdown(table: Table) -> list[str]:
    """A table as lines of Markdown."""
    lines = [_row(table.columns), _row(["---"] * len(table.columns)), *(_row(row) for row in table.rows)]
    return lines + (["", table.note] if table.note else [])


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
