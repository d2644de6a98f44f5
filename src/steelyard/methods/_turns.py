"""Every task alone from the same start: what αVIL and DIW share. All of it lives in the method's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.methods.job import Job
from steelyard.tasks import Role, Suite, carve

State = dict[str, Tensor]


@dataclass(frozen=True)
class Turn:
    """One optimiser step on one task.

    Attributes:
        task: The task's place among the job's.
        number: Which of the task's batches it is.
        first: Whether the task's turn begins with it.
        last: Whether the task's turn ends with it.
    """

    task: int
    number: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Round:
    """Steps of the loop in which every task has one turn, on the rows that joint training would show it in them.

    Attributes:
        first: The loop's step that it begins with.
        steps: How many of the loop's steps it takes.
        tasks: How many tasks there are.
        per_step: Optimiser steps per step of the loop: as many tasks as have rows in a joint step.
    """

    first: int
    steps: int
    tasks: int
    per_step: int

    @classmethod
    def of(cls, job: Job, ratio: float) -> Round:
        """The round that the job's step is in, where each epoch is cut into rounds of about ``ratio`` epochs."""
        length = job.steps_per_epoch
        count = max(1, min(length, round(1 / ratio)))
        epoch, place = divmod(job.step, length)
        number = ((place + 1) * count - 1) // length
        first, end = length * number // count, length * (number + 1) // count
        return cls(epoch * length + first, end - first, len(job.tasks), job.tasks_per_step)

    @property
    def end(self) -> int:
        """The loop's step after its last."""
        return self.first + self.steps

    def turns(self, step: int) -> Iterator[Turn]:
        """The optimiser steps that belong to a step of the loop."""
        units = max(self.tasks, self.steps * self.per_step)
        place, offset = step - self.first, self.first * self.per_step // self.tasks
        for unit in range(place * units // self.steps, (place + 1) * units // self.steps):
            task = ((unit + 1) * self.tasks - 1) // units
            begin, end = task * units // self.tasks, (task + 1) * units // self.tasks
            yield Turn(task, offset + unit - begin, unit == begin, unit + 1 == end)


def under(state: Mapping[str, Tensor], prefix: str) -> State:
    """The entries whose names begin with a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def put(state: State, prefix: str, values: Mapping[str, Tensor]) -> None:
    """Replaces the entries under a prefix."""
    drop(state, prefix)
    state.update({prefix + key: value for key, value in values.items()})


def drop(state: State, *prefixes: str) -> None:
    """Removes the entries under some prefixes."""
    for key in [key for key in state if key.startswith(prefixes)]:
        del state[key]


def open_round(state: State, job: Job) -> None:
    """Remembers where every task starts: parameters, buffers and randomness."""
    put(state, "start.", job.snapshot())
    put(state, "random.", randomness())


def begin_turn(state: State, job: Job, task: int) -> None:
    """Puts the round's start back, with what the optimiser remembers of this task's earlier turns, if anything."""
    job.restore(under(state, "start."))
    set_randomness(under(state, "random."))
    job.restore_moments(under(state, f"moments.{task}."))


def end_turn(state: State, job: Job, task: int, moments: bool) -> None:
    """Keeps what the optimiser remembers for the task's next turn, if asked to."""
    if moments:
        put(state, f"moments.{task}.", job.moments())


def with_dev_meta(suite: Suite, method: str, of_dev: float, of_train: float, seed: int) -> Suite:
    """The suite with held-out rows of the target that tune weights, and do not choose the model.

    Where the target has none, a share of its dev rows becomes ``dev_meta``; where it has no dev rows to spare, a
    share of its training rows. Tasks that share these rows with the target give them up too.
    """
    target = str(suite.target)
    for role, fraction in ((Role.DEV_SELECT, of_dev), (Role.TRAIN, of_train)):
        if Role.DEV_META in suite[target].rows:
            break
        if role in suite[target].rows:
            shared = suite[target].rows[role].inputs
            alike = [n for n, task in suite.tasks.items() if role in task.rows and task.rows[role].inputs is shared]
            suite = carve(suite, Role.DEV_META, role, fraction, seed, alike)
    if Role.DEV_META not in suite[target].rows:
        raise SteelyardError(
            f"task {target!r} has too few rows to hold some out for method {method!r}; give it rows with role dev_meta"
        )
    return suite


def randomness() -> State:
    """The states of torch's random generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state()} | {f"cuda{device}": state for device, state in enumerate(cuda)}


def set_randomness(states: Mapping[str, Tensor]) -> None:
    """Puts `randomness` back."""
    torch.set_rng_state(states["cpu"].cpu())
    for name, state in states.items():
        if name != "cpu":
            torch.cuda.set_rng_state(state.cpu(), int(name.removeprefix("cuda")))
