"""Rows on their way through the four stages."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from steelyard.encoders import SpecialTokens

CHOSEN = 0.15
"""The share of a row's places that an objective asks about."""


@dataclass(eq=False)
class Draft:
    """Some rows of a step: what they were, what they have become, and what may be asked about them.

    Places are tokens ``[n, L]``, numbers of a row ``[n, d]`` or pixels ``[n, H, W]``.

    Attributes:
        original: The rows as they are in the data: token ids ``[n, L]``, numbers ``[n, d]``, images ``[n, C, H, W]``.
        inputs: What the encoder will read; at first the same.
        mask: True on real tokens ``[n, L]``; None for rows that are not text.
        open: The places that may be changed and asked about: no padding, no special tokens.
        chosen: Those that are.
        labels: The rows' own labels, as their task has them.
        code: What was done to the row as a whole, such as quarter turns, ``LongTensor[n]``.
        attention: Which places each token sees, ``BoolTensor[n, L, L]``; None for rows that are not text.
        noise: The noise on each token's embedding ``[n, L]``; None for rows that are not text.
    """

    original: Tensor
    inputs: Tensor
    mask: Tensor | None
    open: Tensor
    chosen: Tensor
    labels: Tensor
    code: Tensor
    attention: Tensor | None = None
    noise: Tensor | None = None

    def __len__(self) -> int:
        return len(self.original)

    def select(self, rows: Tensor) -> Draft:
        """Some of the rows."""
        taken: dict[str, Any] = {n: None if value is None else value[rows] for n, value in self._tensors().items()}
        return Draft(**taken)

    def put(self, rows: Tensor, part: Draft) -> None:
        """Puts rows back that `select` gave."""
        for name, value in part._tensors().items():
            own = getattr(self, name)
            if own is not None and value is not None:
                own[rows] = value

    def changed(self, **values: Tensor) -> Draft:
        """The same rows with something else in their place."""
        return replace(self, **values)

    def _tensors(self) -> dict[str, Tensor | None]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def text_draft(
    ids: Tensor, mask: Tensor, labels: Tensor, tokens: SpecialTokens, generator: torch.Generator, share: float = CHOSEN
) -> Draft:
    """Token ids ``[n, L]`` and their mask, with some ordinary tokens chosen in each row."""
    special = torch.isin(ids, torch.tensor(tokens.special))
    open_ = mask & ~special
    attention = mask.unsqueeze(1).expand(-1, ids.shape[1], -1).clone()
    attention |= torch.eye(ids.shape[1], dtype=torch.bool)  # padding sees itself, so that no place is blind
    return Draft(
        ids, ids.clone(), mask, open_, choose(open_, generator, share), labels,
        torch.zeros(len(ids), dtype=torch.long), attention, torch.zeros(ids.shape),
    )  # fmt: skip


def plain_draft(values: Tensor, labels: Tensor, generator: torch.Generator, share: float = CHOSEN) -> Draft:
    """Rows of numbers ``[n, d]`` or images ``[n, C, H, W]``, with some places chosen in each."""
    places = values.shape[:1] + values.shape[2:] if values.dim() == 4 else values.shape
    open_ = torch.ones(places, dtype=torch.bool)
    chosen = choose(open_.flatten(1), generator, share).view(places)
    return Draft(values, values.clone(), None, open_, chosen, labels, torch.zeros(len(values), dtype=torch.long))


def choose(open_: Tensor, generator: torch.Generator, share: float) -> Tensor:
    """Each open place with probability ``share``, and at least one in a row that has any; ``BoolTensor[n, L]``."""
    scores = torch.rand(open_.shape, generator=generator).masked_fill(~open_, 2.0)
    first = torch.zeros_like(open_).scatter_(1, scores.argmin(1, keepdim=True), value=True)
    return ((scores < share) | first) & open_


def chances(like: Tensor, generator: torch.Generator) -> Tensor:
    """A uniform random number for each entry of a tensor."""
    return torch.rand(like.shape, generator=generator)
