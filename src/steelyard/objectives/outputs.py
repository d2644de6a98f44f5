"""Outputs: what is asked about rows of text, and the end task, which is asked about rows of any kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steelyard.encoders import LanguageHead
from steelyard.errors import SteelyardError
from steelyard.objectives.draft import Draft
from steelyard.objectives.stages import END_TASK, Output, Question, Representation, Transform, register
from steelyard.tasks import IGNORE, Inputs, Kind, Ragged, Role, Spec, Task

BINS = 8
"""Into how many classes TF-IDF is cut."""


def ragged(task: Task) -> Ragged:
    """A text task's training rows."""
    inputs = task.rows[Role.TRAIN].inputs
    if not isinstance(inputs, Ragged):
        raise SteelyardError(f"task {task.name!r}: this objective is for text")
    return inputs


class TokenTransform(nn.Sequential):
    """BERT's last step before its decoder: token features ``[n, L, width]`` to vectors for it, of the same size.

    Args:
        width: The size of the features.
        outputs: The number of tokens that there are; the decoder sees to them.
    """

    def __init__(self, width: int, outputs: int) -> None:
        del outputs
        super().__init__(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))

    @torch.no_grad()
    def begin_with(self, head: LanguageHead) -> None:
        """Takes over a checkpoint's linear map and LayerNorm."""
        for own, given in zip(self.parameters(), head.parameters(), strict=False):
            own.copy_(given)
        norm: Any = self[2]
        norm.eps = head.least


class _Tokens(Output):
    """Asks for a token in each chosen place; the decoder is shared (`steelyard.objectives.Decoder`)."""

    def question(self, task: Task, spec: Spec, transforms: list[Transform]) -> Question:
        """The tags of a text's tokens are tokens."""
        del transforms
        return Question(Kind.TAGGING, ragged(task), spec.vocabulary, head="token-transform")


@register
class Denoise(_Tokens):
    """The token that stood in each chosen place."""

    name, about = "denoise", "the token that stood in each chosen place"

    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """Original tokens."""
        del representation
        return draft.original.masked_fill(~draft.chosen, IGNORE)


@register
class NextToken(_Tokens):
    """The token that follows each chosen place, in the direction of reading."""

    name, about = "next-token", "the token that comes after each chosen place"

    def fits(self, transform: Transform, representation: Representation) -> bool:
        """Only where places do not see it."""
        del transform
        return representation.predicts

    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """The neighbour, where there is one that the place does not see."""
        step = -1 if representation.name == "right-to-left" else 1
        hidden = torch.ones_like(draft.chosen)
        if draft.attention is not None:
            rows = torch.arange(draft.original.shape[1])
            hidden = ~draft.attention[:, rows, (rows + step) % len(rows)]
        next_ = draft.original.roll(-step, 1)
        real = draft.open.roll(-step, 1)
        real[:, -1 if step == 1 else 0] = False
        return next_.masked_fill(~(draft.chosen & real & hidden), IGNORE)


@register
class RealOrSynthetic(Output):
    """Whether each token is the text's own."""

    name, about = "real-synthetic", "whether each token is the text's own or was put there"

    def fits(self, transform: Transform, representation: Representation) -> bool:
        """Only where the transform puts tokens in that could be the text's own."""
        del representation
        return transform.reveals

    def question(self, task: Task, spec: Spec, transforms: list[Transform]) -> Question:
        """Two classes per token."""
        del spec, transforms
        rows = ragged(task)
        return Question(Kind.TAGGING, Ragged(torch.zeros_like(rows.values), rows.offsets), 2)

    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """1 where the token is another."""
        del representation
        return (draft.inputs != draft.original).long().masked_fill(~draft.open, IGNORE)


@register
class TfIdf(Output):
    """How much each chosen token says of its text: its TF-IDF, in classes of equal size."""

    name, about = "tf-idf", f"the TF-IDF of the token in each chosen place, in {BINS} classes"

    def __init__(self) -> None:
        self._idf = torch.ones(1)
        self._edges = torch.zeros(BINS - 1)

    def question(self, task: Task, spec: Spec, transforms: list[Transform]) -> Question:
        """Counts documents on the task's training rows, and finds the classes' borders."""
        del transforms
        rows = ragged(task)
        owner = torch.repeat_interleave(torch.arange(len(rows)), rows.lengths)
        pairs, counts = torch.unique(owner * spec.vocabulary + rows.values, return_counts=True)
        documents = torch.bincount(pairs % spec.vocabulary, minlength=spec.vocabulary)
        self._idf = ((1 + len(rows)) / (1 + documents)).log() + 1
        values = counts * self._idf[pairs % spec.vocabulary] / rows.lengths[pairs // spec.vocabulary]
        self._edges = values.quantile(torch.linspace(0, 1, BINS + 1)[1:-1])
        return Question(Kind.TAGGING, Ragged(torch.zeros_like(rows.values), rows.offsets), BINS)

    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """Its class, where it is chosen."""
        del representation
        ids, real = draft.original, draft.original.new_ones(draft.original.shape)
        if draft.mask is not None:
            real = draft.mask.long()
        same = (ids.unsqueeze(2) == ids.unsqueeze(1)) & (real.unsqueeze(1) > 0)
        share = same.sum(2) / real.sum(1, keepdim=True).clamp(min=1)
        return torch.bucketize(share * self._idf[ids], self._edges).masked_fill(~draft.chosen, IGNORE)


@register
class EndTask(Output):
    """The label that the row has in its own task: the end task's, or a source's."""

    name, reads, about = END_TASK, ("text", "numbers", "images"), "the label of the row in its own task"
    supervised = True

    def question(self, task: Task, spec: Spec, transforms: list[Transform]) -> Question:
        """The task itself, with a head of its own."""
        del spec, transforms
        if task.kind is Kind.TAGGING:
            head: str = "token"
        else:
            head = "mlp"
        return Question(task.kind, task.rows[Role.TRAIN].labels, task.outputs, task.loss, head, task.metric)

    def answers(self, draft: Draft, representation: Representation) -> Tensor:
        """The labels."""
        del representation
        return draft.labels


def flat(inputs: Inputs) -> Tensor:
    """Rows of numbers or images as ``[N, numbers]``."""
    if isinstance(inputs, Ragged):
        raise SteelyardError("this objective is for rows of numbers or images, not for text")
    return inputs.flatten(1).float()
