"""What sources teach: a representation trained on them, or what they say of an encoder that is not trained."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from steelyard import gradients
from steelyard.diagnostics._frozen import batches
from steelyard.methods import base
from steelyard.methods.base import Method
from steelyard.methods.job import Job
from steelyard.model import SharedModel
from steelyard.tasks import Role, Suite
from steelyard.training import Paradigm, Training, fit


class Given(Method):
    """Weights that stay as they are given."""

    name = "given"
    summary = "weights that stay as they are given"

    class Options(base.Options):
        """Options of `Given`."""

        weights: dict[str, float]

    options: Options

    def start(self, job: Job) -> None:
        """Takes them."""
        self.weights = torch.tensor([self.options.weights[name] for name in job.tasks]).to(job.initial_weights)


def shared_length(suite: Suite, sources: Collection[str], training: Training) -> int:
    """Steps per epoch of every representation: the user's, or a pass over a source of mean size."""
    rows = sum(suite[name].size() for name in sources) / len(sources)
    return training.steps_per_epoch or math.ceil(rows / (training.batch_size * training.accumulate))


def learned(
    suite: Suite, model: SharedModel, mixture: Mapping[str, float], training: Training, length: int
) -> SharedModel:
    """The model after training on Σ ω_t L_t, with the heads that it had before.

    Its last state is taken: no held-out row has a say. Best heads are then looked for from one start everywhere.
    """
    heads = copy.deepcopy(model.heads.state_dict())
    tasks = [
        suite[name].with_rows({Role.TRAIN: suite[name].rows[Role.TRAIN]}) for name in suite.tasks if name in mixture
    ]
    part = Suite(tasks, None, suite.allow, suite.spec.padding, suite.spec.vocabulary or None)
    changes: dict[str, Any] = {
        "keep": "last", "paradigm": Paradigm.NORMALISED_JOINT, "steps_per_epoch": length, "patience": None,
        "trackers": [],
    }  # fmt: skip
    fit(part, model, Given(weights=dict(mixture)), training=training.model_copy(update=changes), progress=False)
    model.heads.load_state_dict(heads)
    return model


def gradient_of(model: SharedModel, suite: Suite, task: str, head: nn.Module, role: Role) -> Tensor:
    """∇_φ of a task's mean loss over all rows of a role, with a given head, ``[P]`` in float64 on the CPU."""
    model = copy.deepcopy(model)
    parameters = list(model.scope("shared", trainable=True).values())
    place = next(key for key, own in model.heads.items() if own is model.head(task))
    model.heads[place] = copy.deepcopy(head).to(parameters[0])
    total, labels = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64), 0.0
    with gradients.pure(model):
        for batch in batches(suite, task, role):
            found = model.losses(batch.to(parameters[0].device))
            parts = torch.autograd.grad(found.sums.sum(), parameters, allow_unused=True, materialize_grads=True)
            total += torch.cat([part.flatten() for part in parts]).double().cpu()
            labels += float(found.counts.sum())
    return total / max(labels, 1.0)
