"""Which rows each step sees: a function of the seed and the step alone, so that any step can be resumed from."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.tasks import Batch, Inputs, Ragged, Role, Suite, collate, labelled
from steelyard.training import sampling
from steelyard.training.settings import Training


@dataclass(frozen=True)
class Group:
    """Tasks that share their rows; a task with rows of its own is a group of one."""

    inputs: Inputs
    tasks: tuple[tuple[str, Inputs], ...]

    @property
    def name(self) -> str:
        """The names of its tasks."""
        return "+".join(name for name, _ in self.tasks)


def groups(suite: Suite, tasks: tuple[str, ...], role: Role) -> list[Group]:
    """Gathers tasks whose rows of a role are the same inputs (the same object)."""
    found: dict[int, tuple[Inputs, list[tuple[str, Inputs]]]] = {}
    for name in tasks:
        if role not in suite[name].rows:
            raise SteelyardError(f"task {name!r} has no rows with role {role}; give it some")
        rows = suite[name].rows[role]
        found.setdefault(id(rows.inputs), (rows.inputs, []))[1].append((name, rows.labels))
    return [Group(inputs, tuple(members)) for inputs, members in found.values()]


def _whose(suite: Suite, group: Group) -> str:
    """A task that names the order of a group's rows: the target, so that leaving out a source leaves it as it was."""
    names = [name for name, _ in group.tasks]
    return suite.target if suite.target in names else names[0]


class Stream:
    """Endless shuffled passes over a group's rows, cut into batches that are addressed by number.

    With a pool of several batches, texts of like length stand in one batch: the rows of a pool are sorted by length,
    cut, and the batches shuffled, in the same way for all groups, so that short texts of all tasks meet.
    """

    def __init__(self, group: Group, name: str, count: int, training: Training) -> None:
        self.size, self.count = len(group.inputs), count
        self._seed, self._name = training.seed, name
        self._lengths = group.inputs.lengths if isinstance(group.inputs, Ragged) else None
        self._size = training.length_pool if self._lengths is not None else 1
        self._passes: dict[int, Tensor] = {}
        self._pool: tuple[int, Tensor] | None = None

    def batch(self, number: int) -> Tensor:
        """The rows of a batch, ``LongTensor[count]``."""
        if self._size == 1 or self._lengths is None:
            return self._take(number * self.count, self.count)
        pool, place = divmod(number, self._size)
        if self._pool is None or self._pool[0] != pool:
            rows = self._take(pool * self._size * self.count, self._size * self.count)
            ordered = rows[self._lengths[rows].argsort(stable=True)].view(self._size, self.count)
            order = torch.randperm(self._size, generator=seeded(self._seed, "pool", pool))
            self._pool = (pool, ordered[order])
        return self._pool[1][place]

    def _take(self, start: int, count: int) -> Tensor:
        """The rows at positions ``start … start + count - 1`` of the passes."""
        taken = []
        while count > 0:
            number, offset = divmod(start, self.size)
            rows = self._pass(number)[offset : offset + count]
            taken.append(rows)
            start, count = start + len(rows), count - len(rows)
        return taken[0] if len(taken) == 1 else torch.cat(taken)

    def _pass(self, number: int) -> Tensor:
        if number not in self._passes:
            if len(self._passes) > 1:
                self._passes.clear()
            self._passes[number] = torch.randperm(self.size, generator=seeded(self._seed, self._name, number))
        return self._passes[number]


def seeded(seed: int, *parts: object) -> torch.Generator:
    """A generator that depends on the seed and on what it is for, and on nothing else."""
    text = "/".join(map(str, (seed, *parts)))
    return torch.Generator().manual_seed(zlib.crc32(text.encode()))


