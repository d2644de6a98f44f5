"""Labels: what kind of task a label column is, its label space, and labels as tensors."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from steelyard.data.schema import DataWarning
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
        """``1.0`` becomes ``1`` where labels are whole numbers."""
        import pyarrow.compute as pc

        if not self.whole:
            return values
        return pc.replace_substring_regex(pc.utf8_trim_whitespace(values), r"\.0+$", "")

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
            counts = _list_lengths(cells)
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
            tags = _lists(batch.column(0))
            counts = _list_lengths(tags)
            expected = _list_lengths(_lists(batch.column(1))) if tokens else counts
            missing = ~tags.is_valid().to_numpy(zero_copy_only=False)
            wrong = (counts != expected) & ~missing
            if wrong.any():
                row = int(wrong.argmax())
                raise SteelyardError(
                    f"{view.where(start + row)}: task {self.task!r} has {int(expected[row])} tokens "
                    f"but {int(counts[row])} tags; every token needs one tag"
                )
            flat = tags.flatten()
            given = _without(flat, NO_TAG)
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


def read_labels(
    task: str,
    view: View,
    columns: tuple[str, ...],
    *,
    kind: Kind | None = None,
    tokens: str | None = None,
    classes: tuple[str, ...] | None = None,
    rare: str = "error",
    also: Sequence[View] = (),
) -> tuple[Labels, str]:
    """The label space of the training rows, and a sentence on what was inferred.

    Args:
        task: The task's name.
        view: The training rows.
        columns: The label columns.
        kind: What is predicted, if that is given.
        tokens: The column of tokens, for tagging.
        classes: The label space, if that is given.
        rare: What to do with a class that occurs once: ``error``, ``drop`` or ``keep``.
        also: Further rows whose labels count; packaged suites have one label space for all splits.

    Raises:
        SteelyardError: If there are no labels, the columns do not fit together, or a class occurs once.
    """
    chosen, why = (kind, "as given") if kind else _infer(task, view, columns, tokens)
    if chosen is Kind.REGRESSION or (chosen is Kind.MULTILABEL and len(columns) > 1):
        names = columns if chosen is Kind.MULTILABEL else None
        return Labels(task, chosen, columns, names), f"{chosen}, {why}"
    values = _joined([_values(chosen, part.column(columns[0])) for part in (view, *also)])
    whole = chosen is Kind.CLASSIFICATION and _all_match(values, WHOLE)
    counts = _counted(Labels(task, chosen, columns, (), whole).canonical(values))
    if not counts:
        raise SteelyardError(f"{view.table.origin}: task {task!r} has no labels in {columns[0]!r}; check the column")
    rare_ones = tuple(c for c, n in counts.items() if n == 1) if chosen is Kind.CLASSIFICATION else ()
    dropped: tuple[str, ...] = ()
    if rare_ones and rare != "keep" and classes is None:
        if rare == "error":
            raise SteelyardError(
                f"{view.table.origin}: task {task!r} has {len(rare_ones)} classes that occur once in train "
                f"({listed(rare_ones, 5)}); add rows, or say rare = 'drop' or rare = 'keep'"
            )
        dropped = rare_ones
    space = classes or tuple(sorted((c for c in counts if c not in dropped), key=_order(counts)))
    if len(space) < 2 and chosen is Kind.CLASSIFICATION:
        raise SteelyardError(
            f"{view.table.origin}: task {task!r} has only one class in train ({listed(space)}); "
            "there is nothing to learn: check the label column"
        )
    _warn_alike(task, space, view.table.origin)
    return Labels(task, chosen, columns, space, whole, dropped), f"{chosen} with {len(space)} classes, {why}"


def _joined(parts: list[Any]) -> Any:
    import pyarrow as pa

    return pa.chunked_array(parts, pa.string()).combine_chunks()


def _values(kind: Kind, column: Any) -> Any:
    if kind is Kind.TAGGING:
        return _without(_lists(column).flatten(), NO_TAG)
    return label_sets(column).flatten() if kind is Kind.MULTILABEL else strings(column)


def _infer(task: str, view: View, columns: tuple[str, ...], tokens: str | None) -> tuple[Kind, str]:
    if tokens:
        return Kind.TAGGING, "a tag for every token"
    if view.table.is_list(columns[0]):
        return Kind.MULTILABEL, f"since {columns[0]!r} holds lists"
    if len(columns) > 1:
        return _infer_several(task, view, columns)
    return _infer_single(columns[0], strings(view.column(columns[0])))


def _infer_single(column: str, values: Any) -> tuple[Kind, str]:
    if _any_match(values, r"\|"):
        return Kind.MULTILABEL, f"since {column!r} holds labels joined by {JOINT!r}"
    if not _all_match(values, NUMBER):
        return Kind.CLASSIFICATION, f"since {column!r} holds names"
    distinct = len(values.unique().drop_null())
    if _all_match(values, WHOLE) and distinct <= FEW:
        return Kind.CLASSIFICATION, f"since {column!r} holds {distinct} different whole numbers"
    return Kind.REGRESSION, f"since {column!r} holds numbers"


FEW = 20
"""Up to so many different whole numbers are classes; more are quantities."""

NUMBER = r"(?i)^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$"


WHOLE = r"^\s*[+-]?\d+(\.0+)?\s*$"


def _infer_several(task: str, view: View, columns: tuple[str, ...]) -> tuple[Kind, str]:
    binary = True
    for name in columns:
        values = strings(view.column(name))
        binary = binary and _all_match(values, r"(?i)^\s*([01](\.0+)?|true|false|yes|no)\s*$")
        if not binary and not _all_match(values, NUMBER):
            raise SteelyardError(
                f"{view.table.origin}: task {task!r} has several label columns, but {name!r} holds neither 0 and 1 "
                "nor numbers; give one [[source]] per label column instead"
            )
    if binary:
        return Kind.MULTILABEL, f"since {len(columns)} columns hold 0 and 1"
    return Kind.REGRESSION, f"since {len(columns)} columns hold numbers"


def label_sets(column: Any) -> Any:
    """Cells that hold several labels as lists of strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return array.cast(pa.list_(pa.string()))
    return pc.split_pattern_regex(pc.utf8_trim_whitespace(strings(array)), r"\s*\|\s*")


