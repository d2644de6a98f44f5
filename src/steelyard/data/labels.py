"""Labels as tensors, and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from steelyard.data.cells import NOT_A_NUMBER, label_sets, list_lengths, lists, parse_numbers, without
from steelyard.data.table import View, listed, near, strings
from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Inputs, Kind, Ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

JOINT = "|"
"""Joins several labels in one cell of a csv file."""

NO_TAG = ("", "_")
"""Tags that say "none was given"."""

TRUE, FALSE = ("1", "true", "yes"), ("0", "false", "no")


@dataclass(frozen=True)
class Labels:
    """How a task's label columns become a tensor, and outputs become labels again.

    Attributes:
        task: The task's name, for messages.
        kind: What is predicted.
        columns: The label columns.
        classes: The label space in the order of the indices; none for regression.
        whole: Whether labels are whole numbers, so that ``1`` and ``1.0`` are the same label.
        dropped: Labels that were left out because they occur once (``rare = "drop"``).
    """

    task: str
    kind: Kind
    columns: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    whole: bool = False
    dropped: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Its settings."""
        return asdict(self)

    @classmethod
    def from_json(cls, settings: dict[str, Any]) -> Labels:
        """The inverse of `to_json`."""
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        plain["kind"] = Kind(plain["kind"])
        return cls(**plain)

    def encode(self, view: View, tokens: str | None = None) -> Inputs:
        """The labels of a view's rows.

        Args:
            view: The rows.
            tokens: The column of tokens, for tagging: tags and tokens must be as many.

        Raises:
            SteelyardError: If a label is not known from train, or is not a number where numbers are needed.
        """
        if self.kind is Kind.CLASSIFICATION:
            return self._classes(view)
        if self.kind is Kind.TAGGING:
            return self._tags(view, tokens)
        if self.kind is Kind.REGRESSION:
            columns = [_numbers(view, name, self.task) for name in self.columns]
            return columns[0] if len(columns) == 1 else torch.stack(columns, 1)
        return self._flags(view) if len(self.columns) > 1 else self._sets(view)

    def _classes(self, view: View) -> Tensor:
        parts, start = [], 0
        for batch in view.batches(self.columns):
            values = self.canonical(strings(batch.column(0)))
            codes, unknown = self._lookup(values)
            if unknown.any():
                row = int(unknown.argmax())
                raise self._unknown(values[row].as_py(), view.where(start + row))
            parts.append(codes)
            start += len(values)
        return torch.from_numpy(np.concatenate(parts))

    def _lookup(self, values: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The index of each value, or IGNORE; and which values are unknown."""
        import pyarrow as pa
        import pyarrow.compute as pc

        codes = pc.index_in(values, value_set=pa.array(self.classes, pa.string()))
        unknown = pc.and_(pc.is_null(codes), pc.is_valid(values))
        if self.dropped:
            dropped = pc.is_in(values, value_set=pa.array(self.dropped, pa.string()))
            unknown = pc.and_not(unknown, dropped)
        index = pc.fill_null(codes, IGNORE).to_numpy(zero_copy_only=False).astype(np.int64)
        return index, unknown.to_numpy(zero_copy_only=False)

    def canonical(self, values: Any) -> Any:
        """``1.0`` becomes ``1`` where labels are whole numbers, and ``nan`` is no label."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.whole:
            return values
        text = pc.utf8_trim_whitespace(values)
        known = pc.if_else(pc.match_substring_regex(text, NOT_A_NUMBER), pa.scalar(None, pa.string()), text)
        return pc.replace_substring_regex(known, r"\.0+$", "")

    def _unknown(self, label: str, place: str) -> SteelyardError:
        classes = self.classes or ()
        return SteelyardError(
            f"{place}: task {self.task!r} does not know the label {label!r} from train, only {listed(classes)}"
            f"{near(label, classes)}; correct it, leave its row out, or name every label in classes = [...]"
        )

    def _sets(self, view: View) -> Tensor:
        """Several labels in one cell: a list, or joined by ``|``."""
        parts, start = [], 0
        for batch in view.batches(self.columns):
            cells = label_sets(batch.column(0))
            flat = cells.flatten()
            codes, unknown = self._lookup(flat)
            counts = list_lengths(cells)
            owner = np.repeat(np.arange(len(cells)), counts)
            if unknown.any():
                row = int(unknown.argmax())
                raise self._unknown(flat[row].as_py(), view.where(start + int(owner[row])))
            flags = np.zeros((len(cells), len(self.classes or ())), dtype=np.float32)
            flags[~cells.is_valid().to_numpy(zero_copy_only=False)] = np.nan
            given = codes != IGNORE
            flags[owner[given], codes[given]] = 1
            parts.append(flags)
            start += len(cells)
        return torch.from_numpy(np.concatenate(parts))

    def _flags(self, view: View) -> Tensor:
        """A column of 0 and 1 per label."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = []
        for name in self.columns:
            values = pc.utf8_lower(pc.utf8_trim_whitespace(strings(view.column(name))))
            values = pc.replace_substring_regex(values, r"\.0+$", "")
            code = pc.index_in(values, value_set=pa.array(FALSE + TRUE))
            bad = pc.and_(pc.is_null(code), pc.is_valid(values)).to_numpy(zero_copy_only=False)
            if bad.any():
                row = int(bad.argmax())
                raise SteelyardError(
                    f"{view.where(row)}: task {self.task!r} needs 0 or 1 in the label column {name!r}, "
                    f"not {values[row].as_py()!r}; correct it, or leave it empty if it is not known"
                )
            flags = pc.if_else(pc.greater_equal(code, len(FALSE)), 1.0, 0.0).cast(pa.float32())
            columns.append(pc.fill_null(flags, float("nan")).to_numpy(zero_copy_only=False))
        return torch.from_numpy(np.stack(columns, 1))

    def _tags(self, view: View, tokens: str | None) -> Ragged:
        values, lengths, start = [], [], 0
        wanted = [self.columns[0], *([tokens] if tokens else [])]
        for batch in view.batches(wanted):
            tags = lists(batch.column(0))
            counts = list_lengths(tags)
            expected = list_lengths(lists(batch.column(1))) if tokens else counts
            missing = ~tags.is_valid().to_numpy(zero_copy_only=False)
            wrong = (counts != expected) & ~missing
            if wrong.any():
                row = int(wrong.argmax())
                raise SteelyardError(
                    f"{view.where(start + row)}: task {self.task!r} has {int(expected[row])} tokens "
                    f"but {int(counts[row])} tags; every token needs one tag"
                )
            flat = tags.flatten()
            given = without(flat, NO_TAG)
            codes, unknown = self._lookup(given)
            if unknown.any():
                at = int(unknown.argmax())
                row = int(np.repeat(np.arange(len(tags)), counts)[at])
                raise self._unknown(flat[at].as_py(), view.where(start + row))
            full = np.full(int(expected.sum()), IGNORE, dtype=np.int64)
            full[np.repeat(~missing, expected)] = codes
            values.append(full)
            lengths.append(expected)
            start += len(tags)
        offsets = np.concatenate([[0], np.concatenate(lengths).cumsum()]).astype(np.int64)
        return Ragged(torch.from_numpy(np.concatenate(values)), torch.from_numpy(offsets))


def _numbers(view: View, name: str, task: str) -> Tensor:
    numbers = parse_numbers(
        view,
        name,
        lambda cell: f"task {task!r} needs numbers in the label column {name!r}, not {cell!r}; correct or empty it",
        missing=True,
    )
    return torch.from_numpy(numbers.astype(np.float32))
