"""The stages of an objective after its data: transform, representation, output. A primitive is one small class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from steelyard.encoders import SpecialTokens
from steelyard.errors import SteelyardError, did_you_mean
from steelyard.objectives.draft import Draft
from steelyard.tasks import HeadFactory, Inputs, Kind, RowLoss, Spec, Task

Data = Literal["text", "numbers", "images"]
"""What rows are made of."""

TASK, END_TASK = "task", "end-task"
"""The input and the output that belong to the task in question."""


@dataclass(frozen=True)
class Question:
    """What an output asks of its rows, as a task.

    Attributes:
        kind: The kind of task.
        labels: Labels for all rows of the data; the ones of a step come from `Output.answers`.
        outputs: The size of the head's output.
        loss: A row loss; by default the kind's own.
        head: A head's name or factory.
        metric: A metric's name; by default the kind's own.
    """

    kind: Kind
    labels: Inputs
    outputs: int
    loss: RowLoss | None = None
    head: str | HeadFactory = "mlp"
    metric: str | None = None


class Primitive:
    """One choice at one stage.

    Attributes:
        name: What users call it.
        reads: The kinds of rows that it works on.
        about: What it does, in a line.
    """

    name: ClassVar[str]
    reads: ClassVar[tuple[Data, ...]] = ("text",)
    about: ClassVar[str] = ""


class Transform(Primitive, ABC):
    """How inputs are corrupted. It is called on all rows of a step that use it, at once."""

    reveals: ClassVar[bool] = False
    """Whether a changed place looks like any other, so that it can be asked which ones were changed."""
    turns: ClassVar[int] = 0
    """In how many ways it turns a row as a whole (`Draft.code`), if that can be asked for."""

    @abstractmethod
    def __call__(self, draft: Draft, tokens: SpecialTokens | None, generator: torch.Generator) -> Draft:
        """The rows after it. ``tokens`` are those of a text's tokenizer."""


class Representation(Primitive, ABC):
    """Which places the representation of each place may depend on."""

    one_way: ClassVar[bool] = False
    """Whether places see one side of the row only; then the row as a whole cannot be judged."""
    predicts: ClassVar[bool] = False
    """Whether a place does not see the next one, so that it can be asked for it."""

    @abstractmethod
    def __call__(self, draft: Draft, generator: torch.Generator) -> Tensor | None:
        """``BoolTensor[n, L, L]``: whether a place sees another, padding apart; None: all see all."""


class Output(Primitive, ABC):
    """What is asked about the rows."""

    supervised: ClassVar[bool] = False
    """Whether the answers are labels that the data's own task has."""

    def fits(self, transform: Transform, representation: Representation) -> bool:
        """Whether it makes sense after these stages."""
        del transform, representation
        return True

    @abstractmethod
    def question(self, task: Task, spec: Spec, transforms: list[Transform]) -> Question:
        """What is asked of the training rows of a task's data."""

    @abstractmethod
    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """The labels of a step's rows."""


Class = TypeVar("Class", bound=type[Primitive])
_STAGES: dict[str, type[Primitive]] = {"transform": Transform, "representation": Representation, "output": Output}
_REGISTRY: dict[str, dict[tuple[Data, str], type[Primitive]]] = {stage: {} for stage in _STAGES}


def register(primitive: Class) -> Class:
    """Makes a primitive known by its name; usable as a decorator on your own."""
    stage = next((name for name, base in _STAGES.items() if issubclass(primitive, base)), None)
    if stage is None:
        raise SteelyardError(f"{primitive.__name__} is no Transform, Representation or Output; derive it from one")
    for data in primitive.reads:
        known = _REGISTRY[stage].setdefault((data, primitive.name), primitive)
        if known is not primitive:
            raise SteelyardError(f"there is a {stage} {primitive.name!r} for {data} already; choose another name")
    return primitive


def primitives(stage: str, data: Data) -> dict[str, type[Primitive]]:
    """The primitives of a stage (``transform``, ``representation``, ``output``) for a kind of rows, by name."""
    return {name: found for (reads, name), found in _REGISTRY[stage].items() if reads == data}


def find(stage: str, data: Data, name: str) -> type[Primitive]:
    """A primitive by name."""
    known = primitives(stage, data)
    if name not in known:
        hint = did_you_mean(name, known) or f"there are: {', '.join(known)}"
        raise SteelyardError(f"there is no {stage} {name!r} for {data}; {hint}")
    return known[name]
