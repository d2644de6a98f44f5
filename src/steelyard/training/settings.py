"""How to train: the ``[training]`` table, and the phases that a paradigm stands for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from steelyard.errors import SteelyardError
from steelyard.tasks import Suite


class Paradigm(StrEnum):
    """In which order tasks are trained, and from which weights a method starts."""

    SINGLE = "single"
    """The target alone."""
    JOINT = "joint"
    """All tasks together; every example counts the same (w_t = n_t / Σn)."""
    NORMALISED_JOINT = "normalised_joint"
    """All tasks together; every task counts the same (w_t = 1/T)."""
    PRETRAIN = "pretrain"
    """The sources together, then the target alone from what they taught."""


class Training(BaseModel):
    """The settings of the training loop, with their defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paradigm: Paradigm = Paradigm.NORMALISED_JOINT
    epochs: Annotated[int, Field(ge=1, description="passes over as many rows as all tasks have together")] = 10
    finetune_epochs: Annotated[
        int | None,
        Field(
            ge=1,
            description="epochs on the target afterwards: after pre-training always, after joint training if given",
        ),
    ] = None
    batch_size: Annotated[int, Field(ge=1, description="rows of each task in a step")] = 32
    batch_sizes: Annotated[
        dict[str, Annotated[int, Field(ge=1)]], Field(description="other batch sizes, by the names of tasks")
    ] = {}
    accumulate: Annotated[
        int, Field(ge=1, description="micro-batches per step: a step's rows are accumulate × batch_size")
    ] = 1
    batching: Annotated[
        Literal["all_tasks", "one_task"], Field(description="all tasks in each step, or one task per step")
    ] = "all_tasks"
    sampling: Annotated[
        Literal["balanced", "proportional", "temperature", "capped"],
        Field(
            description="as many rows of each task, or in proportion to its size, to a root of it, or to it up to cap"
        ),
    ] = "balanced"
    temperature: Annotated[
        float, Field(ge=1, description="with sampling = 'temperature': rows in proportion to size ** (1 / temperature)")
    ] = 2.0
    cap: Annotated[
        int | None, Field(ge=1, description="with sampling = 'capped': so many rows of a task count at most")
    ] = None
    length_pool: Annotated[
        int, Field(ge=1, description="steps whose texts are sorted by length together, so that less is padded")
    ] = 1
    steps_per_epoch: Annotated[int | None, Field(ge=1, description="instead of a pass over the rows")] = None
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    finetune_learning_rate: Annotated[float | None, Field(gt=0)] = None
    optimizer: Annotated[str, Field(description="any optimiser of torch.optim, by name")] = "AdamW"
    optimizer_options: dict[str, Any] = {}
    schedule: Annotated[
        str, Field(description="constant, linear, cosine, or any scheduler of torch.optim.lr_scheduler")
    ] = "constant"
    schedule_options: dict[str, Any] = {}
    warmup: Annotated[float, Field(ge=0, lt=1, description="share of the steps in which the rate rises")] = 0.0
    clip: Annotated[float | None, Field(gt=0, description="largest gradient norm")] = None
    patience: Annotated[
        int | None, Field(ge=1, description="stop after so many epochs without a better one by the dev rows")
    ] = None
    keep: Annotated[Literal["best", "last"], Field(description="which epoch's model, by the dev metric")] = "best"
    precision: Annotated[Literal["no", "bf16", "fp16"], Field(description="mixed precision")] = "no"
    device: Annotated[Literal["auto", "cpu"], Field(description="auto: an accelerator if there is one")] = "auto"
    trackers: Annotated[list[str], Field(description="tensorboard, mlflow, wandb, …")] = []
    checkpoint_seconds: Annotated[float, Field(ge=0, description="seconds between checkpoints")] = 30.0
    log_every: Annotated[int, Field(ge=1, description="steps between lines of weights.csv")] = 20
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _cap_and_sampling_agree(self) -> Training:
        if (self.cap is None) == (self.sampling == "capped"):
            said = "needs cap = …" if self.cap is None else "has no use for cap"
            raise ValueError(f"sampling = {self.sampling!r} {said}")
        return self

    @field_validator("optimizer")
    @classmethod
    def _optimizer_exists(cls, value: str) -> str:
        import torch

        known = {n.lower(): n for n in dir(torch.optim) if n[0].isupper() and n != "Optimizer"}
        if value.lower() not in known:
            raise ValueError(f"is not an optimiser of torch.optim ({', '.join(sorted(known.values()))})")
        return known[value.lower()]


@dataclass(frozen=True)
class Phase:
    """A stretch of training on a fixed set of tasks."""

    name: str
    tasks: tuple[str, ...]
    epochs: int
    learning_rate: float
    by_size: bool
    """Whether initial weights are in proportion to the tasks' sizes."""
    weighted: bool
    """Whether the method weighs it; the target's fine-tuning has nothing to weigh."""


def phases(training: Training, suite: Suite) -> list[Phase]:
    """What a paradigm means for a suite."""
    paradigm, everything = training.paradigm, tuple(suite.tasks)
    rate, epochs = training.learning_rate, training.epochs
    if paradigm in (Paradigm.SINGLE, Paradigm.PRETRAIN) and suite.target is None:
        raise SteelyardError(f"paradigm {paradigm!r} needs a target; name one: Suite(tasks, target=…)")
    if paradigm is Paradigm.SINGLE:
        return [Phase("target", (str(suite.target),), epochs, rate, False, True)]
    if paradigm is Paradigm.PRETRAIN:
        if not suite.sources:
            raise SteelyardError("paradigm 'pretrain' needs at least one source besides the target")
        after = training.finetune_epochs or epochs
        return [
            Phase("pretrain", tuple(suite.sources), epochs, rate, False, True),
            Phase("finetune", (str(suite.target),), after, training.finetune_learning_rate or rate, False, False),
        ]
    joint = Phase("joint", everything, epochs, rate, paradigm is Paradigm.JOINT, True)
    if training.finetune_epochs is None or suite.target is None:
        return [joint]
    last = training.finetune_learning_rate or rate
    return [joint, Phase("finetune", (suite.target,), training.finetune_epochs, last, False, False)]
