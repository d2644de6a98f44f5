"""Batches in pieces."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from steelyard.tasks.rows import Batch, Part, View


def cut(batch: Batch, pieces: int) -> list[Batch]:
    """Cuts a batch into micro-batches: each has its share of every task's rows, in order."""
    found = [
        Batch(tuple(p for part in batch.parts if (p := _piece(part, i, pieces)) is not None), batch.whole)
        for i in range(pieces)
    ]
    return [piece for piece in found if piece.parts]


def _piece(part: Part, number: int, pieces: int) -> Part | None:
    shares = {(m.rows.start, m.rows.stop): m.rows for m in part.members}
    rows, members, start = [], [], 0
    for (first, stop), whole in shares.items():
        low, high = (first + (stop - first) * i // pieces for i in (number, number + 1))
        if low == high:
            continue
        rows.append(slice(low, high))
        here = slice(start, start + high - low)
        start = here.stop
        members += [
            replace(
                m,
                rows=here,
                labels=m.labels[low - first : high - first],
                index=None if m.index is None else m.index[low - first : high - first],
            )
            for m in part.members
            if (m.rows.start, m.rows.stop) == (whole.start, whole.stop)
        ]
    if not rows:
        return None
    inputs = torch.cat([part.inputs[r] for r in rows])
    mask = None if part.mask is None else torch.cat([part.mask[r] for r in rows])
    view = None if part.view is None else View.joined([part.view.select(r) for r in rows])
    return Part(inputs, mask, tuple(members), view)


def taken(batch: Batch, rows: Tensor) -> Batch:
    """Some rows of a batch that holds one task's, without the padding that none of them needs."""
    part = batch.parts[0]
    member, mask = part.members[0], None if part.mask is None else part.mask[rows]
    inputs, labels = part.inputs[rows], member.labels[rows]
    if mask is not None and part.view is None:
        length = int(mask.any(0).nonzero().max()) + 1 if bool(mask.any()) else 1
        inputs, mask = inputs[:, :length], mask[:, :length]
        labels = labels if labels.dim() < 2 or labels.is_floating_point() else labels[:, :length]
    index = None if member.index is None else member.index[rows]
    own = replace(member, rows=slice(0, len(rows)), labels=labels, index=index)
    view = None if part.view is None else part.view.select(rows)
    return Batch((Part(inputs, mask, (own,), view),), batch.whole)
