"""Rows that stand in train and in dev or test: counted, kept in the summary, and warned of."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steelyard.data.resolve import Resolved
from steelyard.data.schema import DataWarning
from steelyard.data.table import View, texts
from steelyard.tasks import Role

if TYPE_CHECKING:
    from steelyard.data.features import Columns
    from steelyard.data.summary import Summary


def find_duplicates(tasks: Sequence[Resolved], summary: Summary) -> None:
    """Compares each task's held-out rows with its own training rows, and the target's with every source's.

    Rows are the same if their raw inputs are. Arrays (images) are not compared.
    """
    target = tasks[0]
    for task in tasks:
        for role in (Role.DEV_SELECT, Role.TEST):
            if role not in task.views:
                continue
            owners = tasks if task is target else [task]
            for owner in owners:
                count = _common(owner.views[Role.TRAIN], owner.columns, task.views[role], task.columns)
                if count:
                    where = "train" if owner is task else f"train of {owner.spec.name}"
                    summary.duplicates.setdefault(task.spec.name, {})[f"{role} in {where}"] = count
                    _warn(task, owner, role, count)


def _warn(task: Resolved, owner: Resolved, role: Role, count: int) -> None:
    if task.packaged and owner.packaged:
        return
    warnings.warn(
        f"task {task.spec.name!r}: {count} of {len(task.views[role])} rows in {role} "
        f"({task.views[role].table.origin}) are also in train of {owner.spec.name!r} "
        f"({owner.views[Role.TRAIN].table.origin}); the figures will flatter: remove them from one side",
        DataWarning,
        stacklevel=2,
    )


def _common(train: View, train_columns: Columns, held: View, held_columns: Columns) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    if train_columns.dense or held_columns.dense or not len(held):
        return 0
    keys = pa.chunked_array([_keys(b, held_columns) for b in held.batches(held_columns.names)], pa.string())
    keys = keys.combine_chunks()
    wanted = keys.unique().drop_null()
    found = [_found(_keys(b, train_columns), wanted) for b in train.batches(train_columns.names)]
    both = pa.chunked_array(found, pa.string()).combine_chunks().unique()
    return int(pc.sum(pc.is_in(keys.drop_null(), value_set=both)).as_py() or 0)


def _found(keys: Any, wanted: Any) -> Any:
    import pyarrow.compute as pc

    return keys.filter(pc.is_in(keys, value_set=wanted))


def _keys(batch: Any, columns: Columns) -> Any:
    """Each row's raw inputs as one string; rows without any are nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = texts(batch, columns.names)
    return pc.if_else(pc.equal(pc.utf8_trim_whitespace(text), ""), pa.scalar(None, pa.string()), text)
