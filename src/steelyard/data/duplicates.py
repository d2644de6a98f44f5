"""Rows that stand in train and in dev or test: counted, kept in the summary, and warned of."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steelyard.data.resolve import Resolved
from steelyard.data.schema import DataWarning
from steelyard.data.table import View, keys
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
    held, train = task.views[role].table.origin, owner.views[Role.TRAIN].table.origin
    advice = f"remove them from {held} or from {train}"
    if role is Role.DEV_SELECT and task.held_out:
        advice = f"dev was held out of {held}, so remove them from {train}, or name a dev file"
        if owner is task:
            advice = f"dev was held out of {held}, where rows repeat; remove the repeats, or name a dev file"
    warnings.warn(
        f"task {task.spec.name!r}: {count} of {len(task.views[role])} rows in {role} ({held}) are also in train "
        f"of {owner.spec.name!r} ({train}); the figures will flatter: {advice}",
        DataWarning,
        stacklevel=2,
    )


def _common(train: View, train_columns: Columns, held: View, held_columns: Columns) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    if train_columns.dense or held_columns.dense or not len(held):
        return 0
    rows = pa.chunked_array([keys(b, held_columns.names) for b in held.batches(held_columns.names)], pa.string())
    wanted = rows.unique().drop_null()
    found = [_found(keys(b, train_columns.names), wanted) for b in train.batches(train_columns.names)]
    both = pa.chunked_array(found, pa.string()).unique()
    return int(pc.sum(pc.is_in(rows.drop_null(), value_set=both)).as_py() or 0)


def _found(rows: Any, wanted: Any) -> Any:
    import pyarrow.compute as pc

    return rows.filter(pc.is_in(rows, value_set=wanted))
