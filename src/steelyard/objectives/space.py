"""The space that the stages span, and the objectives that have names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.functional import legal_objectives
from steelyard.objectives.stages import END_TASK, TASK, Data, Output, Representation, Transform, find

STAGES = ("data", "transform", "representation", "output")
SEPARATOR = "/"

DEFAULTS: dict[Data, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "text": (
        ("none", "replace", "mask", "bert"),
        ("bidirectional", "left-to-right", "right-to-left", "random-factorised"),
        ("denoise", END_TASK),
    ),
    "numbers": (("none", "mask", "swap"), ("whole",), ("reconstruct", "detect", END_TASK)),
    "images": (("none", "mask", "noise", "rotate", "jigsaw"), ("whole",), ("reconstruct", "rotation", END_TASK)),
}
"""Transforms, representations and outputs that a space has unless it is told others: for text those of AANG."""

Point = tuple[str, str, str, str]

NAMED: dict[str, tuple[Point, ...]] = {
    "BERT": (("out-of-domain", "bert", "bidirectional", "denoise"),),
    "TAPT": ((TASK, "bert", "bidirectional", "denoise"),),
    "DAPT": (("in-domain", "bert", "bidirectional", "denoise"),),
    "ELMo": (
        ("out-of-domain", "none", "left-to-right", "next-token"),
        ("out-of-domain", "none", "right-to-left", "next-token"),
    ),
    "GPT": (("out-of-domain", "none", "left-to-right", "next-token"),),
    "XLNet": (("out-of-domain", "none", "random-factorised", "next-token"),),
    "ELECTRA": (("neural-lm", "replace", "bidirectional", "real-synthetic"),),
    "BERT-style": ((TASK, "bert", "bidirectional", "denoise"),),
    "GPT-style": ((TASK, "none", "left-to-right", "denoise"),),
    "XLNet-style": ((TASK, "none", "random-factorised", "denoise"),),
}
"""Objectives with names, as points: those of the paper's Figure 1, and its single-objective baselines on task data."""


@dataclass(frozen=True)
class Objective:
    """A point of a space.

    Attributes:
        stages: Its data, transform, representation and output, by name.
        plain: Whether it is a source as it stands: a task that the suite has already.
    """

    stages: Point
    plain: bool = False

    @property
    def name(self) -> str:
        """Its name as a task."""
        return self.stages[0] if self.plain else SEPARATOR.join(self.stages)

    @property
    def known_as(self) -> str:
        """What the literature calls it, or nothing."""
        return ", ".join(name for name, points in NAMED.items() if points == (self.stages,))


