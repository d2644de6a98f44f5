"""Numbers that go astray: losses on another scale, losses that leap, steps that overflow, batches in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError
from steelyard.testing.materials import (
    WIDTH,
    MakeMethod,
    Watch,
    by_step,
    changed_loss,
    parameters,
    plain_encoder,
    suite,
    train,
)
from steelyard.testing.odd_data import must_be_sound
from steelyard.training import devices


def ignores_scale(make: MakeMethod) -> None:
    """Losses times 1e-6 and 1e6 leave the weights as they are, if the method says ``scale_free``."""
    if not make().scale_free:
        return
    reference: dict[int, dict[str, float]] | None = None
    for power in (0, -20, 20):
        factor = 2.0**power
        data = suite(loss=changed_loss(lambda values, factor=factor: values * factor))  # type: ignore[misc]
        found = by_step(train(make, data, optimizer="SGD", learning_rate=0.05 / factor, log_every=1))
        reference = reference or found
        for step, weights in found.items():
            for name, weight in weights.items():
                expected = reference[step][name]
                assert abs(weight - expected) < 1e-3, (
                    f"losses times 2^{power}, step {step}: weight of {name} is {weight}, not {expected}"
                )


def bears_any_scale(make: MakeMethod) -> None:
    """Losses from 1e-6 to 1e6, a different scale for each task, give finite weights under the default optimiser."""
    data = suite()
    for name, factor in zip(data.tasks, (1e-6, 1.0, 1e6), strict=True):
        data[name].loss = changed_loss(lambda values, factor=factor: values * factor)  # type: ignore[misc]
    must_be_sound(train(make, data, log_every=1), "losses of 1e-6, 1 and 1e6")


def bears_adversarial_losses(make: MakeMethod, seed: int = 0, steps: int = 12) -> None:
    """Losses that leap between 0, 1e-30 and 1e12 from call to call never give a weight that is not finite."""
    draw = torch.Generator().manual_seed(seed)
    factors = torch.tensor([0.0, 1e-30, 1e-12, 1e-3, 1.0, 1e3, 1e12])

    def leap(values: Tensor) -> Tensor:
        return values * factors[int(torch.randint(len(factors), (), generator=draw))].to(values)

    shown = Watch()
    try:
        train(
            make, suite(loss=changed_loss(leap)), progress=shown, log_every=1, epochs=2, steps_per_epoch=steps // 2,
            clip=0.1,
        )  # fmt: skip
    except SteelyardError as error:
        assert "task" in str(error), f"refused, but without the task's name: {error}"
    for weights in shown.weights:
        assert all(map(math.isfinite, weights.values())), f"losses that leap gave weights {weights}"


def bears_a_skipped_step(make: MakeMethod) -> None:
    """In half precision under a loss scale, a step whose gradients overflow is left out, and the run goes on."""
    common: dict[str, Any] = {"precision": "bf16", "keep": "last", "network": Steep}
    once: dict[str, Any] = common | {"epochs": 1, "steps_per_epoch": 1}
    with _overflowing_scale():
        first, later = train(make, **once), train(make, **common)
    untouched = train(make, **once, learning_rate=1e-30)
    must_be_sound(later, "half precision under a loss scale")
    pairs = zip(first.model.encoder.parameters(), untouched.model.encoder.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "a step whose gradients overflowed was taken"
    assert not torch.equal(parameters(later), parameters(untouched)), "after a step that was left out none was taken"


def accumulates(make: MakeMethod) -> None:
    """One batch and four micro-batches of a quarter of it give the same parameters and weights."""
    common: dict[str, Any] = {"optimizer": "SGD", "epochs": 1, "keep": "last", "network": plain_encoder}
    data = suite(missing=True)
    whole = train(make, data, batch_size=8, **common)
    pieces = train(make, data, batch_size=2, accumulate=4, **common)
    assert whole.summary["steps"] == pieces.summary["steps"], "micro-batches change the number of steps"
    difference = float((parameters(whole) - parameters(pieces)).abs().max())
    assert difference < 1e-5, f"four micro-batches give parameters that differ by {difference:.1e}"
    for name, weight in whole.weights.items():
        assert abs(weight - pieces.weights[name]) < 1e-4, (
            f"four micro-batches give {name} the weight {pieces.weights[name]}, one batch {weight}"
        )


class Steep(nn.Module):
    """A network whose gradients are 2^60 times as large halfway as at either end."""

    width = 6

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        """``[N, 5]`` to ``[N, 6]``."""
        return torch.tanh((self.layer(inputs).float() * 2.0**-60) * 2.0**60)


@contextmanager
def _overflowing_scale() -> Iterator[None]:
    """Runs with a loss scale on the CPU, at first so large that some steps overflow, as fp16 has on a GPU."""
    plain = devices.accelerator

    def scaled(*arguments: Any) -> Any:
        accelerator = plain(*arguments)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100, backoff_factor=2.0**-8)
        return accelerator

    with mock.patch.object(devices, "accelerator", scaled):
        yield
