"""Data as users have them: labels missing, tasks absent, tiny and huge, one or a hundred, all labels alike."""

from __future__ import annotations

import math
from typing import Any

import torch

from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Suite
from steelyard.testing.materials import MakeMethod, plain_encoder, suite
from steelyard.testing.materials import train as _train
from steelyard.training import Run

QUICK: dict[str, Any] = {"epochs": 2, "steps_per_epoch": 3}


def train(make: MakeMethod, data: Suite | None = None, **settings: Any) -> Run:
    """A run that is long enough for weights to move twice."""
    return _train(make, data, **(QUICK | settings))


def bears_missing_labels(make: MakeMethod) -> None:
    """Rows without a label break nothing, and steps in which a task has none break nothing."""
    must_be_sound(train(make, suite(missing=True)), "rows without labels")
    data = suite()
    data["task1"].rows["train"].labels[2:].fill_(IGNORE)  # type: ignore[index]
    must_be_sound(train(make, data), "steps in which a task has no label")


def bears_absent_tasks(make: MakeMethod) -> None:
    """With one task per step a method trains, or says that it needs all of them in a step."""
    try:
        must_be_sound(train(make, batching="one_task"), "a step without most tasks")
    except SteelyardError as error:
        assert "batching = 'all_tasks'" in str(error), f"refused, but without what to do: {error}"


def bears_unequal_sizes(make: MakeMethod) -> None:
    """Tasks of 5 and of 50,000 rows train together, whichever is the target, under both ways of sampling."""
    for sizes in ((5, 50_000), (50_000, 5)):
        for sampling in ("balanced", "proportional"):
            data = suite(2, sizes, held_out=5)
            run = train(make, data, sampling=sampling, network=plain_encoder)
            must_be_sound(run, f"tasks of {sizes[0]} and {sizes[1]} rows, sampling {sampling}")


def works_alone(make: MakeMethod) -> None:
    """A suite of one task trains, with weight 1 where weights are a distribution over it alone."""
    method = make()
    if method.paradigm == "pretrain":
        return
    run = train(lambda: method, suite(tasks=1))
    must_be_sound(run, "a single task")
    if method.range == "simplex" and len(run.weights) == 1:  # a method may make tasks of its own
        assert abs(run.weights["task0"] - 1) < 1e-5, f"the only task has weight {run.weights['task0']}"


def bears_many_tasks(make: MakeMethod) -> None:
    """A hundred tasks train together."""
    run = train(make, suite(100, [6] * 100, held_out=3), epochs=1, steps_per_epoch=1, batch_size=2)
    must_be_sound(run, "a hundred tasks")


def refuses_duplicate_names(make: MakeMethod) -> None:
    """Two tasks of one name are refused by that name, before a method sees them."""
    data = suite()
    try:
        train(make, Suite([*data.tasks.values(), data["task1"]], target="task0"))
    except SteelyardError as error:
        assert "'task1'" in str(error), f"the message does not name the task: {error}"
    else:
        raise AssertionError("two tasks of one name were not refused")


def bears_constant_labels(make: MakeMethod) -> None:
    """A task all of whose labels are the same trains: a source, and the target."""
    for name in ("task1", "task0"):
        data = suite()
        for rows in data[name].rows.values():
            rows.labels.fill_(1)  # type: ignore[union-attr]
        must_be_sound(train(make, data), f"all labels of {name} alike")


def must_be_sound(run: Run, what: str) -> None:
    """Parameters and weights of a run are finite numbers."""
    broken = [name for name, p in run.model.named_parameters() if not bool(torch.isfinite(p).all())]
    assert not broken, f"{what}: parameters {', '.join(broken)} are not finite numbers"
    for step, task, weight in run.weight_trace:
        assert math.isfinite(weight), f"{what}, step {step}: the weight of {task} is {weight}"
