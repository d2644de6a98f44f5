"""Rows that all tasks share."""

import pytest
import torch
from tests.gradients.gradient_checks import check_scalars, close, random_direction
from torch import Tensor, nn
from torch.func import functional_call

from steelyard import gradients


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def setting() -> tuple[Body, Tensor, Tensor]:
    return Body().double(), torch.randn(7, 5, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)


def losses_of(z: Tensor, heads: Tensor) -> Tensor:
    return (z @ heads).tanh().square().mean(0)


def test_everything_is_exact_by_default() -> None:
    body, x, heads = setting()
    with gradients.record(body, None) as tape:
        losses = losses_of(body(x), heads)
    exact = gradients.exact_task_gradients(losses, tape.scope.parameters)
    flat = torch.cat([value.flatten(1) for value in exact.values()], 1)
    check_scalars(tape, losses, flat, 1e-9)
    direction = random_direction(tape.scope.parameters)
    wanted = flat @ torch.cat([value.flatten() for value in direction.values()])
    scale = wanted.abs().max().item()
    close(tape.slopes(losses, direction), wanted, scale, 1e-9)
    close(tape.slopes(losses, direction, method="double"), wanted, scale, 1e-9)
    rows = tape.row_slopes(losses, direction)
    assert rows.shape == (3, 7)
    close(rows.sum(1), wanted, scale, 1e-9)
    values, forward = gradients.forward_slopes(
        lambda p: losses_of(functional_call(body, p, (x,)), heads), tape.scope.parameters, direction
    )
    close(values, losses.detach(), 1.0, 1e-12)
    close(forward, wanted, scale, 1e-9)


def test_gram_at_the_representation() -> None:
    body, x, heads = setting()
    with gradients.record(body, None) as tape:
        z = body(x)
        losses = losses_of(z, heads)
    exact = gradients.exact_task_gradients(losses, {"z": z})["z"].flatten(1)
    torch.testing.assert_close(tape.gram(losses, at="representation"), exact @ exact.t())
    torch.testing.assert_close(tape.norms(losses, at="representation"), exact.norm(dim=1))
    with pytest.raises(gradients.GradientError, match=r"inner.0.weight"):
        tape.gram(losses + body.inner[0].weight.sum(), at="representation")


def test_an_operator_without_second_derivative_is_refused_with_a_remedy() -> None:
    body = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(3, 5, 16)
    with gradients.record(body, None) as tape:
        losses = body(x, x, x, need_weights=False)[0].square().mean((0, 1))
    direction = random_direction(tape.scope.parameters)
    with pytest.raises(gradients.UnsupportedGraphError, match=r"SDPBackend\.MATH"):
        tape.slopes(losses, direction, method="double")
    assert tape.slopes(losses, direction).shape == (16,)
    with pytest.raises(gradients.UnsupportedGraphError, match="forward mode"):
        gradients.forward_slopes(
            lambda p: functional_call(body, p, (x, x, x), {"need_weights": False})[0].mean((0, 1)),
            tape.scope.parameters,
            direction,
        )
