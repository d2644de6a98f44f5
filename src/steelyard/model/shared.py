"""One encoder shared by all tasks, and a head for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.model import names, reading
from steelyard.model.alignment import Alignment
from steelyard.model.stages import Stage, apart, find_stage, flat_vectors
from steelyard.tasks import SUMS, Batch, Inputs, Kind, Member, Part, Ragged, Suite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from steelyard.model.alignment import Matrix
    from steelyard.tasks import RowLoss


@dataclass(frozen=True, eq=False)
class TaskLosses:
    """The losses of one batch, per task, in the order of the suite. Tasks without rows or labels hold 0.

    Attributes:
        sums: Each task's loss summed over its labels, ``Tensor[T]``.
        counts: How many labels were summed, ``Tensor[T]``.
    """

    sums: Tensor
    counts: Tensor

    @property
    def means(self) -> Tensor:
        """Each task's mean loss, ``Tensor[T]``; 0 where a task has no label here."""
        return self.sums / self.counts.clamp(min=1)


class SharedModel(nn.Module):
    """A shared encoder with a head per task.

    Args:
        encoder: Any module. Text is read as ``encoder(ids [N, L], mask [N, L])``, all else as
            ``encoder(inputs)``; it returns features ``[N, d]`` or token features ``[N, L, d]``. These are
            pooled by ``encoder.pool(features, mask)`` if there is one, else by their mean over real tokens.
            A Hugging Face model can be given as it is.
        suite: The tasks. Only their names, heads and losses are kept, not their rows.
        width: The size d of the features; read from ``encoder.width``, or found by a trial run, unless given.

    Attributes:
        encoder: The shared part.
        heads: A head per task, under the task's name with ``.`` written ``%2E``; see `head`.
        tasks: The names of the tasks, in the order of `TaskLosses`.
        target: The name of the target task, if there is one.
        width: The size of the features.
        alignment: The tasks' alignment matrices, once `add_alignment` has made them.
    """

    alignment: Alignment | None

    def __init__(self, encoder: nn.Module, suite: Suite, width: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.tasks = tuple(suite.tasks)
        self.target = suite.target
        self.alignment = None
        self.padding = suite.spec.padding
        self._hugging_face = reading.is_hugging_face(encoder)
        self._pools = reading.accepts(getattr(encoder, "pool", None), 2)
        if suite.spec.vocabulary and not self._hugging_face and not reading.accepts(encoder, 2):
            raise SteelyardError(
                f"the encoder {type(encoder).__name__} cannot read text: its forward must take "
                "(ids [N, L], mask [N, L])"
            )
        tasks = suite.tasks.items()
        self._losses: dict[str, RowLoss] = {name: names.given(task.loss) for name, task in tasks}
        self._outputs: dict[str, int] = {name: names.given(task.outputs) for name, task in tasks}
        self._tagging = frozenset(name for name, task in tasks if task.kind is Kind.TAGGING)
        self._keys = {name: names.key(name) for name in self.tasks}
        self._joined: dict[str, nn.Module] = {}
        self.width = width or reading.width_of(encoder, suite)
        like = next((p for p in encoder.parameters() if p.is_floating_point()), torch.empty(0))
        heads: dict[str, nn.Module] = {}
        for name, task in tasks:
            head = names.build_head(name, task.head, self.width, names.given(task.outputs))
            heads[self._keys[name]] = head.to(like)
        self.heads = nn.ModuleDict(heads)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Every task's outputs: ``[n, outputs]``, or ``[n, L, outputs]`` for tagging."""
        outputs: dict[str, Tensor] = {}
        for part in batch.parts:
            asked, features = self._features(part)
            for member, block in zip(asked.members, self._blocks(features, asked), strict=True):
                if member.task in outputs:
                    raise SteelyardError(
                        f"task {member.task!r} is in this batch twice; give all its rows as one member"
                    )
                outputs[member.task] = self.head(member.task)(block)
        return outputs

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """What every task's head reads: ``[n, width]``, or ``[n, L, width]`` for tagging."""
        found: dict[str, Tensor] = {}
        for part in batch.parts:
            asked, features = self._features(part)
            found |= zip((m.task for m in asked.members), self._blocks(features, asked), strict=True)
        return found

    @property
    def stage(self) -> Stage:
        """The embedding stage: where the alignment matrices are, or would be."""
        if self.alignment is not None:
            return self.alignment.stage
        return find_stage(self.encoder, None, self.width, self._hugging_face)

    def embeddings(self, batch: Batch) -> dict[str, Tensor]:
        """Every task's vectors at the embedding stage, as they go on to what is shared: with R_t, without padding.

        Returns:
            ``[vectors, d]`` for each task: one for each row of the batch, or for each of its tokens or pixels.
        """
        found: dict[str, Tensor] = {}
        for given in batch.parts:
            part = given if self.alignment is None else apart(given)
            seen = self.stage.watch(self.encoder, part, self._asked, self.alignment)
            found |= {m.task: flat_vectors(seen, part.mask, m.rows) for m in part.members}
        return found

    def add_alignment(
        self, tasks: Iterable[str] | None = None, matrix: Matrix = "full", rank: int = 8, stage: str | None = None
    ) -> Alignment:
        """Puts a matrix R_t = I between each task's embeddings and what the tasks share.

        Args:
            tasks: The tasks that get one; all unless named.
            matrix: ``full``, ``orthogonal`` or ``low_rank``.
            rank: The rank of R_t - I, where it is low.
            stage: Where: ``input``, ``output`` or a module of the encoder; by default the encoder's embedding stage.
        """
        chosen = self.tasks if tasks is None else tuple(tasks)
        for name in chosen:
            self.head(name)
        place = find_stage(self.encoder, stage, self.width, self._hugging_face)
        like = next((p for p in self.parameters() if p.is_floating_point()), torch.empty(0))
        self.alignment = Alignment(place, chosen, matrix, rank).to(like)
        return self.alignment

    def join(self, tasks: Iterable[str], loss: nn.Module) -> None:
        """Has the losses of several token tasks computed by one module, in one call per part.

        Args:
            tasks: Tasks with outputs ``[n, L, outputs]`` of one size; no two of them share rows in a batch.
            loss: From outputs ``[N, L, outputs]`` and labels ``[N, L]`` of all rows of a part (`IGNORE` where a row
                is no such task's) to each row's summed loss ``[N, 1]``. Whoever owns it registers it.
        """
        for name in tasks:
            self.head(name)
            self._joined[name] = loss

    def _features(self, part: Part) -> tuple[Part, Tensor]:
        """The encoder's features, and the part whose rows they are: aligned tasks share none."""
        if self.alignment is None:
            return part, self._asked(part)
        return self.alignment.features(self.encoder, part, self._asked)

    def _asked(self, part: Part) -> Tensor:
        return reading.features_of(self.encoder, part, self._hugging_face)

    def _blocks(self, features: Tensor, part: Part) -> list[Tensor]:
        """Each member's features: of its tokens where it tags them, else of its rows."""
        tagged = [member.task in self._tagging for member in part.members] if self._tagging else [False]
        if not any(tagged):
            return reading.cut(self._pooled(features, part.mask), part)
        tokens = reading.cut(self._tokens(features, part), part)
        if all(tagged):
            return tokens
        pooled = reading.cut(self._pooled(features, part.mask), part)
        return [t if tags else p for tags, t, p in zip(tagged, tokens, pooled, strict=True)]

    def row_losses(self, batch: Batch, outputs: dict[str, Tensor] | None = None) -> dict[str, tuple[Tensor, Tensor]]:
        """Every row's loss, for weights per example.

        Args:
            batch: The rows.
            outputs: What the (wrapped) model said about them, if it was asked already.

        Returns:
            For each task of the batch, in the batch's order, its rows' summed losses ``[n]`` and label counts
            ``[n]``.
        """
        outputs = self(batch) if outputs is None else outputs
        return {
            member.task: self._losses[member.task](_wide(outputs[member.task]), member.labels)
            for part in batch.parts
            for member in part.members
        }

    def losses(
        self,
        batch: Batch,
        outputs: dict[str, Tensor] | None = None,
        row_weights: Mapping[str, Tensor] | None = None,
    ) -> TaskLosses:
        """Every task's loss on a batch, which may hold any of the tasks. Nothing waits for the device.

        Args:
            batch: The rows.
            outputs: What the (wrapped) model said about them, if it was asked already.
            row_weights: For some tasks what each of their rows' losses is multiplied with, ``[n_t]`` over all rows
                of the role that the batch was cut from.
        """
        outputs = self(batch) if outputs is None else outputs
        given = row_weights or {}
        found = {
            m.task: self._summed(m, _wide(outputs[m.task]), given.get(m.task))
            for part in batch.parts
            for m in part.members
            if m.task not in self._joined
        }
        for part in batch.parts if self._joined else ():
            found |= reading.joint_losses(part, outputs, self._joined)
        zero = next(iter(found.values()))[0].new_zeros(()) if found else torch.zeros(())
        sums, counts = zip(*(found.get(task, (zero, 0)) for task in self.tasks), strict=True)
        known = all(isinstance(count, int) for count in counts)
        return TaskLosses(
            torch.stack(sums),
            torch.tensor(counts, dtype=zero.dtype, device=zero.device)
            if known
            else torch.stack([count if isinstance(count, Tensor) else zero + count for count in counts]),
        )

    def predict(self, inputs: Inputs, task: str, batch_size: int = 256) -> Tensor:
        """A task's outputs for new inputs, in evaluation mode and without gradients, on the CPU.

        Args:
            inputs: ``Tensor[N, ...]`` or ragged token ids; texts are batched by length.
            task: The name of the task.
            batch_size: Rows per encoder call.

        Returns:
            ``[N, outputs]``, or ``[N, longest, outputs]`` for tagging, with 0 in the padding.
        """
        self.head(task)
        tokens = task in self._tagging
        if not len(inputs):
            return torch.empty(0, *([0] if tokens else []), self._outputs[task])
        order = torch.arange(len(inputs))
        if isinstance(inputs, Ragged):
            order = inputs.lengths.argsort(stable=True)
        with torch.no_grad(), reading.evaluating(self):
            found = [self._ask(inputs, index, task) for index in torch.split(order, batch_size)]
        if tokens:
            longest = max(block.shape[1] for block in found)
            found = [
                F.pad(block, (0, 0, 0, longest - block.shape[1])) if block.shape[1] < longest else block
                for block in found
            ]
        return torch.cat(found)[order.argsort()]

    def scope(self, name: str, trainable: bool = False) -> dict[str, nn.Parameter]:
        """Named parameters of a part of the model; a tied parameter appears once, under its first name.

        Args:
            name: ``shared`` (the encoder), ``heads``, ``all``, or a regular expression, searched in the
                parameters' names. A parameter that encoder and head have in common is ``shared``.
            trainable: Leave frozen parameters out.

        Raises:
            SteelyardError: If there is no such parameter.
        """
        return names.scope(self, name, trainable)

    def head(self, task: str) -> nn.Module:
        """A task's head."""
        if task not in self._keys:
            raise names.unknown("task", task, self.tasks)
        return self.heads[self._keys[task]]

    def _summed(self, member: Member, outputs: Tensor, row_weights: Tensor | None) -> tuple[Tensor, Tensor | int]:
        """A task's summed loss and how many labels it sums, by one operation where no label is missing."""
        loss = self._losses[member.task]
        if member.complete and loss in SUMS and row_weights is None:
            return SUMS[loss](outputs, member.labels), member.labels.numel()
        values, counts = loss(outputs, member.labels)
        if row_weights is not None:
            if member.index is None:
                raise SteelyardError(
                    f"task {member.task!r}: the batch does not say which rows these are; no row weights"
                )
            values = values * row_weights[member.index]
        return values.sum(), counts.sum()

    def _pooled(self, features: Tensor, mask: Tensor | None) -> Tensor:
        if features.dim() == 2:
            return features
        if not self._pools:
            return reading.masked_mean(features, mask)
        encoder: Any = self.encoder
        pooled: Tensor = encoder.pool(features, mask)
        return pooled

    def _tokens(self, features: Tensor, part: Part) -> Tensor:
        lengths = {features.shape[1]} if part.mask is None else {features.shape[1], part.mask.shape[1]}
        if features.dim() == 3 and len(lengths) == 1:
            return features
        task = next(member.task for member in part.members if member.task in self._tagging)
        raise SteelyardError(
            f"task {task!r} tags tokens, but the encoder gives features {list(features.shape)} for inputs "
            f"{list(part.inputs.shape)}; use one with features [rows, tokens, width], such as textcnn or lstm"
        )

    def _ask(self, inputs: Inputs, index: Tensor, task: str) -> Tensor:
        part = reading.part_of(inputs, index, task, self.padding)
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        outputs: Tensor = self(Batch((part,)).to(device))[task]
        if task in self._tagging and part.mask is not None:
            outputs = outputs.masked_fill(~part.mask.to(device).unsqueeze(-1), 0)
        return outputs.cpu()


def _wide(outputs: Tensor) -> Tensor:
    """Losses and counts need more digits than half precision has."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
