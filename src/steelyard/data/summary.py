"""What was read, per task and role: rows, labels, lengths, missing, duplicates; to be printed and kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.tasks import Inputs, Kind, Ragged, Role, Rows, labelled

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from steelyard.data.labels import Labels

SHOWN = 30
"""Classes whose counts are kept; of the others only the number is."""


@dataclass(frozen=True)
class Entry:
    """One task in one role.

    Attributes:
        task: The task's name.
        role: The role of the rows.
        kind: What is predicted.
        origin: Where they came from.
        rows: How many.
        missing: Rows without any label.
        labels: How often each label occurs, or mean and deviation of a regression's labels.
        lengths: Tokens per row (mean, median, longest); empty for inputs that are not text.
        unknown: The share of tokens that the vocabulary does not know; none for other inputs.
        cut: Rows that reach the length limit.
    """

    task: str
    role: str
    kind: str
    origin: str
    rows: int
    missing: int
    labels: dict[str, float]
    lengths: dict[str, float] = field(default_factory=dict)
    unknown: float | None = None
    cut: int = 0


@dataclass
class Summary:
    """Everything that was read.

    Attributes:
        entries: One per task and role.
        duplicates: Rows of dev or test that also stand in train, by task.
        notes: What was inferred or left out, in sentences.
    """

    entries: list[Entry] = field(default_factory=list)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def table(self) -> RichTable:
        """For people, by rich."""
        from rich.table import Table as RichTable

        table = RichTable(title="Data")
        for name in ("task", "role", "rows", "unlabelled", "labels", "length", "unknown"):
            table.add_column(name, justify="left" if name in ("task", "role", "labels") else "right")
        for e in self.entries:
            length = f"{e.lengths['mean']:.0f} (≤ {e.lengths['longest']:.0f})" if e.lengths else ""
            unknown = "" if e.unknown is None else f"{e.unknown:.1%}"
            table.add_row(e.task, e.role, f"{e.rows:,}", f"{e.missing:,}", _shown(e), length, unknown)
        return table


def _shown(entry: Entry) -> str:
    if entry.kind == Kind.REGRESSION:
        return f"mean {entry.labels['mean']:.3g}, deviation {entry.labels['deviation']:.3g}"
    top = sorted(entry.labels.items(), key=lambda pair: -pair[1])
    more = f", … ({len(top)})" if len(top) > 4 else ""
    return ", ".join(f"{name} {count:,.0f}" for name, count in top[:4]) + more


def entry(task: str, role: Role, rows: Rows, labels: Labels, unknown: int | None, limit: int | None) -> Entry:
    """Sums up one task's rows in one role.

    Args:
        task: The task's name.
        role: Their role.
        rows: The rows.
        labels: The label space.
        unknown: The id of unknown words, for text by words.
        limit: The length at which rows are cut, for text.
    """
    given = _given(rows.labels)
    lengths: dict[str, float] = {}
    share, cut = None, 0
    if isinstance(rows.inputs, Ragged) and len(rows):
        sizes = rows.inputs.lengths.numpy()
        lengths = {
            "mean": float(sizes.mean()),
            "median": float(np.median(sizes)),
            "longest": float(sizes.max()),
        }
        cut = int((sizes >= limit).sum()) if limit else 0
        if unknown is not None:
            share = float((rows.inputs.values == unknown).float().mean()) if len(rows.inputs.values) else 0.0
    return Entry(
        task,
        str(role),
        str(labels.kind),
        rows.origin,
        len(rows),
        int((~given).sum()),
        _counts(rows.labels, labels),
        lengths,
        share,
        cut,
    )


def _given(labels: Inputs) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if isinstance(labels, Ragged):
        owner = np.repeat(np.arange(len(labels)), labels.lengths.numpy())
        counts = np.bincount(owner[labelled(labels.values).numpy()], minlength=len(labels))
        return counts > 0
    given = labelled(labels)
    flat: np.ndarray[tuple[int], np.dtype[np.bool_]] = (given if given.dim() == 1 else given.any(1)).numpy()
    return flat


def _counts(labels: Inputs, space: Labels) -> dict[str, float]:
    values = (labels.values if isinstance(labels, Ragged) else labels).numpy()
    if space.kind is Kind.REGRESSION:
        given = values[np.isfinite(values)]
        return {"mean": float(given.mean()), "deviation": float(given.std())} if given.size else {}
    names = space.classes or ()
    if space.kind is Kind.MULTILABEL:
        totals = np.nansum(values, 0)
    else:
        totals = np.bincount(values[values >= 0], minlength=len(names))
    counts = {name: float(n) for name, n in zip(names, totals, strict=True)}
    kept = dict(sorted(counts.items(), key=lambda pair: -pair[1])[:SHOWN])
    rest = len(names) - len(kept)
    if rest > 0:
        kept[f"({rest} others)"] = sum(counts.values()) - sum(kept.values())
    return kept
