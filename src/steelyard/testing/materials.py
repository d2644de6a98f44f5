"""Small suites, networks and losses for tests, and a short run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.methods import Method
from steelyard.tasks import IGNORE, RowLoss, Rows, Suite, Task
from steelyard.tasks.kinds import classification_loss
from steelyard.training import Run, fit
from steelyard.training.progress import Display, Silent

MakeMethod = Callable[[], Method]
"""What makes a fresh method: its class, or a function."""

EPOCHS, BATCH, WIDTH = 3, 8, 5


def encoder() -> nn.Module:
    """A small network with BatchNorm and dropout: buffers and randomness that a careless probe would move."""
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 6))


def plain_encoder() -> nn.Module:
    """A small network in which rows do not mix and nothing is random: what is cut anew gives the same result."""
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 6))


def suite(
    tasks: int = 3,
    rows: int | Iterable[int] = 24,
    seed: int = 0,
    loss: RowLoss | None = None,
    missing: bool = False,
    held_out: int = 12,
) -> Suite:
    """Small random classification tasks with a common cause; the first is the target.

    Args:
        tasks: How many tasks.
        rows: Training rows of the first task (each further one has 8 more), or of every task by itself.
        seed: The seed of the data.
        loss: A loss for all tasks, in place of cross-entropy.
        missing: Whether some rows lack their label.
        held_out: Rows of each task in ``dev_select``, and in ``dev_meta``.
    """
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(WIDTH, generator=generator)
    sizes = [rows + 8 * number for number in range(tasks)] if isinstance(rows, int) else list(rows)

    def draw(n: int, twist: Tensor) -> Rows:
        inputs = torch.randn(n, WIDTH, generator=generator)
        labels = ((inputs @ (common + twist)) > 0).long()
        labels[0], labels[1] = 0, 1
        if missing:
            labels[2::3] = IGNORE
        return Rows(inputs, labels)

    def task(number: int) -> Task:
        twist = 0.5 * torch.randn(WIDTH, generator=generator)
        data = {
            "train": draw(sizes[number], twist),
            "dev_select": draw(held_out, twist),
            "dev_meta": draw(held_out, twist),
        }
        return Task(f"task{number}", "classification", data, outputs=2, loss=loss)

    return Suite([task(number) for number in range(tasks)], target="task0")


def train(
    make: MakeMethod,
    data: Suite | None = None,
    *,
    network: Callable[[], nn.Module] = encoder,
    out: Path | None = None,
    progress: bool | Display = False,
    **settings: Any,
) -> Run:
    """A short run of a method.

    Args:
        make: Makes the method.
        data: The tasks; by default `suite`.
        network: Makes the encoder, from a fixed seed.
        out: A run folder.
        progress: A display of your own.
        **settings: Settings of the loop that differ from the tests' own.
    """
    training: dict[str, Any] = {
        "epochs": EPOCHS, "batch_size": BATCH, "learning_rate": 0.05, "seed": 1, "device": "cpu",
    } | settings  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        shared = network()
    return fit(data or suite(), shared, make(), training=training, out=out, progress=progress)


class Watch(Silent):
    """A display that keeps what it is shown, also of a run that does not come to its end."""

    def __init__(self) -> None:
        self.weights: list[Mapping[str, float]] = []

    def step(self, done: int, losses: Mapping[str, float], weights: Mapping[str, float]) -> None:
        """Keeps the weights."""
        del done, losses
        self.weights.append(dict(weights))


def by_step(run: Run) -> dict[int, dict[str, float]]:
    """The weights of a run, by step and task."""
    found: dict[int, dict[str, float]] = {}
    for step, name, weight in run.weight_trace:
        found.setdefault(step, {})[name] = weight
    return found


def parameters(run: Run) -> Tensor:
    """All parameters of a run's model, end to end."""
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def changed_loss(change: Callable[[Tensor], Tensor]) -> RowLoss:
    """Cross-entropy whose rows' values go through a function."""

    def loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        values, counts = classification_loss(outputs, labels)
        return change(values), counts

    return loss
