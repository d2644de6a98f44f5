"""What a training will cost: its steps, its time and its memory, told from a few steps that are thrown away."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from steelyard import methods
from steelyard.errors import SteelyardError
from steelyard.methods import Method
from steelyard.tasks import Suite
from steelyard.training import Training, fit
from steelyard.training.batching import Batcher
from steelyard.training.memory import Peak

TRIED = 10
"""Steps that are timed."""

Asked = str | Method | Mapping[str, Any]


@dataclass(frozen=True)
class Cost:
    """What a whole training takes.

    Attributes:
        method: The method.
        steps: Steps of the whole training.
        seconds: About how long it takes here.
        peak_mb: The process's memory at its peak, Python, torch and the data included.
    """

    method: str
    steps: int
    seconds: float
    peak_mb: float


def cost(
    suite: Suite, encoder: nn.Module | str, method: Asked, training: Training, options: Mapping[str, Any] | None = None
) -> Cost:
    """Takes a few steps four times over, with evaluation and all that a method keeps between steps.

    The steps whose memory is told have rows of any length beside each other, as the longest batch of a training has
    them. A checkpoint goes from memory to its file, and so nothing is written here.

    Args:
        suite: The tasks.
        encoder: A module (it stays as it is), or the name of an encoder.
        method: The method, as `fit` takes it.
        training: Settings of the loop.
        options: Options of a named encoder.
    """
    name = methods.build(method).name
    alone = name == "single"
    if alone and suite.target is None:
        raise SteelyardError("method 'single' needs a target; name one: Suite(tasks, target=…)")
    steps = Batcher(suite, (str(suite.target),) if alone else tuple(suite.tasks), training).steps

    def took(epochs: int, length: int, **changes: Any) -> float:
        short = {"epochs": epochs, "steps_per_epoch": length, "patience": None, "trackers": [], **changes}
        begun, fresh = time.perf_counter(), copy.deepcopy(encoder)
        chosen = training.model_copy(update=short)
        fit(suite, fresh, copy.deepcopy(method), training=chosen, encoder_options=options, progress=False)
        return time.perf_counter() - begun

    gc.collect()
    peak = Peak()
    took(2, 1 + TRIED, length_pool=1)  # it also does what is done once in a process, which is not what training costs
    most = peak.megabytes
    base, longer, again = took(1, 1), took(1, 1 + TRIED), took(3, 1)
    step = max(0.0, longer - base) / TRIED
    epoch = max(0.0, (again - base) / 2 - step)
    seconds = base + training.epochs * (steps * step + epoch)
    return Cost(name, steps * training.epochs, seconds, most - _copied(encoder))


def _copied(encoder: nn.Module | str) -> float:
    """The MB of a module's copy, which a training has no need of."""
    if isinstance(encoder, str):
        return 0.0
    return float(sum(value.nbytes for value in encoder.state_dict().values())) / 2**20
