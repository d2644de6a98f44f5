"""What a method is."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.gradients import LayerTraces, TaskGradients
from steelyard.methods.job import Job, Objective, Penalty, Weights
from steelyard.model import SharedModel
from steelyard.tasks import Batch, Suite

Search = Mapping[str, Sequence[Any]]
"""Values worth trying for options, by name."""


class Options(BaseModel):
    """A method's options; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Method(ABC):
    """A way to weigh tasks. The loop calls `start`, then `step` again and again, and `after_epoch`.

    A new method is one file with one subclass and one line in the registry. Everything that changes during
    training lives in ``state``, a dictionary of tensors, which checkpoints keep.
    """

    name: ClassVar[str]
    """What users call it."""
    summary: ClassVar[str]
    """What it does, in a line."""
    paper: ClassVar[str] = ""
    """Where it comes from."""
    range: ClassVar[Literal["simplex", "nonnegative", "real"]] = "simplex"
    """What its weights promise: to be a distribution, only not to be negative, or nothing."""
    scale_free: ClassVar[bool] = True
    """Whether multiplying every loss by one constant leaves the weights as they are."""
    paradigm: ClassVar[str | None] = None
    """The only training paradigm that makes sense for it, if there is one."""
    needs_target: ClassVar[bool] = False
    """Whether it needs a suite with a target."""
    fine_tunes: ClassVar[bool] = False
    """Whether it also takes the steps of the target's fine-tuning after pre-training, where nothing is weighed."""
    cost: ClassVar[str] = "1 step"
    """What a step costs, in words and in plain training steps: ``"1 step, and a probe of 32 rows per epoch"``."""
    composes: ClassVar[bool] = True
    """Whether it weighs losses by `descend`, `dissect` or `minimise` alone, so that their gradients can be combined."""
    Options: ClassVar[type[Options]] = Options
    """Its options, as a pydantic model with defaults."""
    search: ClassVar[Search] = {}
    """Values worth trying for some options, by name, where a comparison tunes every method by the same budget."""
    combination: Method | None = None
    """What takes the place of the weighted sum of gradients, where two methods are composed."""

    def __init__(self, **options: Any) -> None:
        self.options = _parsed(type(self), options)
        self.state: dict[str, Tensor] = {}

    @classmethod
    def details(cls) -> str:
        """What ``steelyard methods NAME`` says below the options: by default nothing."""
        return ""

    @property
    def weights(self) -> Tensor:
        """The weights ``[T]`` that the next step uses."""
        return self.state["weights"]

    @weights.setter
    def weights(self, value: Tensor) -> None:
        self.state["weights"] = value

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Before anything else: the suite with the roles that the method needs (see `steelyard.tasks.carve`)."""
        del seed
        return suite

    def adapt(self, model: SharedModel) -> None:
        """Adds the method's own modules to a new model, before training and when a run is read back.

        What is added as ``model.add_module("method", …)`` is trained without weight decay, and kept in checkpoints
        and in ``model.safetensors`` with the rest.
        """

    @property
    def matched(self) -> bool:
        """Whether it takes as many steps as training on all tasks would, however few it trains."""
        return False

    def start(self, job: Job) -> None:
        """Before the first step: by default the paradigm's weights."""
        self.weights = job.initial_weights.clone()

    def step(self, job: Job) -> None:
        """One training step: by default, descend along the weighted losses."""
        self.descend(job, job.batch(), self.weights)

    def descend(
        self,
        job: Job,
        batch: Batch,
        weights: Weights,
        row_weights: Mapping[str, Tensor] | None = None,
        penalty: Penalty | None = None,
    ) -> Tensor:
        """The step along the weighted losses (`Job.descend`); where a combination of gradients is set, along that."""
        if self.combination is not None:
            return self.combination.descend(job, batch, weights, row_weights, penalty)
        return job.descend(batch, weights, row_weights, penalty)

    def dissect(self, job: Job, batch: Batch, weights: Tensor, scope: str = "all") -> tuple[Tensor, TaskGradients]:
        """The step with every task's gradient before it (`Job.dissect`); a combination needs a probe for them."""
        if self.combination is None:
            return job.dissect(batch, weights, scope)
        with job.probe(batch, scope) as probe:
            found = probe.task_gradients(keep=False)
        return self.descend(job, batch, weights), found

    def trace(
        self, job: Job, batch: Batch, weights: Tensor, scope: str = "all"
    ) -> tuple[Tensor, TaskGradients | LayerTraces]:
        """The step with what inner products need of every task's gradient before it (`Job.trace`), likewise."""
        if self.combination is None:
            return job.trace(batch, weights, scope)
        with job.probe(batch, scope) as probe:
            traces = probe.traced()
        return self.descend(job, batch, weights), traces

    def minimise(self, job: Job, batch: Batch, objective: Objective, weights: Tensor) -> Tensor:
        """The step on an objective of the losses (`Job.minimise`), likewise."""
        if self.combination is not None:
            return self.combination.minimise(job, batch, objective, weights)
        return job.minimise(batch, objective, weights)

    def after_epoch(self, job: Job) -> None:
        """After each epoch: by default nothing."""

    def row_weights(self) -> Mapping[str, Tensor]:
        """What each training row counts for within its task, ``[n_t]`` with mean 1, by task: by default nothing."""
        return {}

    def notes(self) -> dict[str, float]:
        """What an epoch's line of ``metrics.jsonl`` says of the method besides its weights: by default nothing."""
        return {}

    def files(self, history: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """What the method adds to the run folder at the end, name to text, from the lines of ``metrics.jsonl``."""
        del history
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """All that a resumed run needs."""
        return {name: value.clone() for name, value in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes the state of another run of the same method."""
        self.state = {name: value.clone() for name, value in state.items()}


def _parsed(method: type[Method], options: dict[str, Any]) -> Options:
    try:
        return method.Options(**options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = list(method.Options.model_fields)
            hint = did_you_mean(key, known) or f"its options are {', '.join(known) or 'none'}"
            raise SteelyardError(f"method {method.name!r} has no option {key!r}; {hint}") from None
        raise SteelyardError(
            f"method {method.name!r}, option {key!r}: {first['msg']}, not {first['input']!r}"
        ) from None
