"""Uncertainty, GradNorm, orthogonality and the trust region."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.functional import (
    amortised_gradient,
    amortised_weights,
    average_weights,
    gradnorm_targets,
    impartial_losses,
    orthogonality_penalty,
    trust_region_step,
    uncertainty_losses,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_uncertainty_is_the_published_loss() -> None:
    losses, noise = torch.tensor([2.0, 3.0]), torch.tensor([0.5, 1.5])
    kinds = torch.tensor([True, False])
    total = uncertainty_losses(losses, noise.square().log(), kinds)
    expected = torch.stack([2 / (2 * noise[0] ** 2) + noise[0].log(), 3 / noise[1] ** 2 + noise[1].log()])
    torch.testing.assert_close(total, expected)
    both = torch.stack([uncertainty_losses(losses, torch.zeros(2), kind) for kind in (True, False)])
    torch.testing.assert_close(both, torch.stack([losses / 2, losses]))
    torch.testing.assert_close(uncertainty_losses(losses, torch.zeros(2)), losses)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_uncertainty_settles_at_half_the_inverse_loss(regression: bool, scale: float) -> None:
    losses = torch.tensor([0.5, 2.0, 7.0], dtype=torch.float64) * scale
    noise = torch.full((3,), math.log(scale), dtype=torch.float64)
    for _ in range(400):
        noise = noise.detach().requires_grad_()
        (slope,) = torch.autograd.grad(uncertainty_losses(losses, noise, regression).sum(), noise)
        noise = noise - slope.clamp(-1, 1)
    losses.requires_grad_()
    (weights,) = torch.autograd.grad(uncertainty_losses(losses, noise.detach(), regression).sum(), losses)
    torch.testing.assert_close(weights, 1 / (2 * losses.detach()))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_impartial_losses_settle_at_the_inverse_loss(scale: float) -> None:
    losses = (torch.tensor([0.5, 2.0, 7.0], dtype=torch.float64) * scale).requires_grad_()
    logs = (-losses.detach().log()).requires_grad_()
    total = impartial_losses(losses, logs).sum()
    weights, slopes = torch.autograd.grad(total, [losses, logs])
    torch.testing.assert_close(weights, 1 / losses.detach())
    torch.testing.assert_close(slopes, torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    moved = impartial_losses(losses, logs + torch.tensor([0.1, -0.1, 0.0])).sum()
    assert float(moved.detach()) > float(total.detach())


def test_average_weights_are_the_published_formula() -> None:
    losses, earlier = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 4.0])
    ratios = torch.tensor([0.5, 1.0, 0.75]) / 1.5
    torch.testing.assert_close(average_weights(losses, earlier, 1.5), ratios.exp() / ratios.exp().sum())
    torch.testing.assert_close(average_weights(losses, torch.zeros(3)), torch.full((3,), 1 / 3))
    torch.testing.assert_close(average_weights(losses * 1e6, earlier * 1e6), average_weights(losses, earlier))
    with pytest.raises(ValueError, match="temperature"):
        average_weights(losses, earlier, 0.0)


def test_famo_descends_the_logarithms_of_the_losses() -> None:
    logits, losses = normal(4), normal(4, seed=1).exp().requires_grad_()
    (slope,) = torch.autograd.grad((logits.softmax(0) * losses.log()).sum(), losses)
    weights = amortised_weights(logits, losses.detach())
    torch.testing.assert_close(weights, slope / slope.sum())
    torch.testing.assert_close(amortised_weights(logits, 1e6 * losses.detach()), weights)
    some = losses.detach().clone()
    some[2] = 0
    assert float(amortised_weights(logits, some)[2]) == 0
    torch.testing.assert_close(amortised_weights(logits, some * 0), logits.softmax(0))
    leaf, after = logits.clone().requires_grad_(), normal(4, seed=2).exp()
    gains = losses.detach().log() - after.log()
    (expected,) = torch.autograd.grad((leaf.softmax(0) * gains).sum(), leaf)
    found = amortised_gradient(logits, losses.detach(), after)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum().item(), 0.0)
    unchanged = amortised_gradient(logits, some, some)
    torch.testing.assert_close(unchanged, torch.zeros(4, dtype=torch.float64))


def test_gradnorm_targets_follow_the_training_rate() -> None:
    norms = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    losses, initial = torch.tensor([1.0, 1.0, 4.0]), torch.tensor([2.0, 1.0, 2.0])
    rates = torch.tensor([0.5, 1.0, 2.0]) / (3.5 / 3)
    targets = gradnorm_targets(norms, losses, initial, 1.5)
    torch.testing.assert_close(targets, 2.0 * rates**1.5)
    assert not targets.requires_grad
    assert not gradnorm_targets(
        norms, losses.clone().requires_grad_(), initial.clone().requires_grad_(), 1.5
    ).requires_grad
    torch.testing.assert_close(gradnorm_targets(norms, losses, initial, 0.0), torch.full((3,), 2.0))
    torch.testing.assert_close(gradnorm_targets(norms, 1e6 * losses, initial * 1e6, 1.5), targets)
    torch.testing.assert_close(gradnorm_targets(norms, losses * 0, initial, 1.5), torch.full((3,), 2.0))
    with pytest.raises(ValueError, match="initial losses"):
        gradnorm_targets(norms, losses, initial * 0, 1.5)


def test_orthogonality_is_the_squared_frobenius_norm() -> None:
    shared, private = normal(3, 10, 4), normal(3, 10, 5, seed=1)
    expected = torch.stack([(s.T @ p).norm() ** 2 for s, p in zip(shared, private, strict=True)])
    torch.testing.assert_close(orthogonality_penalty(shared, private), expected)
    basis = torch.linalg.qr(normal(10, 6)).Q
    torch.testing.assert_close(orthogonality_penalty(basis[:, :3], basis[:, 3:]).item(), 0.0)


def model(step: Tensor, gradient: Tensor, curvature: Tensor) -> Tensor:
    return step @ gradient + ((step @ curvature) * step).sum(-1) / 2


def test_newton_step_where_there_is_room() -> None:
    root, gradient = normal(4, 4), normal(4, seed=1)
    curvature = root @ root.T + torch.eye(4)
    newton = -torch.linalg.solve(curvature, gradient)
    torch.testing.assert_close(trust_region_step(gradient, curvature), newton)
    torch.testing.assert_close(trust_region_step(gradient, curvature, 1.01 * float(newton.norm())), newton)
    single = trust_region_step(torch.tensor([3.0]), torch.tensor([[2.0]]))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, torch.tensor([-1.5]))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_boundary_step_satisfies_the_exact_conditions(seed: int, shift: float, scale: float) -> None:
    root, gradient = normal(4, 4, seed=seed), normal(4, seed=seed + 10)
    curvature = (root + root.T + shift * torch.eye(4)) * scale
    gradient, radius = gradient * scale, 0.1
    step = trust_region_step(gradient, curvature, radius)
    length = float(step.norm())
    assert length <= radius * (1 + 1e-9)
    # (H + mI) a = -g with m ≥ 0, H + mI positive semidefinite, and m = 0 inside: sufficient and necessary.
    multiplier = float(-(step @ (curvature @ step + gradient)) / (step @ step))
    residual = curvature @ step + multiplier * step + gradient
    assert float(residual.norm()) <= 1e-9 * float(gradient.norm())
    assert multiplier >= -1e-9 * scale
    assert float(torch.linalg.eigvalsh(curvature)[0]) + multiplier >= -1e-9 * scale
    assert multiplier * (radius - length) <= 1e-9 * scale


@pytest.mark.parametrize("radius", [3.0, 0.5])
def test_hard_case_leaves_along_the_lowest_curvature(radius: float) -> None:
    curvature = torch.diag(torch.tensor([-2.0, 1.0, 3.0], dtype=torch.float64))
    gradient = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    step = trust_region_step(gradient, curvature, radius)
    torch.testing.assert_close(step.norm().item(), radius)
    torch.testing.assert_close(step[1:], torch.tensor([-1 / 3, 1 / 5], dtype=torch.float64))
    short = trust_region_step(gradient + 1e-18, curvature, 0.2)
    torch.testing.assert_close(short.norm().item(), 0.2)
    torch.testing.assert_close(short[0].item(), 0.0, atol=1e-12, rtol=0)


def test_hard_case_and_flat_models() -> None:
    curvature = torch.diag(torch.tensor([-2.0, 1.0, 3.0], dtype=torch.float64))
    gradient = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    step = trust_region_step(gradient, curvature, 2.0)
    torch.testing.assert_close(step.norm().item(), 2.0)
    torch.testing.assert_close(step[1:], torch.tensor([-1 / 3, 1 / 5], dtype=torch.float64))
    candidates = torch.nn.functional.normalize(normal(50_000, 3), dim=1) * 2
    assert float(model(candidates, gradient, curvature).min()) >= float(model(step, gradient, curvature))
    flat = trust_region_step(gradient, torch.zeros(3, 3), 2.0)
    torch.testing.assert_close(flat, -2.0 * gradient / gradient.norm())
    still = trust_region_step(torch.zeros(2), torch.zeros(2, 2), 2.0)
    assert still.tolist() == [0.0, 0.0]
    semidefinite = torch.diag(torch.tensor([0.0, 2.0], dtype=torch.float64))
    rest = trust_region_step(torch.tensor([0.0, 1.0], dtype=torch.float64), semidefinite, 9.0)
    torch.testing.assert_close(rest, torch.tensor([0.0, -0.5], dtype=torch.float64))


def test_small_radius_is_steepest_descent_and_mixture_is_found() -> None:
    gradient, deltas = normal(3), normal(3, 6, seed=1)
    root, start = normal(6, 6, seed=2), normal(6, seed=3)
    bowl = root @ root.T + torch.eye(6, dtype=torch.float64)
    tiny = trust_region_step(gradient, torch.eye(3, dtype=torch.float64), 1e-9)
    torch.testing.assert_close(tiny, -1e-9 * gradient / gradient.norm(), rtol=1e-6, atol=0)

    def loss(mixture: Tensor) -> Tensor:
        point = start + mixture @ deltas
        return point @ bowl @ point / 2

    ones = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(loss(ones), ones)
    mixture = ones.detach() + trust_region_step(slopes, deltas @ bowl @ deltas.T)
    best = mixture.requires_grad_()
    (rest,) = torch.autograd.grad(loss(best), best)
    torch.testing.assert_close(rest, torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)


def test_trust_region_refuses_nonsense() -> None:
    gradient, curvature = torch.ones(2), torch.diag(torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="give a radius"):
        trust_region_step(gradient, curvature)
    for radius in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="radius"):
            trust_region_step(gradient, curvature, radius)
    with pytest.raises(ValueError, match="gradient holds nan"):
        trust_region_step(gradient * math.nan, curvature, 1.0)
    with pytest.raises(ValueError, match="curvature holds inf"):
        trust_region_step(gradient, curvature * math.inf, 1.0)
    with pytest.raises(ValueError, match="another size"):
        trust_region_step(torch.ones(3), curvature, 1.0)
