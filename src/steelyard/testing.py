"""Checks that every method has to pass, your own included.

    import pytest
    from steelyard import testing

    @pytest.mark.parametrize("check", testing.METHOD_CHECKS, ids=lambda check: check.__name__)
    def test_my_method(check):
        check(MyMethod)

Each check takes a function that makes a fresh method (a class will do) and raises ``AssertionError`` with a reason.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.methods import Method
from steelyard.tasks import IGNORE, RowLoss, Rows, Suite, Task
from steelyard.tasks.kinds import classification_loss
from steelyard.training import Run, fit
from steelyard.training.job import NonFiniteLossError
from steelyard.training.loop import Interrupted
from steelyard.training.progress import Display, Silent

MakeMethod = Callable[[], Method]
EPOCHS, BATCH = 3, 8


def encoder() -> nn.Module:
    """A small network with BatchNorm and dropout: buffers and randomness that a careless probe would move."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 6))


def suite(tasks: int = 3, rows: int = 24, seed: int = 0, loss: RowLoss | None = None, missing: bool = False) -> Suite:
    """Small random classification tasks with a common cause; the first is the target.

    Args:
        tasks: How many tasks.
        rows: Training rows per task.
        seed: The seed of the data.
        loss: A loss for all tasks, in place of cross-entropy.
        missing: Whether some rows lack their label.
    """
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(5, generator=generator)

    def draw(n: int, twist: Tensor) -> Rows:
        inputs = torch.randn(n, 5, generator=generator)
        labels = ((inputs @ (common + twist)) > 0).long()
        labels[0], labels[1] = 0, 1
        if missing:
            labels[2::3] = IGNORE
        return Rows(inputs, labels)

    def task(number: int) -> Task:
        twist = 0.5 * torch.randn(5, generator=generator)
        data = {
            "train": draw(rows + 8 * number, twist),
            "dev_select": draw(12, twist),
            "dev_meta": draw(12, twist),
        }
        return Task(f"task{number}", "classification", data, outputs=2, loss=loss)

    return Suite([task(number) for number in range(tasks)], target="task0")


def train(
    make: MakeMethod,
    data: Suite | None = None,
    *,
    out: Path | None = None,
    progress: bool | Display = False,
    **settings: Any,
) -> Run:
    """A short run of a method."""
    training: dict[str, Any] = {
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "learning_rate": 0.05,
        "seed": 1,
        "device": "cpu",
    } | settings
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = encoder()
    return fit(data or suite(), network, make(), training=training, out=out, progress=progress)


def keeps_its_range(make: MakeMethod) -> None:
    """Weights are what the method says: finite; not negative unless ``real``; a distribution if ``simplex``."""
    method = make()
    for step, weights in _by_step(train(lambda: method, log_every=1)).items():
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
                train(make, out=out, progress=_StopAt(stop), log_every=1, checkpoint_seconds=0)
            resumed = train(make, out=out, log_every=1, checkpoint_seconds=0)
        _assert_same(whole, resumed, f"stopped at step {stop} and resumed, the run differs")


def ignores_scale(make: MakeMethod) -> None:
    """Multiplying all losses by one constant leaves the weights as they are, if the method says ``scale_free``."""
    if not make().scale_free:
        return
    reference: dict[int, dict[str, float]] | None = None
    for power in (0, -20, 20):
        factor = 2.0**power
        run = train(make, suite(loss=_scaled(factor)), optimizer="SGD", learning_rate=0.05 / factor, log_every=1)
        found = _by_step(run)
        reference = reference or found
        for step, weights in found.items():
            for name, weight in weights.items():
                expected = reference[step][name]
                assert abs(weight - expected) < 1e-3, (
                    f"losses times 2^{power}, step {step}: weight of {name} is {weight}, not {expected}"
                )


def moves_buffers_once(make: MakeMethod) -> None:
    """Only training steps move BatchNorm's statistics: no probe does."""
    run = train(make, keep="last")
    norm = next(m for m in run.model.modules() if isinstance(m, nn.BatchNorm1d))
    assert norm.num_batches_tracked is not None
    seen, steps = int(norm.num_batches_tracked), run.summary["steps"]
    assert seen <= steps, f"BatchNorm saw {seen} batches in {steps} steps: a probe moved it"


def works_alone(make: MakeMethod) -> None:
    """A suite of one task trains, with weight 1 where weights are a distribution."""
    method = make()
    if method.paradigm == "pretrain":
        return
    run = train(lambda: method, suite(tasks=1))
    if method.range == "simplex":
        assert abs(run.weights["task0"] - 1) < 1e-5, f"the only task has weight {run.weights['task0']}"


def bears_zero_gradients(make: MakeMethod) -> None:
    """A task whose loss never changes breaks nothing."""
    data = suite()
    data["task1"].loss = _flat_loss
    run = train(make, data)
    assert all(p.isfinite().all() for p in run.model.parameters()), "a task with zero gradient made parameters NaN"
    assert all(math.isfinite(w) for w in run.weights.values()), f"a task with zero gradient gave {run.weights}"


def bears_missing_labels(make: MakeMethod) -> None:
    """Rows without a label break nothing."""
    run = train(make, suite(missing=True))
    assert all(p.isfinite().all() for p in run.model.parameters()), "rows without labels made parameters NaN"


def names_the_task_of_a_nan(make: MakeMethod) -> None:
    """A loss that is not a number stops the run with the task's name."""
    data = suite()
    data["task0"].loss = _nan_loss
    try:
        train(make, data)
    except NonFiniteLossError as error:
        assert "task0" in str(error), f"the message does not name the task: {error}"
    else:
        raise AssertionError("a loss of NaN was not refused")


METHOD_CHECKS: tuple[Callable[[MakeMethod], None], ...] = (
    keeps_its_range,
    is_deterministic,
    survives_interruption,
    ignores_scale,
    moves_buffers_once,
    works_alone,
    bears_zero_gradients,
    bears_missing_labels,
    names_the_task_of_a_nan,
)
"""All checks; parametrise a test over them."""


class _StopAt(Silent):
    """A display that stops the run at a step, as Ctrl-C would: after the step's checkpoint."""

    def __init__(self, step: int) -> None:
        self._step, self._seen = step, 0

    def step(self, done: int, losses: Any, weights: Any) -> None:
        """Counts the steps."""
        del done, losses, weights
        self._seen += 1
        if self._seen > self._step:
            raise Interrupted


def _by_step(run: Run) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for step, name, weight in run.weight_trace:
        found.setdefault(step, {})[name] = weight
    return found


def _assert_same(first: Run, second: Run, what: str) -> None:
    pairs: Iterable[tuple[str, Tensor]] = first.model.state_dict().items()
    other = second.model.state_dict()
    for name, value in pairs:
        assert torch.equal(value, other[name]), f"{what}: {name}"
    assert first.weights == second.weights, f"{what}: weights {first.weights} and {second.weights}"


def _scaled(factor: float) -> RowLoss:
    def loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        values, counts = classification_loss(outputs, labels)
        return values * factor, counts

    return loss


def _flat_loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    values, counts = classification_loss(outputs, labels)
    return values * 0 + 1, counts


def _nan_loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    values, counts = classification_loss(outputs, labels)
    return values * math.nan, counts
