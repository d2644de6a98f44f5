"""Hessian products and conjugate gradients, down to the hypergradient of a bilevel problem."""

import pytest
import torch
from tests.gradients.gradient_checks import close
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from steelyard import gradients


def symmetric(size: int, least: float) -> Tensor:
    raw = torch.randn(size, size, dtype=torch.float64)
    return raw @ raw.t() + least * torch.eye(size, dtype=torch.float64)


def test_hessian_product_is_the_hessian_times_the_vector() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    parameters = dict(module.named_parameters())
    direction = {name: torch.randn_like(value) for name, value in parameters.items()}
    blocks = jacrev(jacrev(lambda p: functional_call(module, p, (x,)).square().sum()))(
        {name: value.detach() for name, value in parameters.items()}
    )
    found = gradients.hessian_vector_product(module(x).square().sum(), parameters, direction)
    for name, value in found.items():
        parts = [
            torch.tensordot(blocks[name][other], direction[other], dims=direction[other].dim()) for other in parameters
        ]
        wanted = torch.stack(parts).sum(0)
        close(value, wanted, wanted.abs().max().item(), 1e-10)


def test_hessian_of_a_linear_function_and_of_unused_parameters_is_zero() -> None:
    a, b = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found = gradients.hessian_vector_product((2 * a).sum(), {"a": a, "b": b}, {"a": torch.ones_like(a)})
    assert not found["a"].any()
    assert not found["b"].any()


@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_conjugate_gradients_solve_the_damped_system(damping: float) -> None:
    matrix, right = symmetric(6, 0.5), torch.randn(6, dtype=torch.float64)
    found = gradients.conjugate_gradients(
        lambda v: {"x": matrix @ v["x"]}, {"x": right}, damping=damping, tolerance=1e-12
    )
    wanted = torch.linalg.solve(matrix + damping * torch.eye(6, dtype=torch.float64), right)
    assert found.converged
    assert found.iterations <= 12
    close(found.x["x"], wanted, wanted.abs().max().item(), 1e-9)


def test_conjugate_gradients_say_when_they_fail() -> None:
    right = {"x": torch.ones(2, dtype=torch.float64)}
    saddle = gradients.conjugate_gradients(lambda v: {"x": -v["x"]}, right)
    assert saddle.indefinite
    assert not saddle.converged
    assert gradients.conjugate_gradients(lambda v: {"x": -v["x"]}, right, damping=3).converged
    short = gradients.conjugate_gradients(
        lambda v: {"x": v["x"] * torch.tensor([1.0, 9.0], dtype=torch.float64)}, right, iterations=1
    )
    assert not short.converged
    zero = gradients.conjugate_gradients(lambda v: v, {"x": torch.zeros(2)})
    assert zero.converged
    assert zero.iterations == 0


def test_body_and_heads_together_give_the_reduced_hessian() -> None:
    """The hypergradient of a quadratic bilevel problem with a head, against finite differences in ω."""
    sources = [symmetric(5, 1.0) for _ in range(2)]
    centres = [torch.randn(5, dtype=torch.float64) for _ in range(2)]
    target = torch.randn(3, dtype=torch.float64)

    def inner(phi: Tensor, head: Tensor, omega: Tensor) -> Tensor:
        z = torch.cat([phi, head])
        each = [0.5 * (z - c) @ m @ (z - c) for m, c in zip(sources, centres, strict=True)]
        return omega @ torch.stack(each)

    def solve(omega: Tensor) -> Tensor:
        matrix = sum(w * m for w, m in zip(omega, sources, strict=True))
        right = sum(w * m @ c for w, m, c in zip(omega, sources, centres, strict=True))
        return torch.linalg.solve(matrix, right)

    def outer(omega: Tensor) -> float:
        return float(0.5 * (solve(omega)[:3] - target).square().sum())

    omega = torch.tensor([0.4, 0.6], dtype=torch.float64)
    best = solve(omega)
    phi, head = best[:3].clone().requires_grad_(), best[3:].clone().requires_grad_()
    both = {"phi": phi, "head": head}
    product = gradients.HessianProduct(inner(phi, head, omega), both)
    right = {"phi": (phi - target).detach(), "head": torch.zeros_like(head)}
    x = gradients.conjugate_gradients(product, right, tolerance=1e-13).x
    for source in range(2):
        unit = torch.eye(2, dtype=torch.float64)[source]
        grads = dict(zip(both, torch.autograd.grad(inner(phi, head, unit), list(both.values())), strict=True))
        found = -sum((x[name] * grads[name]).sum() for name in both)
        wanted = (outer(omega + 1e-5 * unit) - outer(omega - 1e-5 * unit)) / 2e-5
        assert abs(found.item() - wanted) < 1e-6 * max(1, abs(wanted))
