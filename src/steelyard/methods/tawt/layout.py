"""Who stands on the simplex, and how a mixture and the target's share make the tasks' weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.methods.job import Job
from steelyard.tasks import Suite


@dataclass(frozen=True)
class Layout:
    """The tasks of a phase, seen by TAWT.

    Attributes:
        players: The places of the tasks that the simplex ranges over.
        targets: The places of the targets that are trained in this phase, unless they are players.
        portions: What each of ``targets`` has of the target's share, adding up to 1.
    """

    players: tuple[int, ...]
    targets: tuple[int, ...]
    portions: tuple[float, ...]

    @classmethod
    def of(cls, tasks: tuple[str, ...], goal: Mapping[str, float], together: bool) -> Layout:
        """The layout of a phase.

        Args:
            tasks: The tasks that are trained, in the job's order.
            goal: The targets and how much each counts, adding up to 1.
            together: Whether targets are on the simplex with the sources, as in the paper.
        """
        sources = tuple(i for i, name in enumerate(tasks) if name not in goal)
        targets = tuple(i for i, name in enumerate(tasks) if name in goal)
        if together or not sources:
            return cls(tuple(range(len(tasks))), (), ())
        total = sum(goal[tasks[i]] for i in targets)
        return cls(sources, targets, tuple(goal[tasks[i]] / total for i in targets))

    def compose(self, mixture: Tensor, share: Tensor) -> Tensor:
        """The weights ``[T]``: (1 − share)·mixture on the players, share·portions on the targets; they sum to 1."""
        weights = mixture.new_zeros(len(self.players) + len(self.targets))
        weights[list(self.players)] = (1 - share) * mixture if self.targets else mixture
        if self.targets:
            weights[list(self.targets)] = share * torch.tensor(self.portions).to(mixture)
        return weights

    def names(self, job: Job) -> tuple[str, ...]:
        """The players' names."""
        return tuple(job.tasks[i] for i in self.players)


def goal_of(suite: Suite, given: Mapping[str, float] | None) -> dict[str, float]:
    """The targets and how much each counts, adding up to 1: those given, or the suite's one."""
    wanted = {str(suite.target): 1.0} if given is None else dict(given)
    known_tasks(suite, wanted, "targets")
    if not wanted:
        raise SteelyardError("method 'tawt', option 'targets': name at least one task")
    total = sum(wanted.values())
    return {name: value / total for name, value in wanted.items()}


def known_tasks(suite: Suite, names: Mapping[str, object], option: str) -> None:
    """Refuses names that are no task of the suite."""
    for name in names:
        if name not in suite.tasks:
            hint = did_you_mean(name, suite.tasks) or f"the tasks are {', '.join(suite.tasks)}"
            raise SteelyardError(f"method 'tawt', option {option!r}: there is no task {name!r}; {hint}")