def _numbers(view: View, name: str, task: str) -> Tensor:
    numbers = parse_numbers(
        view,
        name,
        lambda cell: f"task {task!r} needs numbers in the label column {name!r}, not {cell!r}; correct or empty it",
        missing=True,
    )
    return torch.from_numpy(numbers.astype(np.float32))


def parse_numbers(
    view: View, name: str, complaint: Callable[[str], str], *, missing: bool = False
) -> NDArray[np.float64]:
    """A column as numbers; missing cells are NaN where that is allowed, else (and for text and inf) an error."""
    parts, start = [], 0
    for batch in view.batches([name]):
        column = batch.column(0).combine_chunks()
        values, absent = _parsed(column)
        bad = ~np.isfinite(values) & ~(absent & missing)
        if bad.any():
            row = int(bad.argmax())
            cell = column[row].as_py()
            raise SteelyardError(f"{view.where(start + row)}: {complaint('' if cell is None else str(cell))}")
        parts.append(values)
        start += len(values)
    return np.concatenate(parts)


def _parsed(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers of an Arrow array (NaN for text that is none), and where it is empty or NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers = pc.fill_null(column.cast(pa.float64(), safe=False), float("nan"))
        absent = pc.is_nan(numbers)
    else:
        text = pc.utf8_trim_whitespace(strings(column))
        good = pc.match_substring_regex(text, NUMBER)
        numbers = pc.fill_null(pc.if_else(good, text, None).cast(pa.float64()), float("nan"))
        absent = pc.equal(pc.fill_null(pc.utf8_lower(text), "nan"), "nan")
    return numbers.to_numpy(zero_copy_only=False), absent.to_numpy(zero_copy_only=False)


def _lists(column: Any) -> Any:
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.cast(pa.list_(pa.string()))


def _list_lengths(array: Any) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(array), 0)
    counted: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return counted


def _without(values: Any, unwanted: tuple[str, ...]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.is_in(values, value_set=pa.array(unwanted)), pa.scalar(None, pa.string()), values)


def _all_match(values: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _any_match(values: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def _counted(values: Any) -> dict[str, int]:
    import pyarrow.compute as pc

    pairs = pc.value_counts(values.drop_null()).to_pylist()
    return {pair["values"]: pair["counts"] for pair in pairs}


def _order(counts: dict[str, int]) -> Callable[[str], tuple[float, str]]:
    """Numbers by size, names by the alphabet."""
    try:
        numbers = {name: float(name) for name in counts}
    except ValueError:
        return lambda name: (0.0, name)
    return lambda name: (numbers[name], name)


def _warn_alike(task: str, classes: tuple[str, ...], origin: str) -> None:
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[" ".join(name.casefold().split())].append(name)
    for group in alike.values():
        if len(group) > 1:
            warnings.warn(
                f"{origin}: task {task!r} has labels that differ only by case or space: "
                f"{', '.join(map(repr, group))}; they count as different classes",
                DataWarning,
                stacklevel=2,
            )
