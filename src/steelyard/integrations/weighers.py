"""Who weighs the tasks of a step: the methods' drop-in forms, by the names of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.methods.metaweighting import QueryWeights
from steelyard.methods.tawt import TargetWeights

Losses = Mapping[str, Tensor]
"""Each task's mean loss on its rows of a step, with its graph."""


class Weigher(ABC):
    """Weighs the losses of a step.

        loss = weigher.total({"mine": …, "reviews": …})    # then backward and step, as ever
        weigher.after_step(losses_of)                       # after the optimiser's step

    Args:
        tasks: The names of the tasks.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks = tuple(tasks)
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise SteelyardError("a weigher needs at least one task, and each name once")
        self.value = torch.full((len(self.tasks),), 1 / len(self.tasks), dtype=torch.float64)

    @property
    def weights(self) -> dict[str, float]:
        """Each task's weight; together they are 1."""
        return dict(zip(self.tasks, self.value.tolist(), strict=True))

    def total(self, losses: Losses) -> Tensor:
        """Σ w_t L_t, a scalar to go backward from."""
        stacked = self._stacked(losses)
        self.look(stacked)
        total: Tensor = (self.value.to(stacked) * stacked).sum()
        return total

    @abstractmethod
    def look(self, losses: Tensor) -> None:
        """Takes in a step's losses ``[T]``, with their graph, before its backward."""

    def after_step(self, losses_of: Callable[[Any], Losses]) -> None:
        """After the optimiser's step; ``losses_of`` gives the losses on a batch of held-out rows."""
        del losses_of

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed loop needs."""
        return {"value": self.value.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` of another."""
        self.value = state["value"].clone()

    def _stacked(self, losses: Losses) -> Tensor:
        missing = [task for task in self.tasks if task not in losses]
        unknown = [task for task in losses if task not in self.tasks]
        if missing or unknown:
            raise SteelyardError(
                f"the step has no loss of task {missing[0]!r}"
                if missing
                else f"there is no task {unknown[0]!r}; the tasks are {', '.join(self.tasks)}"
            )
        for task in self.tasks:
            if losses[task].numel() != 1:
                raise SteelyardError(f"task {task!r}: its loss must be one number, not {list(losses[task].shape)}")
        if type(self).look is not Uniform.look and _processes() > 1:
            raise SteelyardError(
                "task weights are learned in one process only here: replicas would drift apart; "
                "steelyard.fit runs under accelerate launch"
            )
        return torch.stack([losses[task].reshape(()) for task in self.tasks])


class Uniform(Weigher):
    """Every task counts the same: the control."""

    def look(self, losses: Tensor) -> None:
        """Looks at nothing."""


class TargetFirst(Weigher):
    """TAWT: sources whose gradients agree with the target's gain weight (`steelyard.methods.tawt.TargetWeights`).

    Args:
        parameters: The shared parameters alone, no head.
        target: The task that matters.
        sources: The others.
        share: The target's weight; by default that of one among equals.
        observe_every: Steps between two looks at the gradients; a look costs a backward per task.
        update_every: Steps between two updates of the weights.
        **options: Options of `TargetWeights`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        target: str,
        sources: Sequence[str],
        *,
        share: float | None = None,
        observe_every: int = 10,
        update_every: int = 50,
        **options: Any,
    ) -> None:
        super().__init__((target, *sources))
        if not 1 <= observe_every <= update_every:
            raise SteelyardError("TargetFirst: observe_every is at least 1, and at most update_every")
        self._share = 1 / len(self.tasks) if share is None else share
        if not 0 <= self._share <= 1:
            raise SteelyardError(f"TargetFirst: share = {share}: it is a weight, from 0 to 1")
        self._parameters, self._options = list(parameters), options
        self._observe_every, self._update_every = observe_every, update_every
        self._step, self._learner = 0, TargetWeights(self._parameters, len(sources), **options)
        self._compose()

    def look(self, losses: Tensor) -> None:
        """Observes and updates when it is time."""
        self._step += 1
        if self._step % self._observe_every == 0:
            self._follow(losses.device)
            self._learner.observe(losses[0], losses[1:])
        if self._step % self._update_every == 0:
            self._learner.update()
            self._compose()

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed loop needs."""
        return super().state_dict() | {"step": self._step, "learner": self._learner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` of another."""
        super().load_state_dict(state)
        self._step = int(state["step"])
        self._learner.load_state_dict(state["learner"])

    def _compose(self) -> None:
        mixture = self._learner.mixture.detach().double().cpu()
        self.value = torch.cat([torch.tensor([self._share], dtype=torch.float64), (1 - self._share) * mixture])

    def _follow(self, device: torch.device) -> None:
        """Moves what was learned to where the model is: trainers move models after they were made."""
        if self._learner.mixture.device != device:
            state = {name: value.to(device) for name, value in self._learner.state_dict().items()}
            self._learner = TargetWeights(self._parameters, len(self.tasks) - 1, **self._options)
            self._learner.load_state_dict(state)


class QueryFirst(Weigher):
    """MetaWeighting: weights that follow the losses on rows kept out of training (`QueryWeights`).

    Args:
        parameters: All that the step moves, heads too.
        tasks: The names of the tasks.
        query: Batches of held-out rows of every task, ``{task: batch}``; they come round again.
        **options: Options of `QueryWeights`.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], tasks: Sequence[str], query: Iterable[Any], **options: Any
    ) -> None:
        super().__init__(tasks)
        self._query, self._batches = query, _again(query)
        self._parameters, self._options = list(parameters), options
        self._learner: QueryWeights | None = None

    def look(self, losses: Tensor) -> None:
        """Takes the step's own gradients."""
        self._learned().support(losses)

    def after_step(self, losses_of: Callable[[Any], Losses]) -> None:
        """Moves the weights by the losses on the next query batch."""
        learner = self._learned()
        learner.query(self._stacked(losses_of(next(self._batches))))
        self.value = learner.value.detach().double().cpu() / len(self.tasks)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` of another."""
        super().load_state_dict(state)
        self._learner = None

    def _learned(self) -> QueryWeights:
        """Made when it is first needed: trainers move models after they were made."""
        if self._learner is None:
            self._learner = QueryWeights(self._parameters, len(self.tasks), **self._options)
            self._learner.value = (self.value * len(self.tasks)).to(self._learner.value)
        return self._learner


def _processes() -> int:
    known = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if known else 1


def _again(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        count = 0
        for batch in batches:
            count += 1
            yield batch
        if not count:
            raise SteelyardError("QueryFirst: there are no query batches")