class Batcher:
    """Cuts the training batches of a phase.

    In a step, each process (``rank`` of ``world``) takes every ``world``-th of the step's rows, so that together
    they see what one process would.
    """

    def __init__(self, suite: Suite, tasks: tuple[str, ...], training: Training, rank: int = 0, world: int = 1) -> None:
        self._groups = groups(suite, tasks, Role.TRAIN)
        self._tasks = tasks
        self._training = training
        self._padding = suite.spec.padding
        self._rank, self._world = rank, world
        sizes = [len(group.inputs) for group in self._groups]
        own = sampling.own_sizes(training, suite, [list(dict(group.tasks)) for group in self._groups])
        self._counts = sampling.rows_per_step(training, sizes, own)
        self._streams = [
            Stream(group, _whose(suite, group), count, training)
            for group, count in zip(self._groups, self._counts, strict=True)
        ]
        if training.batching == "all_tasks":
            steps = math.ceil(sum(sampling.counted(training, sizes)) / sum(self._counts))
        else:
            self._repeats = sampling.steps_per_epoch(training, sizes, self._counts)
            steps = sum(self._repeats)
        self.natural_steps = steps
        self.steps = training.steps_per_epoch or steps
        trained = {name: suite[name].rows[Role.TRAIN].labels for name in tasks}
        self._complete = {name for name, y in trained.items() if isinstance(y, Tensor) and bool(labelled(y).all())}
        self._order: tuple[int, Tensor, Tensor] | None = None

    @property
    def tasks_per_step(self) -> int:
        """How many tasks have rows in a step: all, or one where the batching says so."""
        return len(self._tasks) if self._training.batching == "all_tasks" else 1

    def alone(self, task: str, number: int) -> Batch:
        """The rows of one task in the ``number``-th step that it takes part in, counted from 0."""
        place = next(i for i, group in enumerate(self._groups) if task in dict(group.tasks))
        group = self._groups[place]
        (rows,) = self._shares([self._streams[place].batch(number)])
        return collate([(group.inputs, rows, [(task, dict(group.tasks)[task])])], self._padding, self._complete)

    def batch(self, step: int) -> Batch:
        """The rows of a step, counted from the start of the phase."""
        if self._training.batching == "all_tasks":
            chosen = [(group, step) for group in range(len(self._groups))]
        else:
            chosen = [self._turn(step)]
        rows = self._shares([self._streams[g].batch(number) for g, number in chosen])
        groups = [self._groups[g] for g, _ in chosen]
        return collate(
            [(group.inputs, taken, group.tasks) for group, taken in zip(groups, rows, strict=True)],
            self._padding,
            self._complete,
        )

    def _shares(self, rows: list[Tensor]) -> list[Tensor]:
        """This process's share of the rows of each group: every ``world``-th of all of them, end to end."""
        if self._world == 1:
            return rows
        if (total := sum(map(len, rows))) < self._world:
            raise SteelyardError(
                f"a step has {total} rows, fewer than the {self._world} processes that share them; raise batch_size, "
                "set sampling = 'balanced', or launch fewer processes"
            )
        starts = [sum(map(len, rows[:place])) for place in range(len(rows))]
        return [
            taken[(self._rank - start) % self._world :: self._world] for taken, start in zip(rows, starts, strict=True)
        ]

    def scale(self, step: int) -> Tensor | None:
        """What each task's loss is multiplied with so that steps on one task add up to the weighted sum, ``[T]``.

        With one task per step it is one over the share of the steps that the task gets; otherwise None (1).
        """
        if self._training.batching == "all_tasks":
            return None
        group, _ = self._turn(step)
        share = self._repeats[group] / sum(self._repeats)
        names = {name for name, _ in self._groups[group].tasks}
        return torch.tensor([1 / share if name in names else 0.0 for name in self._tasks])

    def _turn(self, step: int) -> tuple[int, int]:
        """Whose turn it is, and how often it was this group's turn before."""
        total = sum(self._repeats)
        epoch, place = divmod(step, total)
        if self._order is None or self._order[0] != epoch:
            order = torch.repeat_interleave(torch.tensor(self._repeats))
            order = order[torch.randperm(total, generator=seeded(self._training.seed, "turns", epoch))]
            hot = torch.nn.functional.one_hot(order, len(self._repeats))
            earlier = (hot.cumsum(0) - hot).gather(1, order[:, None])[:, 0]
            self._order = (epoch, order, earlier)
        group = int(self._order[1][place])
        return group, epoch * self._repeats[group] + int(self._order[2][place])


def draw(suite: Suite, tasks: tuple[str, ...], role: Role, size: int, generator: torch.Generator) -> Batch:
    """Random rows of a role, without replacement: ``size`` of each task, or all if there are fewer.

    Every process that draws from the same generator has them all.
    """
    found = collate(
        [
            (g.inputs, torch.randperm(len(g.inputs), generator=generator)[:size], g.tasks)
            for g in groups(suite, tasks, role)
        ],
        suite.spec.padding,
    )
    return Batch(found.parts, whole=True)


def label_counts(batch: Batch, tasks: tuple[str, ...]) -> Tensor:
    """How many labels each task has in a batch, ``[T]``."""
    place = {name: i for i, name in enumerate(tasks)}
    counts = torch.zeros(len(tasks))
    for part in batch.parts:
        for member in part.members:
            counts[place[member.task]] += labelled(member.labels).sum().cpu()
    return counts
