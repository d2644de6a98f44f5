"""Combinations of gradients, and their composition with weights of losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal

import torch
from pydantic import create_model
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.methods._losses import require_all_tasks
from steelyard.methods.base import Method, Options
from steelyard.methods.job import Job, Objective, Penalty, Place, Weights
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Suite


class Combination(Method):
    """One direction for the shared parameters out of every task's own gradient.

    With weights w and k tasks that have a gradient, the shared parameters move along Σ λ_t g_t with g_t = k·w_t·∇L_t,
    so that λ_t = 1/k is the plain step; every head moves along its own w_t·∇L_t. A method says what λ is.
    """

    range: ClassVar[Literal["simplex", "nonnegative", "real"]] = "nonnegative"
    cost = "1.1 to 1.5 steps; a backward per task with BatchNorm or several labels per row"
    at: ClassVar[Place] = "parameters"
    """By what the gradients are taken that are compared."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.taken = 0
        """Steps taken by this object."""

    @abstractmethod
    def combine(self, gram: Tensor, tasks: Tensor, job: Job) -> Tensor:
        """λ, ``[k]``.

        Args:
            gram: Inner products ⟨g_t, g_s⟩, ``[k, k]`` in float64, with a positive diagonal; k ≥ 2.
            tasks: Which of the job's tasks these are, ``LongTensor[k]``.
            job: The job.
        """

    def start(self, job: Job) -> None:
        """The paradigm's weights; several tasks have to meet in a step."""
        require_all_tasks(self.name, job, "gradients")
        super().start(job)

    def descend(
        self,
        job: Job,
        batch: Batch,
        weights: Weights,
        row_weights: Mapping[str, Tensor] | None = None,
        penalty: Penalty | None = None,
    ) -> Tensor:
        """The step along the combination."""
        self.taken += 1
        rule = lambda gram: self._coefficients(gram, job)  # noqa: E731
        return job.combine(batch, weights, rule, row_weights, self.at, penalty=penalty)

    def minimise(self, job: Job, batch: Batch, objective: Objective, weights: Tensor) -> Tensor:
        """The same where the weights are an objective's slopes."""
        self.taken += 1
        rule = lambda gram: self._coefficients(gram, job)  # noqa: E731
        return job.combine(batch, weights, rule, at=self.at, objective=objective)

    def _coefficients(self, gram: Tensor, job: Job) -> Tensor:
        """K·λ, with 0 for tasks without gradient, which have no say: absent ones, weights of 0, constant losses."""
        tasks = (gram.diagonal() > 0).nonzero()[:, 0]
        found = torch.zeros(len(gram), dtype=gram.dtype, device=gram.device)
        if len(tasks) == 1:
            found[tasks] = 1.0
        elif len(tasks):
            own = gram[tasks[:, None], tasks] * len(tasks) ** 2
            found[tasks] = len(tasks) * self.combine(own, tasks, job).to(found)
        return found


class Composed(Method):
    """One method weighs the losses, another combines their gradients."""

    kinds: ClassVar[tuple[type[Method], type[Combination]]]
    """What weighs, and what combines."""

    def __init__(self, weights: Mapping[str, Any] | None = None, gradients: Mapping[str, Any] | None = None) -> None:
        weighing, combining = self.kinds
        self._join(weighing(**(weights or {})), combining(**(gradients or {})))

    def _join(self, weighing: Method, combining: Combination) -> None:
        self.weighing, self.combining = weighing, combining
        weighing.combination = combining
        super().__init__(weights=weighing.options, gradients=combining.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _joined, (self.weighing, self.combining)

    @property
    def weights(self) -> Tensor:
        """The weights of the losses ``[T]``."""
        return self.weighing.weights

    @weights.setter
    def weights(self, value: Tensor) -> None:
        self.weighing.weights = value

    @property
    def matched(self) -> bool:
        """As what weighs says."""
        return self.weighing.matched

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """What both need."""
        return self.combining.prepare(self.weighing.prepare(suite, seed), seed)

    def adapt(self, model: SharedModel) -> None:
        """What both add."""
        self.weighing.adapt(model)
        self.combining.adapt(model)

    def start(self, job: Job) -> None:
        """Both begin."""
        self.combining.start(job)
        self.weighing.start(job)

    def step(self, job: Job) -> None:
        """What weighs takes its step; wherever it would descend, the combination does."""
        before = self.combining.taken
        self.weighing.step(job)
        if self.combining.taken == before:
            raise _takes_its_own_steps(self.weighing.name, self.combining.name)

    def after_epoch(self, job: Job) -> None:
        """Of both."""
        self.weighing.after_epoch(job)
        self.combining.after_epoch(job)

    def notes(self) -> dict[str, float]:
        """Of both."""
        return self.weighing.notes() | self.combining.notes()

    def state_dict(self) -> dict[str, Tensor]:
        """Of both."""
        weighing, combining = self.weighing.state_dict(), self.combining.state_dict()
        return {f"weights.{k}": v for k, v in weighing.items()} | {f"gradients.{k}": v for k, v in combining.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Of both."""
        for side, method in (("weights.", self.weighing), ("gradients.", self.combining)):
            method.load_state_dict({k.removeprefix(side): v for k, v in state.items() if k.startswith(side)})


@cache
def pair(weighing: type[Method], combining: type[Method]) -> type[Composed]:
    """The method in which one weighs the losses and the other combines their gradients."""
    if issubclass(weighing, (Combination, Composed)):
        raise SteelyardError(f"method {weighing.name!r} combines gradients; it weighs no losses, so put it second")
    if not issubclass(combining, Combination):
        raise SteelyardError(f"method {combining.name!r} does not combine gradients, so it cannot be put second")
    if not weighing.composes:
        raise _takes_its_own_steps(weighing.name, combining.name)
    options = create_model(
        f"{weighing.__name__}{combining.__name__}Options",
        __base__=Options,
        weights=(weighing.Options, weighing.Options()),
        gradients=(combining.Options, combining.Options()),
    )
    about = {
        "__doc__": f"{weighing.__name__} weighs the losses, {combining.__name__} combines their gradients.",
        "__module__": __name__,
        "kinds": (weighing, combining),
        "name": f"{weighing.name}+{combining.name}",
        "summary": f"{weighing.summary}; {combining.summary}",
        "paper": "; ".join(filter(None, (weighing.paper, combining.paper))),
        "range": combining.range,
        "scale_free": weighing.scale_free and combining.scale_free,
        "paradigm": weighing.paradigm,
        "needs_target": weighing.needs_target or combining.needs_target,
        "cost": f"weights: {weighing.cost}; gradients: {combining.cost}",
        "search": {f"weights.{k}": v for k, v in weighing.search.items()}
        | {f"gradients.{k}": v for k, v in combining.search.items()},
        "Options": options,
    }
    return type(f"{weighing.__name__}{combining.__name__}", (Composed,), about)


def _joined(weighing: Method, combining: Combination) -> Composed:
    """Out of a pickle, which does not know classes that are made on the way."""
    kind = pair(type(weighing), type(combining))
    method = kind.__new__(kind)
    method._join(weighing, combining)
    return method


def _takes_its_own_steps(weighing: str, combining: str) -> SteelyardError:
    return SteelyardError(
        f"method {weighing!r} takes steps of its own (it does not descend by self.descend or self.minimise), "
        f"so {combining!r} cannot combine its gradients"
    )
