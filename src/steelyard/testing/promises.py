"""What every method promises: its weights' range, the same run from the same seed, resumption, purity, plain errors."""

from __future__ import annotations

import contextlib
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steelyard.testing.materials import MakeMethod, Watch, by_step, changed_loss, suite, train
from steelyard.training import Run
from steelyard.training.job import NonFiniteLossError
from steelyard.training.loop import Interrupted
from steelyard.training.progress import Silent


def keeps_its_range(make: MakeMethod) -> None:
    """Weights are what the method says: finite; not negative unless ``real``; a distribution if ``simplex``."""
    method = make()
    for step, weights in by_step(train(lambda: method, log_every=1)).items():
        values = list(weights.values())
        assert all(map(math.isfinite, values)), f"step {step}: weights {weights}"
        assert method.range == "real" or all(v >= 0 for v in values), f"step {step}: weights {weights}"
        if method.range == "simplex":
            assert abs(sum(values) - 1) < 1e-5, f"step {step}: weights {weights} sum to {sum(values)}"


def is_deterministic(make: MakeMethod) -> None:
    """Same seed, same result, bitwise."""
    first, second = train(make), train(make)
    _assert_same(first, second, "two runs with one seed differ")


def survives_interruption(make: MakeMethod) -> None:
    """Stopped at any step and resumed, a run ends bitwise where the uninterrupted one does."""
    whole = train(make)
    steps = whole.summary["steps"]
    for stop in sorted({1, steps // 3, steps // 2 + 1, steps - 1} - {0}):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            with contextlib.suppress(Interrupted):
                train(make, out=out, progress=StopAt(stop), log_every=1, checkpoint_seconds=0)
            resumed = train(make, out=out, log_every=1, checkpoint_seconds=0)
        _assert_same(whole, resumed, f"stopped at step {stop} and resumed, the run differs")


def moves_buffers_once(make: MakeMethod) -> None:
    """Only training steps move BatchNorm's statistics: no probe does."""
    run = train(make, keep="last")
    norm = next(m for m in run.model.modules() if isinstance(m, nn.BatchNorm1d))
    assert norm.num_batches_tracked is not None
    seen, steps = int(norm.num_batches_tracked), run.summary["steps"]
    assert seen <= steps, f"BatchNorm saw {seen} batches in {steps} steps: a probe moved it"


def bears_zero_gradients(make: MakeMethod) -> None:
    """A task whose loss never changes breaks nothing."""
    data = suite()
    data["task1"].loss = changed_loss(lambda values: values * 0 + 1)
    run = train(make, data)
    assert all(p.isfinite().all() for p in run.model.parameters()), "a task with zero gradient made parameters NaN"
    assert all(math.isfinite(w) for w in run.weights.values()), f"a task with zero gradient gave {run.weights}"


def names_the_task_of_a_nan(make: MakeMethod) -> None:
    """A loss that is NaN or infinite stops the run with the task's name and the step."""
    for bad in (math.nan, math.inf):
        data = suite()
        data["task0"].loss = changed_loss(lambda values, bad=bad: values * 0 + bad)  # type: ignore[misc]
        shown = Watch()
        try:
            train(make, data, progress=shown, log_every=1)
        except NonFiniteLossError as error:
            assert "'task0'" in str(error), f"the message does not name the task: {error}"
            assert "step " in str(error), f"the message does not name the step: {error}"
        else:
            raise AssertionError(f"a loss of {bad} was not refused")
        for weights in shown.weights:
            assert all(map(math.isfinite, weights.values())), f"a loss of {bad} gave weights {weights}"


class StopAt(Silent):
    """A display that stops the run at a step, as Ctrl-C would: after the step's checkpoint."""

    def __init__(self, step: int) -> None:
        self._step, self._seen = step, 0

    def step(self, done: int, losses: Any, weights: Any) -> None:
        """Counts the steps."""
        del done, losses, weights
        self._seen += 1
        if self._seen > self._step:
            raise Interrupted


def _assert_same(first: Run, second: Run, what: str) -> None:
    other = second.model.state_dict()
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, other[name]), f"{what}: {name}"
    assert first.weights == second.weights, f"{what}: weights {first.weights} and {second.weights}"
