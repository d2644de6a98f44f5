"""From a space to tasks, and from tasks to the rows of a step: all objectives' rows go through the encoder at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from steelyard.encoders import SpecialTokens
from steelyard.objectives.draft import CHOSEN, Draft, plain_draft, text_draft
from steelyard.objectives.space import Space
from steelyard.objectives.stages import Data, Question
from steelyard.tasks import IGNORE, Batch, Member, Part, Ragged, Role, Rows, Spec, Suite, Task, View


def data_of(spec: Spec) -> Data:
    """What a suite's rows are made of."""
    if spec.vocabulary:
        return "text"
    return "images" if len(spec.shape) == 3 else "numbers"


def objective_tasks(space: Space, suite: Suite, data: Mapping[str, str]) -> list[Task]:
    """The space's objectives as tasks on the training rows of their data; sources that stand as they are left out.

    Args:
        space: The space.
        suite: The tasks that have the data.
        data: Which task each of the space's inputs is.
    """
    questions: dict[tuple[int, int], Question] = {}
    made = []
    for objective, (i, _, _, o) in zip(space.objectives, space.points.tolist(), strict=True):
        if objective.plain:
            continue
        owner = suite[data[objective.stages[0]]]
        if (i, o) not in questions:
            questions[i, o] = space.outputs[o].question(owner, suite.spec, space.transforms)
        asked, rows = questions[i, o], owner.rows[Role.TRAIN]
        made.append(
            Task(
                objective.name, asked.kind, {Role.TRAIN: Rows(rows.inputs, asked.labels, rows.origin, rows.lines)},
                outputs=asked.outputs, head=asked.head, loss=asked.loss, metric=asked.metric,
            )
        )  # fmt: skip
    return made


class Maker:
    """Makes the rows of a step.

    Args:
        space: The objectives.
        tasks: The task that each of the space's inputs is, by the input's name; its training rows are the data.
        tokens: The tokenizer's special tokens, for text.
        padding: The token id that fills short texts.
        share: The share of places that objectives ask about.
    """

    def __init__(
        self,
        space: Space,
        tasks: Mapping[str, Task],
        tokens: SpecialTokens | None = None,
        padding: int = 0,
        share: float = CHOSEN,
    ) -> None:
        self._space, self._tasks, self._tokens, self._padding, self._share = space, tasks, tokens, padding, share

    def parts(self, chosen: Tensor, per: int, generator: torch.Generator) -> list[Part]:
        """The rows of some objectives, a part per data: rows are drawn anew for each objective.

        Args:
            chosen: Which of the space's objectives, ``LongTensor[n]``, ascending.
            per: Rows of each.
            generator: The source of all draws.
        """
        points = self._space.points[chosen]
        found = []
        for i in torch.unique(points[:, 0]).tolist():
            mine = points[:, 0] == i
            names = [self._space.objectives[k].name for k in chosen[mine].tolist()]
            found.append(self._part(self._space.stages[0][i], points[mine], names, per, generator))
        return found

    def _part(self, data: str, points: Tensor, names: Sequence[str], per: int, generator: torch.Generator) -> Part:
        rows = self._tasks[data].rows[Role.TRAIN]
        draft = self._draft(rows, torch.randint(len(rows), (len(points) * per,), generator=generator), generator)
        stage = points.repeat_interleave(per, 0)
        for t in torch.unique(points[:, 1]).tolist():
            at = (stage[:, 1] == t).nonzero()[:, 0]
            draft.put(at, self._space.transforms[t](draft.select(at), self._tokens, generator))
        for r in torch.unique(points[:, 2]).tolist():
            at = (stage[:, 2] == r).nonzero()[:, 0]
            seen = self._space.representations[r](draft.select(at), generator)
            if seen is not None and draft.attention is not None:
                draft.attention[at] &= seen
        labels: dict[int, Tensor] = {}
        for r, o in torch.unique(points[:, 2:], dim=0).tolist():
            which = ((points[:, 2] == r) & (points[:, 3] == o)).nonzero()[:, 0]
            at = ((stage[:, 2] == r) & (stage[:, 3] == o)).nonzero()[:, 0]
            answers = self._space.outputs[o].answers(draft.select(at), self._space.representations[r])
            labels |= dict(zip(which.tolist(), answers.split(per), strict=True))
        members = tuple(Member(name, slice(k * per, (k + 1) * per), labels[k]) for k, name in enumerate(names))
        view = None if draft.mask is None else View(draft.attention, draft.noise)
        return Part(draft.inputs, draft.mask, members, view)

    def _draft(self, rows: Rows, index: Tensor, generator: torch.Generator) -> Draft:
        if isinstance(rows.inputs, Ragged):
            ids, mask = rows.inputs.padded(index, self._padding)
            if self._tokens is None:
                raise AssertionError("text has a tokenizer")
            return text_draft(ids, mask, _labels(rows, index), self._tokens, generator, self._share)
        return plain_draft(rows.inputs[index], _labels(rows, index), generator, self._share)


