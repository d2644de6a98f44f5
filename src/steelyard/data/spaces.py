"""Label spaces: what kind of task a label column is, and which labels it knows, read from train."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from steelyard.data.cells import NOT_A_NUMBER, NUMBER, label_sets, lists, without
from steelyard.data.labels import JOINT, NO_TAG, Labels
from steelyard.data.schema import DataWarning
from steelyard.data.table import View, listed, strings
from steelyard.errors import SteelyardError
from steelyard.tasks import Kind


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
    whole = chosen is Kind.CLASSIFICATION and _all_match(_numbers_or_names(values), WHOLE)
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
        return without(lists(column).flatten(), NO_TAG)
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
    values = _numbers_or_names(values)
    if _any_match(values, r"\|"):
        return Kind.MULTILABEL, f"since {column!r} holds labels joined by {JOINT!r}"
    if not _all_match(values, NUMBER):
        return Kind.CLASSIFICATION, f"since {column!r} holds names"
    distinct = len(values.unique().drop_null())
    if _all_match(values, WHOLE) and distinct <= FEW:
        return Kind.CLASSIFICATION, f"since {column!r} holds {distinct} different whole numbers"
    return Kind.REGRESSION, f"since {column!r} holds numbers"


def _numbers_or_names(values: Any) -> Any:
    """Without ``nan`` if everything else is a number: there it says that the label is not known."""
    import pyarrow.compute as pc

    others = values.filter(pc.invert(pc.match_substring_regex(values, NOT_A_NUMBER)))
    return others if len(others) and _all_match(others, NUMBER) else values


FEW = 20
"""Up to so many different whole numbers are classes; more are quantities."""


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
