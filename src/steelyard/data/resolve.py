"""From a TOML table to views: which file or suite, which rows in which role, which columns, which labels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data import splits
from steelyard.data.features import Columns
from steelyard.data.labels import Labels
from steelyard.data.paths import place
from steelyard.data.readers import HUB, Dialect, read, splits_of
from steelyard.data.schema import DataTable, DataWarning
from steelyard.data.spaces import read_labels
from steelyard.data.suites import PREFIX, parse
from steelyard.data.suites import tables as suite_tables
from steelyard.data.table import Table, View, listed, strings
from steelyard.errors import SteelyardError
from steelyard.tasks import Role

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROLES = {"train": Role.TRAIN, "dev": Role.DEV_SELECT, "test": Role.TEST}


@dataclass(frozen=True)
class Resolved:
    """One task before its inputs are made.

    Attributes:
        spec: What the user wrote.
        views: Its rows by role.
        columns: Its input columns; empty where all numeric columns are meant.
        labels: Its label columns and space.
        dialect: How its files were read.
        metric: The suite's metric, if it is from a suite.
        scale: What dense inputs are divided by.
        packaged: Whether it is from a suite.
        held_out: Whether dev was held out of train here.
        notes: What was inferred, in sentences.
    """

    spec: DataTable
    views: dict[Role, View]
    columns: Columns
    labels: Labels
    dialect: Dialect
    metric: str | None = None
    scale: float = 1.0
    packaged: bool = False
    held_out: bool = False
    notes: tuple[str, ...] = ()


@dataclass
class Resolver:
    """Reads each file once and splits it once, so that tasks on the same file share rows and roles.

    Attributes:
        base: The folder that relative paths start from.
        seed: Of splits and draws.
        labels: The label columns of all tasks: never inputs, where a table does not say what its inputs are.
    """

    base: Path
    seed: int
    labels: frozenset[str] = frozenset()
    _tables: dict[object, Table] = field(default_factory=dict)
    _whole: dict[tuple[int, str], View] = field(default_factory=dict)
    _splits: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    def resolve(self, spec: DataTable) -> Resolved:
        """Resolves one table of the configuration."""
        if spec.train.startswith(PREFIX):
            return self._from_suite(spec)
        return self._from_files(spec)

    def _from_suite(self, spec: DataTable) -> Resolved:
        reference = parse(spec.train)
        recipe = reference.spec
        parts = dict(suite_tables(reference.suite.name, recipe.tables))
        labels, note = read_labels(
            spec.name,
            parts["train"],
            recipe.labels,
            kind=recipe.kind,
            tokens=recipe.columns.token,
            rare="keep",
            also=[view for split, view in parts.items() if split != "train"],
        )
        views = {ROLES[split]: view for split, view in parts.items()}
        for split in ("dev", "test"):
            given = getattr(spec, split)
            if given is not None and given != spec.train.split("@")[0]:
                raise SteelyardError(f"task {spec.name!r}: {split} comes from the suite itself; leave {split} = out")
        if Role.DEV_SELECT not in views:
            self._hold_out(views, labels, recipe.columns, spec)
        if reference.rows is not None:
            views[Role.TRAIN] = self._drawn(views[Role.TRAIN], labels, recipe.columns.token, reference.rows, spec)
        return Resolved(
            spec,
            views,
            recipe.columns,
            labels,
            Dialect(columns=None),
            recipe.metric,
            recipe.scale,
            packaged=True,
            notes=(f"{spec.name}: {note}",),
        )

    def _drawn(self, view: View, labels: Labels, token: str | None, rows: int, spec: DataTable) -> View:
        groups = splits.strata(labels.encode(view, token), labels.kind)
        if rows > len(view):
            raise SteelyardError(f"{spec.train}: task {spec.name!r} asks for {rows} rows, but train has {len(view)}")
        return self._one(view.subset(splits.draw(groups, rows, self.seed, view.table.digest)))

    def _from_files(self, spec: DataTable) -> Resolved:
        if not spec.labels:
            raise SteelyardError(f"task {spec.name!r}: say which column of {spec.train} holds the labels (label = ...)")
        dialect = Dialect(spec.format, spec.delimiter, spec.quote, tuple(spec.columns) if spec.columns else None)
        views = {Role.TRAIN: self._view(spec.train, dialect)}
        brought = splits_of(spec.train, self.base)
        for split in ("dev", "test"):
            reference = getattr(spec, split)
            if reference is not None:
                views[ROLES[split]] = self._view(reference, dialect)
            elif split in brought:
                views[ROLES[split]] = self._view(spec.train, dialect, split)
        return self.complete(spec, views, dialect)

    def complete(self, spec: DataTable, views: dict[Role, View], dialect: Dialect) -> Resolved:
        """Columns, labels and a dev split for rows that were read."""
        for view in views.values():
            view.table.require([*spec.labels, *_named(spec), *([spec.group] if spec.group else [])], spec.name)
        _refuse_label_as_input(spec)
        columns = input_columns(spec, views[Role.TRAIN].table)
        labels, note = read_labels(
            spec.name,
            views[Role.TRAIN],
            tuple(spec.labels),
            kind=spec.kind,
            tokens=columns.token,
            classes=tuple(spec.classes) if spec.classes else None,
            rare=spec.rare,
        )
        notes = [f"{spec.name}: {note}"]
        if labels.dropped:
            notes.append(f"{spec.name}: without the labels of classes that occur once: {listed(labels.dropped)}")
        held_out = Role.DEV_SELECT not in views
        if held_out:
            self._hold_out(views, labels, columns, spec)
            if Role.DEV_SELECT in views:
                notes.append(f"{spec.name}: dev is {len(views[Role.DEV_SELECT])} rows held out from {spec.train}")
            elif spec.dev_fraction:
                notes.append(f"{spec.name}: no dev, since none of {spec.train} can be held out without losing a class")
        _warn_leaking_groups(spec, views)
        return Resolved(spec, views, columns, labels, dialect, held_out=held_out, notes=tuple(notes))

    def _view(self, reference: str, dialect: Dialect, split: str = "train") -> View:
        if reference.startswith(PREFIX):
            raise SteelyardError(f"{reference}: a suite is named in train = only; its dev and test come with it")
        where = reference if reference.startswith(HUB) else str(place(reference, self.base).resolve())
        key = (where, dialect, split)
        if key not in self._tables:
            self._tables[key] = read(reference, self.base, dialect, split)
        return self._one(View(self._tables[key]))

    def _one(self, view: View) -> View:
        """One object for views with the same content."""
        return self._whole.setdefault((id(view.table), view.digest), view)

    def _hold_out(self, views: dict[Role, View], labels: Labels, columns: Columns, spec: DataTable) -> None:
        """Moves rows from train to dev. The first task on a file decides for all tasks on it."""
        train = views[Role.TRAIN]
        if train.digest not in self._splits:
            self._splits[train.digest] = self._split(train, labels, columns, spec)
        kept, held = self._splits[train.digest]
        if len(held):
            views[Role.TRAIN] = self._one(train.subset(kept))
            views[Role.DEV_SELECT] = self._one(train.subset(held))

    def _split(
        self, train: View, labels: Labels, columns: Columns, spec: DataTable
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        groups = splits.strata(labels.encode(train, columns.token), labels.kind)
        documents, twins = None, None
        if spec.group:
            documents = np.array([str(v) for v in strings(train.column(spec.group)).to_pylist()])
        elif spec.dev_fraction and not columns.dense:
            outputs = self.labels.union(spec.labels)
            twins = train.twins(
                columns.names or [n for n in train.table.names if n not in outputs and train.table.is_plain(n)]
            )
        return splits.hold_out(groups, spec.dev_fraction, self.seed, train.digest, documents, twins)


def _refuse_label_as_input(spec: DataTable) -> None:
    both = [name for name in spec.labels if name in (*(spec.text or []), spec.token, spec.image)]
    if both:
        raise SteelyardError(
            f"task {spec.name!r} names {listed(both)} as label and as input; nothing could be learned from that: "
            "correct one of them"
        )


def _named(spec: DataTable) -> list[str]:
    """The input columns that the user named."""
    one = [name for name in (spec.token, spec.image) if name]
    return [*(spec.text or []), *(spec.features or []), *one]


def input_columns(spec: DataTable, table: Table) -> Columns:
    """Which columns are a task's inputs: as named, or by the format."""
    given = [n for n in ("text", "features", "image", "token") if getattr(spec, n)]
    if len(given) > 1:
        raise SteelyardError(
            f"{table.origin}: task {spec.name!r} names its inputs twice ({' and '.join(given)}); keep one of them"
        )
    if given:
        lists = bool(spec.text) and all(table.is_list(c) for c in [*(spec.text or []), *spec.labels])
        if lists and spec.text and len(spec.text) == 1:
            return Columns(token=spec.text[0])
        return Columns(tuple(spec.text or ()), spec.token, tuple(spec.features or ()), spec.image)
    if table.arrow.num_columns and all(table.is_list(name) for name in table.arrow.column_names):
        return Columns(token="form" if "form" in table.names else table.names[0])
    if len(table.tensors) == 1:
        return Columns(dense=next(iter(table.tensors)))
    if table.names == ["image", "label"]:
        return Columns(image="image")
    return Columns()


def with_columns(task: Resolved, columns: Columns) -> Resolved:
    """The same task with its input columns settled."""
    for view in task.views.values():
        view.table.require(columns.names, task.spec.name)
    return replace(task, columns=columns)


def _warn_leaking_groups(spec: DataTable, views: dict[Role, View]) -> None:
    if not spec.group:
        return
    import pyarrow.compute as pc

    train = strings(views[Role.TRAIN].column(spec.group)).unique().drop_null()
    for role, view in views.items():
        if role is Role.TRAIN:
            continue
        both = pc.sum(pc.is_in(strings(view.column(spec.group)).unique().drop_null(), value_set=train)).as_py() or 0
        if both:
            warnings.warn(
                f"{view.table.origin}: task {spec.name!r}: {both} values of {spec.group!r} "
                f"are in train and in {role}; the figures will flatter",
                DataWarning,
                stacklevel=2,
            )