def _labels(rows: Rows, index: Tensor) -> Tensor:
    return rows.labels.padded(index, IGNORE)[0] if isinstance(rows.labels, Ragged) else rows.labels[index]


def merged(parts: Sequence[Part], padding: int = 0) -> Batch:
    """Parts as one, for one encoder call, where their rows have one shape; texts are padded to the longest."""
    groups: dict[object, list[Part]] = {}
    for part in parts:
        groups.setdefault("text" if part.mask is not None else (part.inputs.shape[1:], part.inputs.dtype), []).append(
            part
        )
    return Batch(tuple(_joined(alike, padding) for alike in groups.values()))


def _joined(parts: list[Part], padding: int) -> Part:
    if len(parts) == 1:
        return _plainest(parts[0])
    length = max(part.inputs.shape[1] for part in parts) if parts[0].mask is not None else 0
    parts = [_widened(part, length, padding) for part in parts]
    members: list[Member] = []
    start = 0
    for part in parts:
        members += [
            Member(m.task, slice(start + m.rows.start, start + m.rows.stop), m.labels, m.complete) for m in part.members
        ]
        start += len(part.inputs)
    masks = [part.mask for part in parts if part.mask is not None]
    views = [_full(part) for part in parts] if any(part.view is not None for part in parts) else []
    return _plainest(
        Part(
            torch.cat([part.inputs for part in parts]),
            torch.cat(masks) if masks else None,
            tuple(members),
            View.joined(views) if views else None,
        )
    )


def _full(part: Part) -> View:
    """A part's view with every field said."""
    if part.mask is None:
        raise AssertionError("only texts have views")
    given = part.view or View()
    usual = part.mask.unsqueeze(1) | torch.eye(part.mask.shape[1], dtype=torch.bool)
    return View(
        usual if given.attention is None else given.attention,
        torch.zeros(part.mask.shape) if given.noise is None else given.noise,
    )


def _plainest(part: Part) -> Part:
    """Without what the encoder does as usual: it is cheaper so."""
    if part.view is None or part.mask is None:
        return part
    attention, noise = part.view.attention, part.view.noise
    usual = part.mask.unsqueeze(1) | torch.eye(part.mask.shape[1], dtype=torch.bool)
    if attention is not None and bool((attention == usual).all()):
        attention = None
    if noise is not None and not bool(noise.any()):
        noise = None
    view = None if attention is None and noise is None else View(attention, noise)
    return Part(part.inputs, part.mask, part.members, view)


def _widened(part: Part, length: int, padding: int) -> Part:
    """A text part padded to a length; what is asked about tokens is not asked about the padding."""
    if part.mask is None or part.inputs.shape[1] == length:
        return part
    old, more = part.inputs.shape[1], length - part.inputs.shape[1]
    mask = torch.nn.functional.pad(part.mask, (0, more))
    members = tuple(
        Member(m.task, m.rows, torch.nn.functional.pad(m.labels, (0, more), value=IGNORE), m.complete)
        if m.labels.dim() == 2 and m.labels.shape[1] == old and not m.labels.is_floating_point()
        else m
        for m in part.members
    )
    view = part.view
    if view is not None:
        attention, noise = view.attention, view.noise
        if attention is not None:
            attention = torch.nn.functional.pad(attention, (0, more, 0, more)) | torch.eye(length, dtype=torch.bool)
        if noise is not None:
            noise = torch.nn.functional.pad(noise, (0, more))
        view = View(attention, noise)
    return Part(torch.nn.functional.pad(part.inputs, (0, more), value=padding), mask, members, view)
