"""Tasks with typed data roles, and suites of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import TypeVar

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.tasks.kinds import LOSSES, METRICS, Kind, RowLoss, dtype_of, labelled
from steelyard.tasks.rows import Inputs, Ragged, Rows, same
from steelyard.tasks.units import Units


class Role(StrEnum):
    """What a set of rows may be used for. A set has one role; see `Task` for the exceptions."""

    TRAIN = "train"
    SUPPORT = "support"
    QUERY = "query"
    PROBE = "probe"
    DEV_META = "dev_meta"
    DEV_SELECT = "dev_select"
    TEST = "test"


_Enum = TypeVar("_Enum", bound=StrEnum)

CHECKED = 8_192
"""Rows that are looked at together for numbers that are not finite."""

HeadFactory = Callable[[int, int], torch.nn.Module]
"""``(feature width, number of outputs) -> module``."""


class Task:
    """One thing to learn.

    Args:
        name: Its name, unique in a suite.
        kind: ``classification``, ``multilabel``, ``regression`` or ``tagging``.
        data: Its rows by role. A task may lack any role; it needs ``train`` to be trained.
        classes: The names of its classes, tags or labels, in the order of their indices.
        outputs: The number of outputs of its head; read from ``classes`` or the labels unless given.
        head: ``linear``, ``mlp``, ``token`` or a function from (width, outputs) to a module.
        loss: A row loss (see `steelyard.tasks.RowLoss`); by default the kind's own.
        metric: The name of a metric; by default the kind's own.
        allow: Pairs of roles that may hold the same rows, for example ``[("train", "probe")]``.
        units: For a regression whose labels stand in the rows in standard deviations: metrics and a run's outputs
            are given in these units.

    Raises:
        SteelyardError: If one set of rows stands in two roles that are not allowed by name, a set is empty, a
            feature is not finite, or a label is out of range.
    """

    def __init__(
        self,
        name: str,
        kind: Kind | str,
        data: Mapping[Role, Rows] | Mapping[str, Rows],
        classes: Iterable[str] | None = None,
        outputs: int | None = None,
        head: str | HeadFactory | None = None,
        loss: RowLoss | None = None,
        metric: str | None = None,
        allow: Iterable[tuple[Role | str, Role | str]] = (),
        units: Units | None = None,
    ) -> None:
        self.name = name
        self.kind: Kind = _member(Kind, kind, f"task {name!r}: kind")
        self.rows: dict[Role, Rows] = {_member(Role, r, f"task {name!r}: role"): rows for r, rows in data.items()}
        self.classes = None if classes is None else tuple(classes)
        self.allow = tuple(allow)
        for role, rows in self.rows.items():
            self._check(role, rows)
        refuse_shared_roles([(name, self.rows)], self.allow)
        self.outputs = outputs or self._count_outputs()
        self.head: str | HeadFactory = head or ("token" if self.kind is Kind.TAGGING else "linear")
        self.loss: RowLoss = loss or LOSSES[self.kind]
        self.metric = metric or METRICS[self.kind]
        self.units = units
        self._check_range()

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {str(self.kind)!r}, { ({str(r): len(rows) for r, rows in self.rows.items()}) })"

    def with_rows(self, data: Mapping[Role, Rows]) -> Task:
        """The same task on other rows."""
        about = (self.classes, self.outputs, self.head, self.loss, self.metric, self.allow, self.units)
        return Task(self.name, self.kind, data, *about)

    def in_units(self, values: Tensor) -> Tensor:
        """Labels or outputs of a regression in its own units."""
        return values if self.units is None else self.units.own(values)

    def size(self, role: Role = Role.TRAIN) -> int:
        """How many rows the task has in a role."""
        return len(self.rows[role]) if role in self.rows else 0

    def _check(self, role: Role, rows: Rows) -> None:
        place = f"task {self.name!r}, role {role}"
        if not len(rows):
            raise SteelyardError(f"{place}: there are no rows{_of(rows)}; give at least one, or leave the role out")
        if not isinstance(rows.inputs, Ragged) and rows.inputs.is_floating_point():
            bad = torch.cat([~part.isfinite().flatten(1).all(1) for part in torch.split(rows.inputs, CHECKED)])
            if bad.any():
                raise SteelyardError(
                    f"{place}: {int(bad.sum())} rows have features that are not finite numbers "
                    f"(first: {rows.where(int(bad.nonzero()[0]))}); fill them in or leave the rows out"
                )
        flat = _flat(rows.labels)
        expected = dtype_of(self.kind)
        if flat.is_floating_point() != expected.is_floating_point:
            raise SteelyardError(f"{place}: {self.kind} needs labels of type {expected}, not {flat.dtype}")
        if (self.kind is Kind.TAGGING) != isinstance(rows.labels, Ragged):
            needed = "one tag per token" if self.kind is Kind.TAGGING else "one label per row"
            raise SteelyardError(f"{place}: {self.kind} needs {needed}")
        if not labelled(flat).any():
            raise SteelyardError(f"{place}: no row has a label{_of(rows)}; check the label column")

    def _count_outputs(self) -> int:
        if self.classes is not None:
            return len(self.classes)
        labels = [_flat(rows.labels) for rows in self.rows.values()]
        if not labels:
            raise SteelyardError(f"task {self.name!r} has no data: say how many outputs it has (outputs=…)")
        if self.kind in (Kind.CLASSIFICATION, Kind.TAGGING):
            return int(max(int(part.max()) for part in labels)) + 1
        return int(labels[0].shape[1]) if labels[0].dim() > 1 else 1

    def _check_range(self) -> None:
        if self.units is not None and (self.kind is not Kind.REGRESSION or len(self.units.mean) != self.outputs):
            raise SteelyardError(f"task {self.name!r}: units are for the {self.outputs} outputs of a regression")
        if self.kind not in (Kind.CLASSIFICATION, Kind.TAGGING):
            return
        for role, rows in self.rows.items():
            flat = _flat(rows.labels)
            bad = labelled(flat) & ((flat < 0) | (flat >= self.outputs))
            if bad.any():
                raise SteelyardError(
                    f"task {self.name!r}, role {role}: label {int(flat[bad][0])} is outside the "
                    f"{self.outputs} classes (0 to {self.outputs - 1})"
                )


@dataclass(frozen=True)
class Spec:
    """What the encoder of a suite reads: dense rows of one shape, or token ids.

    Attributes:
        shape: The shape of a row; empty for text.
        vocabulary: The number of token ids (0: not text).
        padding: The token id that fills short texts.
    """

    shape: tuple[int, ...] = ()
    vocabulary: int = 0
    padding: int = 0


class Suite:
    """Tasks that are learned together, one of them possibly the target.

    Args:
        tasks: The tasks, target and sources; names are unique.
        target: The name of the target task, if there is one.
        allow: Pairs of roles that may hold the same inputs in different tasks, for example when a source's
            training rows are the target's probe rows: ``[("train", "probe")]``.
        padding: The token id that fills short texts.
        vocabulary: The number of token ids; read from the data unless given.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        target: str | None = None,
        allow: Iterable[tuple[Role | str, Role | str]] = (),
        padding: int = 0,
        vocabulary: int | None = None,
    ) -> None:
        self.tasks: dict[str, Task] = {}
        for task in tasks:
            if task.name in self.tasks:
                raise SteelyardError(f"two tasks are called {task.name!r}; give each its own name")
            self.tasks[task.name] = task
        if not self.tasks:
            raise SteelyardError("a suite needs at least one task")
        if target is not None and target not in self.tasks:
            raise SteelyardError(f"the target {target!r} is not among the tasks: {', '.join(self.tasks)}")
        self.target = target
        self.allow = tuple(allow)
        allowed = [*self.allow, *(pair for task in self.tasks.values() for pair in task.allow)]
        refuse_shared_roles([(t.name, t.rows) for t in self.tasks.values()], allowed)
        self.spec = self._spec(padding, vocabulary)

    @property
    def sources(self) -> list[str]:
        """The names of all tasks but the target."""
        return [name for name in self.tasks if name != self.target]

    def __getitem__(self, name: str) -> Task:
        return self.tasks[name]

    def __len__(self) -> int:
        return len(self.tasks)

    def sizes(self, role: Role = Role.TRAIN) -> dict[str, int]:
        """Rows per task in a role."""
        return {name: task.size(role) for name, task in self.tasks.items()}

    def with_tasks(self, tasks: Iterable[Task]) -> Suite:
        """The same target, padding and vocabulary for other tasks, or for the same ones on other rows."""
        return Suite(tasks, self.target, self.allow, self.spec.padding, self.spec.vocabulary or None)

    def _spec(self, padding: int, vocabulary: int | None) -> Spec:
        inputs = [rows.inputs for task in self.tasks.values() for rows in task.rows.values()]
        ragged = [i for i in inputs if isinstance(i, Ragged)]
        if ragged:
            largest = max((int(i.values.max()) for i in ragged if len(i.values)), default=0) + 1
            return Spec((), max(vocabulary or 0, largest, padding + 1), padding)
        return Spec(tuple(inputs[0].shape[1:]) if inputs else (), 0, padding)  # type: ignore[union-attr]