class Space:
    """All legal combinations of some primitives.

    Illegal are: an output that is a row's own label, on data without labels of its own or from a representation that
    sees one side; and what an output says does not fit it (`Output.fits`).

    Args:
        data: What the rows are made of.
        inputs: Names for the data: ``task``, and others.
        transforms: By name; by default `DEFAULTS`.
        representations: Likewise.
        outputs: Likewise.
        supervised: The inputs whose own labels may be an output; by default the task.
        sources: Tasks that take part as they stand: untransformed, with their own label.
        only: The points to keep, if not all legal ones.

    Attributes:
        stages: The names of each stage's primitives: data, transforms, representations, outputs.
        legal: ``BoolTensor[I, T, R, O]``.
        points: The legal ones, ``LongTensor[K, 4]``, sorted by data.
        objectives: Their names, in that order.
    """

    def __init__(
        self,
        data: Data,
        inputs: Sequence[str] = (TASK,),
        transforms: Sequence[str] | None = None,
        representations: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        *,
        supervised: Sequence[str] = (TASK,),
        sources: Sequence[str] = (),
        only: Iterable[Point] | None = None,
    ) -> None:
        chosen = [
            list(default if given is None else given)
            for default, given in zip(DEFAULTS[data], (transforms, representations, outputs), strict=True)
        ]
        plain = ("none", DEFAULTS[data][1][0], END_TASK)
        if sources:
            chosen = [names if name in names else [*names, name] for names, name in zip(chosen, plain, strict=True)]
        self.data = data
        self.sources = tuple(sources)
        self.stages = ((*inputs, *sources), *(tuple(dict.fromkeys(names)) for names in chosen))
        made: list[list[Any]] = [
            [find(stage, data, name)() for name in names]
            for stage, names in zip(STAGES[1:], self.stages[1:], strict=True)
        ]
        self.transforms: list[Transform] = made[0]
        self.representations: list[Representation] = made[1]
        self.outputs: list[Output] = made[2]
        self.legal = self._legal(supervised, plain, None if only is None else set(only))
        self.points = self.legal.nonzero()
        if not len(self.points):
            raise SteelyardError("no objective is left: these stages have no legal combination")
        self.objectives = [self._objective(point) for point in self.points.tolist()]

    def _legal(self, supervised: Sequence[str], plain: tuple[str, ...], only: set[Point] | None) -> Tensor:
        inputs = self.stages[0]
        legal = legal_objectives(
            [name in supervised or name in self.sources for name in inputs],
            len(self.transforms),
            [r.one_way for r in self.representations],
            [o.supervised for o in self.outputs],
        )
        fits = [[[o.fits(t, r) for o in self.outputs] for r in self.representations] for t in self.transforms]
        legal &= torch.tensor(fits)
        kept = torch.zeros_like(legal)
        for i, t, r, o in legal.nonzero().tolist():
            names = self._names((i, t, r, o))
            if names[0] in self.sources:
                kept[i, t, r, o] = names[1:] == plain
            else:
                kept[i, t, r, o] = only is None or names in only
        if only is not None and (left := only - {self._names(tuple(p)) for p in kept.nonzero().tolist()}):
            raise SteelyardError(f"objective {SEPARATOR.join(min(left))!r} is not legal: {self._why(min(left))}")
        return kept

    def _why(self, point: Point) -> str:
        for stage, names, name in zip(STAGES, self.stages, point, strict=True):
            if name not in names:
                return f"{stage} {name!r} is not among {', '.join(names)}"
        return "its output does not fit its data, transform or representation"

    def _names(self, point: Sequence[int]) -> Point:
        i, t, r, o = (names[place] for names, place in zip(self.stages, point, strict=True))
        return i, t, r, o

    def _objective(self, point: list[int]) -> Objective:
        names = self._names(point)
        return Objective(names, plain=names[0] in self.sources)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def names(self) -> list[str]:
        """The objectives' names as tasks, in the order of `points`."""
        return [objective.name for objective in self.objectives]

    @property
    def shape(self) -> list[int]:
        """The sizes of the stages."""
        return [len(names) for names in self.stages]

    def shares(self, weights: Tensor) -> dict[str, float]:
        """What each primitive counts for: the sum of the weights ``[K]`` of the objectives that use it."""
        found: dict[str, float] = {}
        for stage, names, column in zip(STAGES, self.stages, self.points.T, strict=True):
            sums = torch.zeros(len(names), dtype=torch.float64).index_add_(0, column, weights.detach().cpu().double())
            found |= {f"{stage}: {name}": value for name, value in zip(names, sums.tolist(), strict=True)}
        return found

    def __str__(self) -> str:
        return "\n".join([*self._primitives(), "", *self._grid(), "", f"{len(self)} objectives"])

    def _primitives(self) -> list[str]:
        """Every stage with its primitives."""
        found = [f"data             {', '.join(self.stages[0])}"]
        each: list[Sequence[Any]] = [self.transforms, self.representations, self.outputs]
        for stage, made in zip(STAGES[1:], each, strict=True):
            for number, primitive in enumerate(made):
                found.append(f"{stage if not number else '':<17}{primitive.name:<19}{primitive.about}".rstrip())
        return found

    def _grid(self) -> list[str]:
        """Per data and output a table of transforms by representations: a name where it has one, x, or a dot."""
        lines = []
        wide = [max(len(name), 12) + 2 for name in self.stages[2]]
        for i, data in enumerate(self.stages[0]):
            for o, output in enumerate(self.stages[3]):
                if not self.legal[i, :, :, o].any():
                    continue
                heads = "".join(f"{n:<{w}}" for n, w in zip(self.stages[2], wide, strict=True))
                lines.append(f"{f'{data}, {output}':<24}{heads}".rstrip())
                for t, transform in enumerate(self.stages[1]):
                    cells = []
                    for r, width in enumerate(wide):
                        mark = "x" if self.legal[i, t, r, o] else "."
                        known = Objective(self._names((i, t, r, o))).known_as.partition(",")[0]
                        cells.append(f"{known if known and mark == 'x' else mark:<{width}}")
                    lines.append(f"  {transform:<22}{''.join(cells)}".rstrip())
        return lines


def points(names: Iterable[str]) -> list[Point]:
    """Objectives from what users write: names of the literature (`NAMED`), or ``data/transform/representation/output``.

    Raises:
        SteelyardError: If a name is neither.
    """
    found: list[Point] = []
    by_case = {known.lower(): known for known in NAMED}
    for name in names:
        parts = name.split(SEPARATOR)
        if name.lower() in by_case:
            found += NAMED[by_case[name.lower()]]
        elif len(parts) == 4:
            found.append((parts[0], parts[1], parts[2], parts[3]))
        else:
            hint = did_you_mean(name, NAMED) or f"the named ones are {', '.join(NAMED)}"
            raise SteelyardError(
                f"there is no objective {name!r}; {hint}; or write data/transform/representation/output"
            )
    return list(dict.fromkeys(found))


def stages_of(chosen: Sequence[Point]) -> Mapping[str, tuple[str, ...]]:
    """The primitives that some points use, by stage."""
    return {stage: tuple(dict.fromkeys(names)) for stage, names in zip(STAGES, zip(*chosen, strict=True), strict=True)}
