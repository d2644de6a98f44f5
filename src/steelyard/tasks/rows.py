"""Rows: inputs with labels, dense or ragged, and the batches that are cut from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from steelyard.errors import SteelyardError

IGNORE = -100
"""The class index that says "this row (or token) has no label"; real-valued labels say it with NaN."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths, end to end.

    Attributes:
        values: The elements of all sequences, ``[total]``.
        offsets: Where each sequence starts, and the end of the last: ``LongTensor[N + 1]``.
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, sequences: list[list[int]] | list[Tensor]) -> Ragged:
        """Joins a list of sequences."""
        parts = [torch.as_tensor(s, dtype=torch.long) for s in sequences]
        lengths = torch.tensor([0, *(len(p) for p in parts)])
        values = torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)
        return cls(values, lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """``LongTensor[N]``."""
        return self.offsets[1:] - self.offsets[:-1]

    def padded(self, index: Tensor, fill: int = 0) -> tuple[Tensor, Tensor]:
        """The chosen sequences, padded to the longest of them.

        Returns:
            ``values [n, L]`` with ``fill`` in the padding, and the mask ``[n, L]`` that is true on real elements.
        """
        start, length = self.offsets[index], self.lengths[index]
        # A batch of empty sequences still has one (padded) position, so that encoders see a width.
        position = torch.arange(max(int(length.max()) if len(length) else 0, 1))
        mask = position < length[:, None]
        where = (start[:, None] + position).clamp(max=max(len(self.values) - 1, 0))
        values = self.values[where] if len(self.values) else torch.full(where.shape, fill)
        return values.masked_fill(~mask, fill), mask

    def select(self, index: Tensor) -> Ragged:
        """The chosen sequences as a new ragged tensor."""
        length = self.lengths[index]
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), length.cumsum(0)])
        shift = torch.repeat_interleave(self.offsets[index] - offsets[:-1], length)
        return Ragged(self.values[torch.arange(int(offsets[-1])) + shift], offsets)