def refuse_shared_roles(
    owners: list[tuple[str, Mapping[Role, Rows]]], allow: Iterable[tuple[Role | str, Role | str]]
) -> None:
    """Raises if rows stand in two roles, within a task or between tasks, that no one allowed by name."""
    allowed = {frozenset((Role(a), Role(b))) for a, b in allow}
    placed = [(name, role, rows) for name, roles in owners for role, rows in roles.items()]
    for (name, role, rows), (other, other_role, other_rows) in combinations(placed, 2):
        if role is other_role or frozenset((role, other_role)) in allowed:
            continue
        if _overlap(rows.inputs, other_rows.inputs):
            raise SteelyardError(
                f"the same rows are {role} of task {name!r} and {other_role} of task {other!r}; use separate rows, "
                f"or allow it by name: allow=[({str(role)!r}, {str(other_role)!r})]"
            )


def _overlap(a: Inputs, b: Inputs) -> bool:
    """Whether two inputs are one set: equal content, or views of the same memory that meet."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_contiguous() and b.is_contiguous():
        first, second = a.data_ptr(), b.data_ptr()
        if a.numel() and first < second + b.nbytes and second < first + a.nbytes:
            return True
    return same(a, b)


def _flat(labels: Inputs) -> Tensor:
    return labels.values if isinstance(labels, Ragged) else labels


def _of(rows: Rows) -> str:
    return f" in {rows.origin}" if rows.origin else ""


def _member(enum: type[_Enum], value: str, place: str) -> _Enum:
    try:
        return enum(value)
    except ValueError:
        raise SteelyardError(f"{place} must be one of {', '.join(map(str, enum))}, not {value!r}") from None
