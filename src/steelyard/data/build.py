"""From the tables of a configuration to tasks, the recipe to predict with, and a summary of what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from steelyard.data.duplicates import find_duplicates
from steelyard.data.features import (
    Columns,
    Dense,
    Featuriser,
    Images,
    Numbers,
    Pieces,
    Subwords,
    Words,
    cached,
)
from steelyard.data.features.numbers import is_numeric
from steelyard.data.features.subwords import resolved
from steelyard.data.features.words import UNKNOWN
from steelyard.data.recipe import Recipe, TaskRecipe
from steelyard.data.resolve import Resolved, Resolver, with_columns
from steelyard.data.schema import FeatureOptions, SourceData, TargetData
from steelyard.data.summary import Summary, entry
from steelyard.data.table import Table, View, listed
from steelyard.data.vectors import words_of
from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Inputs, Kind, Ragged, Role, Rows, Suite, Task, Units


@dataclass(frozen=True)
class Prepared:
    """Data that is ready to train on.

    Attributes:
        suite: The tasks with their rows, the target named.
        recipe: How new rows become inputs, and outputs labels.
        summary: What was read.
        tables: The table that each task's training rows stand in, as it was read.
    """

    suite: Suite
    recipe: Recipe
    summary: Summary
    tables: Mapping[str, Table] = field(default_factory=dict)


def build(
    target: TargetData,
    sources: Sequence[SourceData] = (),
    *,
    base: Path | str = Path(),
    seed: int = 0,
    features: FeatureOptions | None = None,
    cache: Path | None = None,
) -> Prepared:
    """Reads the target's and the sources' data.

    Vocabularies, categories and scales are fitted on the training rows of all tasks, label spaces on each
    task's own. Tasks that name the same file share its rows: their inputs are one object.

    Args:
        target: The target's table.
        sources: The sources' tables.
        base: The folder that relative paths start from.
        seed: Of splits and draws.
        features: How text and images become features.
        cache: Where features are kept; by default the user's cache.

    Raises:
        SteelyardError: In one line, with the file, the task and the row, if something is wrong with the data.
    """
    options = features or FeatureOptions()
    base = Path(base)
    _refuse_twins([target, *sources])
    specs = (target, *sources)
    resolver = Resolver(base, seed, frozenset(label for spec in specs for label in spec.labels))
    return assemble([resolver.resolve(spec) for spec in specs], options, base, cache)


def assemble(tasks: list[Resolved], options: FeatureOptions, base: Path, cache: Path | None = None) -> Prepared:
    """Makes inputs and labels of resolved tasks, the target first."""
    tasks = _settled(tasks)
    featuriser = _fitted(tasks, options, base, cache)
    summary = Summary(notes=[note for task in tasks for note in task.notes])
    maker = _Maker(featuriser, cache)
    learned = [maker.task(task, summary) for task in tasks]
    if isinstance(featuriser, Numbers):
        summary.notes.append(f"features: {listed([*featuriser.numeric, *featuriser.categories], 20)}")
    find_duplicates(tasks, summary)
    padding, vocabulary = _token_space(featuriser)
    suite = Suite(learned, target=tasks[0].spec.name, padding=padding, vocabulary=vocabulary)
    recipes = {t.spec.name: TaskRecipe(t.columns, t.labels, t.dialect) for t in tasks}
    tables = {t.spec.name: t.views[Role.TRAIN].table for t in tasks}
    return Prepared(suite, Recipe(featuriser, recipes), summary, tables)


def _refuse_twins(specs: Sequence[TargetData | SourceData]) -> None:
    names = [spec.name for spec in specs]
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise SteelyardError(f"two tasks are called {twins[0]!r}; give each its own name")


def _settled(tasks: list[Resolved]) -> list[Resolved]:
    """Settles the input columns, and refuses tasks that no single encoder can read."""
    kinds = {t.spec.name: _input_kind(t.columns) for t in tasks}
    first, *others = kinds.items()
    for name, kind in others:
        if kind != first[1]:
            raise SteelyardError(
                f"task {first[0]!r} reads {first[1]}, but task {name!r} reads {kind}; "
                "one encoder cannot read both: name the inputs of each (text, features, image or token)"
            )
    return _with_numbers(tasks) if first[1] == "numbers" else tasks


def _input_kind(columns: Columns) -> str:
    if columns.text or columns.token:
        return "text"
    if columns.image:
        return "images"
    return "dense arrays" if columns.dense else "numbers"


def _with_numbers(tasks: list[Resolved]) -> list[Resolved]:
    """The columns of tables: those that were named, else every column of the files that is numeric."""
    named = list(dict.fromkeys(c for t in tasks for c in t.columns.numbers))
    labels: dict[str, set[str]] = {}
    for task in tasks:
        keep_out = labels.setdefault(task.views[Role.TRAIN].table.digest, set())
        keep_out.update(task.labels.columns, [task.spec.group] if task.spec.group else [])
    chosen = named or _all_numeric(tasks, labels)
    for task in tasks:
        taken = labels[task.views[Role.TRAIN].table.digest] & set(chosen) & set(task.labels.columns)
        if taken:
            raise SteelyardError(
                f"{task.views[Role.TRAIN].table.origin}: task {task.spec.name!r} has {listed(sorted(taken))} "
                "as label and as feature; leave it out of features"
            )
    return [with_columns(task, Columns(numbers=tuple(chosen))) for task in tasks]


def _all_numeric(tasks: list[Resolved], labels: dict[str, set[str]]) -> list[str]:
    common: list[str] | None = None
    for task in tasks:
        view = task.views[Role.TRAIN]
        columns = [c for c in view.table.names if c not in labels[view.table.digest]]
        words = [c for c in columns if c not in task.spec.categorical and not is_numeric(view, c)]
        if words or not columns:
            what = f"{listed(words, 6)} hold no numbers" if words else "there are no columns besides the labels"
            raise SteelyardError(
                f"{view.table.origin}: task {task.spec.name!r} does not say what its inputs are, and {what}; "
                "give text = ..., features = [...] or image = ..."
            )
        common = columns if common is None else [c for c in common if c in columns]
    if not common:
        raise SteelyardError("the tasks' files have no feature column in common; name the same columns in each")
    return common


def _fitted(tasks: list[Resolved], options: FeatureOptions, base: Path, cache: Path | None) -> Featuriser:
    """The featuriser, fitted on the training rows of all tasks."""
    train = [(t.views[Role.TRAIN], t.columns) for t in tasks]
    kind = _input_kind(tasks[0].columns)
    if kind == "text":
        if options.tokenizer:
            return Subwords(resolved(options.tokenizer, base), options.max_length)
        return Words.fit(train, options, words_of(options.vectors, base), cache)
    if kind == "numbers":
        categorical = [c for t in tasks for c in t.spec.categorical]
        return Numbers.fit([view for view, _ in train], tasks[0].columns.numbers, categorical)
    if kind == "images":
        view, columns = train[0]
        return Images.fit(view, columns.names[0], options, base.resolve())
    return _dense(tasks)


def _dense(tasks: list[Resolved]) -> Dense:
    found = {}
    for task in tasks:
        shape = tuple(task.views[Role.TRAIN].table.tensors[task.columns.names[0]].shape[1:])
        found[task.spec.name] = Dense(shape, task.scale)
    first, *others = found.items()
    for name, dense in others:
        if dense != first[1]:
            raise SteelyardError(
                f"task {first[0]!r} has rows of shape {list(first[1].shape)}, task {name!r} of {list(dense.shape)}; "
                "one encoder cannot read both"
            )
    return first[1]


def _token_space(featuriser: Featuriser) -> tuple[int, int | None]:
    if isinstance(featuriser, Words):
        return 0, len(featuriser.vocabulary)
    if isinstance(featuriser, Subwords):
        return featuriser.padding, featuriser.size
    return 0, None


@dataclass
class _Maker:
    """Makes tasks; rows that several tasks share are encoded once."""

    featuriser: Featuriser
    cache: Path | None
    _inputs: dict[tuple[str, Columns], Inputs] = field(default_factory=dict)

    def task(self, task: Resolved, summary: Summary) -> Task:
        rows = {role: self._rows(task, view) for role, view in task.views.items()}
        words = isinstance(self.featuriser, Words)
        limit = getattr(self.featuriser, "max_length", None)
        if words and task.columns.token:
            limit = None
        for role, part in rows.items():
            summary.entries.append(entry(task.spec.name, role, part, task.labels, UNKNOWN if words else None, limit))
        # A packaged suite says itself in what units its labels are.
        units = None if task.packaged or task.labels.kind is not Kind.REGRESSION else _units(rows[Role.TRAIN])
        return Task(
            task.spec.name,
            task.labels.kind,
            {role: _standard(part, units) for role, part in rows.items()} if units else rows,
            task.labels.classes,
            outputs=len(task.labels.columns) if task.labels.kind is Kind.REGRESSION else None,
            head=task.spec.head,
            metric=task.spec.metric or task.metric,
            units=units,
        )

    def _rows(self, task: Resolved, view: View) -> Rows:
        key = (view.digest, task.columns)
        if key not in self._inputs:
            self._inputs[key] = cached(self.featuriser, view, task.columns, self.cache)
        inputs = self._inputs[key]
        if isinstance(inputs, Ragged) and not len(inputs.values):
            raise SteelyardError(
                f"{view.table.origin}: task {task.spec.name!r} finds no text in {listed(task.columns.names)}; "
                "check the column"
            )
        labels = task.labels.encode(view, task.columns.token)
        if isinstance(labels, Ragged) and isinstance(inputs, Pieces):
            labels = on_pieces(labels, inputs)
        return Rows(inputs, labels, view.table.origin, torch.from_numpy(view.rows))


def _units(train: Rows) -> Units | None:
    return Units.of(train.labels) if isinstance(train.labels, torch.Tensor) else None


def _standard(rows: Rows, units: Units) -> Rows:
    labels = units.standard(rows.labels) if isinstance(rows.labels, torch.Tensor) else rows.labels
    return Rows(rows.inputs, labels, rows.origin, rows.lines)


def on_pieces(tags: Ragged, pieces: Pieces) -> Ragged:
    """The tags of tokens on the first piece of each token; the other pieces have none."""
    owner = torch.repeat_interleave(torch.arange(len(pieces)), pieces.lengths)
    begins = pieces.word >= 0
    values = torch.full_like(pieces.values, IGNORE)
    values[begins] = tags.values[tags.offsets[owner[begins]] + pieces.word[begins]]
    return Ragged(values, pieces.offsets)