Inputs = Tensor | Ragged
"""What an encoder reads: ``Tensor[N, ...]`` (numbers, images) or ragged token ids (text)."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A set of rows for one task.

    Attributes:
        inputs: ``Tensor[N, ...]`` or ragged token ids.
        labels: Class indices ``LongTensor[N]``, 0/1 or real values ``Tensor[N]`` or ``Tensor[N, K]``, or a tag per
            token (ragged, with the inputs' offsets). Missing labels are `IGNORE` or NaN.
        origin: Where the rows came from (a file, a suite), for messages.
        lines: The row numbers in that origin, ``LongTensor[N]``, for messages.
    """

    inputs: Inputs
    labels: Inputs
    origin: str = ""
    lines: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise SteelyardError(
                f"{self.origin or 'rows'}: {len(self.inputs)} inputs but {len(self.labels)} labels; "
                "give one label per row"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def select(self, index: Tensor) -> Rows:
        """The chosen rows."""
        return Rows(
            _select(self.inputs, index),
            _select(self.labels, index),
            self.origin,
            index if self.lines is None else self.lines[index],
        )

    def where(self, row: int) -> str:
        """A row's place, in words."""
        number = row if self.lines is None else int(self.lines[row])
        return f"{self.origin + ', ' if self.origin else ''}row {number + 1}"


def _select(inputs: Inputs, index: Tensor) -> Inputs:
    return inputs.select(index) if isinstance(inputs, Ragged) else inputs[index]


def same(a: Inputs, b: Inputs) -> bool:
    """Whether two inputs hold the same values: by identity where that decides, else by content."""
    if a is b:
        return True
    if isinstance(a, Ragged) or isinstance(b, Ragged):
        return (
            isinstance(a, Ragged)
            and isinstance(b, Ragged)
            and torch.equal(a.offsets, b.offsets)
            and torch.equal(a.values, b.values)
        )
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


@dataclass(frozen=True, eq=False)
class Member:
    """One task's share of a part.

    Attributes:
        task: The task's name.
        rows: Its rows: a slice of the part's.
        labels: Their labels.
        complete: Whether no label is missing, as far as is known without looking.
        index: Which of the task's rows of the role these are, ``LongTensor[n]``, where that is known.
    """

    task: str
    rows: slice
    labels: Tensor
    complete: bool = False
    index: Tensor | None = None

    def to(self, device: torch.device | str) -> Member:
        """The same on another device."""
        index = None if self.index is None else self.index.to(device, non_blocking=True)
        return replace(self, labels=self.labels.to(device, non_blocking=True), index=index)


@dataclass(frozen=True, eq=False)
class View:
    """How an encoder is to look at rows of tokens, where that is not as usual.

    Attributes:
        attention: ``BoolTensor[N, L, L]``: whether a place (second) sees another (third). No place may be blind.
        noise: The standard deviation of the noise that is added to each place's embedding, ``[N, L]``.
    """

    attention: Tensor | None = None
    noise: Tensor | None = None

    def to(self, device: torch.device | str) -> View:
        """The same on another device."""
        return self._each(lambda x: x.to(device, non_blocking=True))

    def select(self, rows: slice | Tensor) -> View:
        """Some rows of it."""
        return self._each(lambda x: x[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> View:
        return View(*(None if x is None else change(x) for x in (self.attention, self.noise)))

    @classmethod
    def joined(cls, views: Sequence[View]) -> View:
        """Several, one after another; either all have a field or none."""
        fields = zip(*((view.attention, view.noise) for view in views), strict=True)
        return cls(*(torch.cat([x for x in each if x is not None]) if each[0] is not None else None for each in fields))


@dataclass(frozen=True, eq=False)
class Part:
    """Rows that go through the encoder together.

    Attributes:
        inputs: ``Tensor[N, ...]`` or token ids ``[N, L]``.
        mask: True on real tokens, ``[N, L]``; absent for inputs that are not text.
        members: The tasks of these rows. Tasks that share rows have the same slice.
        view: How the encoder is to look at them, where that is not as usual.
    """

    inputs: Tensor
    mask: Tensor | None
    members: tuple[Member, ...]
    view: View | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one step: one part where the shapes allow a single encoder call, else one per shape.

    Attributes:
        parts: The parts.
        whole: Whether every process holds these same rows; else each holds its share of them.
    """

    parts: tuple[Part, ...]
    whole: bool = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks that have rows here."""
        return tuple(member.task for part in self.parts for member in part.members)

    def __len__(self) -> int:
        return sum(len(part.inputs) for part in self.parts)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(
            tuple(
                Part(
                    part.inputs.to(device, non_blocking=True),
                    None if part.mask is None else part.mask.to(device, non_blocking=True),
                    tuple(member.to(device) for member in part.members),
                    None if part.view is None else part.view.to(device),
                )
                for part in self.parts
            ),
            self.whole,
        )


Chosen = tuple[Inputs, Tensor, Sequence[tuple[str, Inputs]]]
"""Inputs, the rows to take of them (``LongTensor[n]``), and the tasks that read them, with their labels."""


def collate(groups: list[Chosen], padding: int = 0, complete: Collection[str] = ()) -> Batch:
    """Cuts one batch out of groups of tasks that share inputs.

    Args:
        groups: For each group its inputs, the rows to take (``LongTensor[n]``), and its tasks with their labels.
        padding: The token id that fills short texts.
        complete: The tasks of which no label is missing.
    """
    by_shape: dict[object, list[Chosen]] = {}
    for group in groups:
        inputs = group[0]
        key = "text" if isinstance(inputs, Ragged) else (inputs.shape[1:], inputs.dtype)
        by_shape.setdefault(key, []).append(group)
    return Batch(tuple(_part(alike, padding, complete) for alike in by_shape.values()))


def _part(groups: list[Chosen], padding: int, complete: Collection[str]) -> Part:
    blocks: list[Tensor] = []
    masks: list[Tensor] = []
    for inputs, index, _ in groups:
        if isinstance(inputs, Ragged):
            block, mask = inputs.padded(index, padding)
            masks.append(mask)
        else:
            block = inputs[index]
        blocks.append(block)
    width = max((mask.shape[1] for mask in masks), default=0)
    members, start = [], 0
    for inputs, index, tasks in groups:
        rows = slice(start, start + len(index))
        start = rows.stop
        for name, labels in tasks:
            members.append(Member(name, rows, _labels(labels, index, inputs, width), name in complete, index))
    if not masks:
        return Part(_join(blocks), None, tuple(members))
    return Part(
        _join([_widened(block, width, padding) for block in blocks]),
        _join([_widened(mask, width, 0) for mask in masks]),
        tuple(members),
    )


def _labels(labels: Inputs, index: Tensor, inputs: Inputs, width: int) -> Tensor:
    if isinstance(labels, Ragged):
        return _widened(labels.padded(index, IGNORE)[0], width if isinstance(inputs, Ragged) else 0, IGNORE)
    return labels[index]


def _widened(block: Tensor, width: int, fill: int) -> Tensor:
    missing = width - block.shape[1]
    return torch.nn.functional.pad(block, (0, missing), value=fill) if missing > 0 else block


def _join(blocks: list[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)
