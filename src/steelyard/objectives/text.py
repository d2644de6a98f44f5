"""Primitives for text."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.encoders import SpecialTokens
from steelyard.errors import SteelyardError
from steelyard.objectives.draft import Draft, chances
from steelyard.objectives.stages import Representation, Transform, register


def _given(tokens: SpecialTokens | None) -> SpecialTokens:
    if tokens is None:
        raise SteelyardError("transforms of text need the tokenizer's special tokens")
    return tokens


def _random_tokens(like: Tensor, tokens: SpecialTokens, generator: torch.Generator) -> Tensor:
    """Any ordinary token for each place."""
    ordinary = torch.ones(tokens.size, dtype=torch.bool)
    ordinary[list(tokens.special)] = False
    known = ordinary.nonzero()[:, 0]
    return known[torch.randint(len(known), like.shape, generator=generator)]


@register
class Unchanged(Transform):
    """Rows as they are."""

    name, reads, about = "none", ("text", "numbers", "images"), "rows as they are"

    def __call__(self, draft: Draft, tokens: SpecialTokens | None, generator: torch.Generator) -> Draft:
        """The same rows."""
        del tokens, generator
        return draft


@register
class Replace(Transform):
    """Another token in each chosen place."""

    name, about, reveals = "replace", "any other token in the chosen places", True

    def __call__(self, draft: Draft, tokens: SpecialTokens | None, generator: torch.Generator) -> Draft:
        """Random ordinary tokens."""
        new = _random_tokens(draft.inputs, _given(tokens), generator)
        return draft.changed(inputs=torch.where(draft.chosen, new, draft.inputs))


@register
class Mask(Transform):
    """The mask token in each chosen place."""

    name, about = "mask", "the mask token in the chosen places"

    def __call__(self, draft: Draft, tokens: SpecialTokens | None, generator: torch.Generator) -> Draft:
        """The mask token."""
        del generator
        return draft.changed(inputs=draft.inputs.masked_fill(draft.chosen, _given(tokens).mask))


@register
class Bert(Transform):
    """BERT's: of the chosen places 80 % masked, 10 % replaced, 10 % kept."""

    name, about, reveals = "bert", "of the chosen places 80 % masked, 10 % replaced, 10 % kept", True

    def __call__(self, draft: Draft, tokens: SpecialTokens | None, generator: torch.Generator) -> Draft:
        """80/10/10."""
        known = _given(tokens)
        lot = chances(draft.inputs, generator)
        masked = draft.inputs.masked_fill(draft.chosen & (lot < 0.8), known.mask)
        new = _random_tokens(draft.inputs, known, generator)
        return draft.changed(inputs=torch.where(draft.chosen & (lot >= 0.8) & (lot < 0.9), new, masked))


@register
class Noise(Transform):
    """Gaussian noise on the embeddings of the chosen places."""

    name, about = "noise", "noise on the embeddings of the chosen places"
    scale = 0.05

    def __call__(self, draft: Draft, tokens: SpecialTokens | None, generator: torch.Generator) -> Draft:
        """The embedding layer adds it (`steelyard.tasks.View`)."""
        del tokens, generator
        return draft.changed(noise=draft.chosen * self.scale)


@register
class Bidirectional(Representation):
    """All places see all."""

    name, about = "bidirectional", "every place sees the whole row"

    def __call__(self, draft: Draft, generator: torch.Generator) -> Tensor | None:
        """Nothing is hidden."""
        del draft, generator
        return None


@register
class LeftToRight(Representation):
    """A place sees itself and what is left of it."""

    name, about, one_way, predicts = "left-to-right", "a place sees what is left of it, and itself", True, True

    def __call__(self, draft: Draft, generator: torch.Generator) -> Tensor | None:
        """A lower triangle."""
        del generator
        length = draft.inputs.shape[1]
        return torch.ones(len(draft), length, length, dtype=torch.bool).tril()


@register
class RightToLeft(Representation):
    """A place sees itself and what is right of it."""

    name, about, one_way, predicts = "right-to-left", "a place sees what is right of it, and itself", True, True

    def __call__(self, draft: Draft, generator: torch.Generator) -> Tensor | None:
        """An upper triangle."""
        del generator
        length = draft.inputs.shape[1]
        return torch.ones(len(draft), length, length, dtype=torch.bool).triu()


@register
class RandomFactorised(Representation):
    """A place sees itself and what comes before it in a random order of the row, a new one each time.

    The first token (``[CLS]``) comes last: it sees the row, and tells nothing of it.
    """

    name, about, predicts = "random-factorised", "a place sees what comes before it in a random order", True

    def __call__(self, draft: Draft, generator: torch.Generator) -> Tensor | None:
        """An order is transitive: what a place does not see it does not hear of through others either."""
        rank = chances(draft.inputs, generator)
        rank[:, 0] = 2.0
        return rank.unsqueeze(2) >= rank.unsqueeze(1)


@register
class RandomEdges(Representation):
    """As the authors' released code has it: each place sees each other with probability 0.6, and itself."""

    name, about = "random-edges", "a place sees each other one by chance (released code)"
    share = 0.6

    def __call__(self, draft: Draft, generator: torch.Generator) -> Tensor | None:
        """Not an order: over several layers nearly all hear of all."""
        length = draft.inputs.shape[1]
        seen = torch.rand(len(draft), length, length, generator=generator) < self.share
        return seen | torch.eye(length, dtype=torch.bool)
