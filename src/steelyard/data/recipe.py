"""The recipe of a run's data: new rows become inputs, and outputs become labels, exactly as in training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steelyard.data.features import Columns, Featuriser, Pieces, Words, cached, from_json
from steelyard.data.labels import JOINT, Labels
from steelyard.data.readers import Dialect, read
from steelyard.data.table import Table, View, listed
from steelyard.errors import SteelyardError, as_written
from steelyard.tasks import Inputs, Kind, Ragged

FORMAT = 1


@dataclass(frozen=True)
class TaskRecipe:
    """One task's columns and labels."""

    columns: Columns
    labels: Labels
    dialect: Dialect


@dataclass(frozen=True)
class Recipe:
    """Everything that is needed to predict.

    Attributes:
        featuriser: How inputs are made, fitted on train.
        tasks: The columns and the label space of each task.
    """

    featuriser: Featuriser
    tasks: dict[str, TaskRecipe]

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The words by id, if text is read by words: to look up pretrained vectors."""
        return self.featuriser.vocabulary if isinstance(self.featuriser, Words) else None

    def read(self, path: str | Path, task: str) -> Table:
        """Reads a file as the task's files were read; it may lack the label column."""
        path = Path(path)
        return read(str(path), Path(), self._task(task).dialect)

    def encode(self, data: Table | str | Path, task: str) -> Inputs:
        """The inputs of new rows.

        Args:
            data: A file, or a table that `read` returned. No label is needed.
            task: Whose columns to read.

        Raises:
            SteelyardError: If a column is missing or a feature is not a number.
        """
        recipe = self._task(task)
        table = data if isinstance(data, Table) else self.read(data, task)
        if not recipe.columns.dense:
            table.require(recipe.columns.names, task)
        return cached(self.featuriser, View(table), recipe.columns)

    def decode(
        self, task: str, outputs: Tensor | Sequence[Tensor], inputs: Inputs | None = None
    ) -> dict[str, list[Any]]:
        """Columns of predictions.

        Args:
            task: Whose outputs these are.
            outputs: Logits ``[N, C]`` or predictions ``[N, K]``; for tagging ``[N, L, C]``, or ``[L, C]``
                per row.
            inputs: For tagging, what `encode` returned: it knows each row's length and where tokens begin.

        Returns:
            ``predicted_LABEL`` and ``probability`` for classes; ``predicted_LABEL`` (labels joined by ``|``)
            and ``probability_CLASS`` for several labels; a list of tags; numbers.
        """
        labels = self._task(task).labels
        name = f"predicted_{labels.columns[0]}"
        if labels.kind is Kind.TAGGING:
            return {name: _tags(labels, outputs, inputs)}
        values = (outputs if isinstance(outputs, Tensor) else torch.stack(list(outputs))).detach().float().cpu()
        classes = labels.classes or ()
        if labels.kind is Kind.CLASSIFICATION:
            probability, chosen = values.softmax(1).max(1)
            return {name: [classes[i] for i in chosen.tolist()], "probability": probability.tolist()}
        if labels.kind is Kind.REGRESSION:
            columns = values.reshape(len(values), len(labels.columns)).T
            return {f"predicted_{c}": v.tolist() for c, v in zip(labels.columns, columns, strict=True)}
        probabilities = values.sigmoid()
        joined = [JOINT.join(c for c, p in zip(classes, row, strict=True) if p > 0.5) for row in probabilities.tolist()]
        head = {f"predicted_{task}" if len(labels.columns) > 1 else name: joined}
        return head | {f"probability_{c}": p.tolist() for c, p in zip(classes, probabilities.T, strict=True)}

    def save(self, path: Path) -> None:
        """Writes JSON."""
        path.write_text(self.to_json(), encoding="utf-8")

    def to_json(self) -> str:
        """As JSON text."""
        tasks = {
            name: {
                "columns": asdict(task.columns),
                "labels": task.labels.to_json(),
                "dialect": asdict(task.dialect),
            }
            for name, task in self.tasks.items()
        }
        content = {"format": FORMAT, "featuriser": self.featuriser.to_json(), "tasks": tasks}
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Reads what `save` wrote."""
        with as_written(path):
            return cls._from_json(path, json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def _from_json(cls, path: Path, content: Mapping[str, Any]) -> Recipe:
        if content.get("format") != FORMAT:
            raise SteelyardError(f"{path.name}: written by another version of Steelyard; train again")
        tasks = {
            name: TaskRecipe(
                Columns.from_json(task["columns"]),
                Labels.from_json(task["labels"]),
                _dialect(task["dialect"]),
            )
            for name, task in content["tasks"].items()
        }
        return cls(from_json(content["featuriser"]), tasks)

    def _task(self, name: str) -> TaskRecipe:
        if name not in self.tasks:
            raise SteelyardError(f"this run has no task {name!r}, only {listed(list(self.tasks))}")
        return self.tasks[name]


def _dialect(settings: dict[str, Any]) -> Dialect:
    columns = settings["columns"]
    return Dialect(**{**settings, "columns": None if columns is None else tuple(columns)})


def _tags(labels: Labels, outputs: Tensor | Sequence[Tensor], inputs: Inputs | None) -> list[list[str]]:
    """A tag per token; tokens beyond the length limit have none."""
    if not isinstance(inputs, Ragged):
        raise SteelyardError("tags need the inputs that they belong to: decode(task, outputs, inputs)")
    classes = labels.classes or ()
    rows = []
    for row, length in enumerate(inputs.lengths.tolist()):
        best = [classes[i] for i in outputs[row][:length].argmax(-1).tolist()]
        if isinstance(inputs, Pieces):
            start = int(inputs.offsets[row])
            places = inputs.word[start : start + length].tolist()
            tags = [""] * (max(places, default=-1) + 1)
            for place, tag in zip(places, best, strict=True):
                if place >= 0:
                    tags[place] = tag
            best = tags
        rows.append(best)
    return rows
