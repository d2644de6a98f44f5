"""Mirror descent, the ramp, the bandit and rescaling: simplex, scales, closed forms, exact projections."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steelyard.functional import (
    bandit_weights,
    cosine_hypergradient,
    mirror_descent,
    ramp_weights,
    rescale_weights,
)

light = settings(max_examples=60, deadline=None, database=None)
finite = st.floats(-1e6, 1e6)
sizes = st.integers(1, 8)


def simplex(size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, dtype=torch.float64, generator=generator).add(0.05).softmax(0)


def divergence(weights: Tensor) -> Tensor:
    return torch.xlogy(weights, weights).sum(-1) + math.log(weights.shape[-1])


@light
@given(st.lists(finite, min_size=1, max_size=8), st.floats(0, 100), st.sampled_from(["float32", "float64"]))
def test_mirror_descent_stays_on_the_simplex(signal: list[float], step: float, kind: str) -> None:
    dtype = getattr(torch, kind)
    weights = simplex(len(signal)).to(dtype)
    moved = mirror_descent(weights, torch.tensor(signal, dtype=dtype), step)
    assert moved.dtype == dtype
    assert bool((moved >= 0).all())
    torch.testing.assert_close(moved.sum(), torch.ones((), dtype=dtype), atol=5e-7, rtol=0)


def test_mirror_descent_is_the_published_formula() -> None:
    weights, signal = simplex(5), torch.randn(5, dtype=torch.float64)
    raw = weights * torch.exp(-0.7 * signal)
    torch.testing.assert_close(mirror_descent(weights, signal, 0.7), raw / raw.sum())


def test_mirror_descent_ignores_a_constant_and_the_weights_scale() -> None:
    weights, signal = simplex(5), torch.randn(5, dtype=torch.float64)
    moved = mirror_descent(weights, signal, 1.0)
    torch.testing.assert_close(mirror_descent(weights, signal + 1e4, 1.0), moved, rtol=1e-9, atol=0)
    torch.testing.assert_close(mirror_descent(weights * 1e6, signal, 1.0), moved)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_mirror_descent_depends_on_step_times_gradient_only(scale: float) -> None:
    weights, signal = simplex(5), torch.randn(5, dtype=torch.float64)
    moved = mirror_descent(weights, signal * scale, 1 / scale)
    torch.testing.assert_close(moved, mirror_descent(weights, signal, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mirror_descent_survives_a_hundredfold_cosine(dtype: torch.dtype) -> None:
    signal = -100.0 * torch.tensor([1.0, -1.0, 0.5], dtype=dtype)
    weights = torch.full((3,), 1 / 3, dtype=dtype)
    for _ in range(20):
        weights = mirror_descent(weights, signal, 100.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.0, 0.0], dtype=dtype))


def test_mirror_descent_raises_the_weight_of_an_aligned_source() -> None:
    target = torch.randn(50)
    sources = torch.stack([target + 0.1 * torch.randn(50), torch.randn(50), -target])
    before = torch.full((3,), 1 / 3)
    after = mirror_descent(before, cosine_hypergradient(target, sources), 1.0)
    assert after[0] > before[0]
    assert after[0] > after[1] > after[2]


def test_a_zero_weight_recovers_only_above_a_floor() -> None:
    signal = torch.tensor([-1.0, 0.0])
    dead = alive = torch.tensor([0.0, 1.0])
    for _ in range(20):
        dead, alive = mirror_descent(dead, signal, 1.0), mirror_descent(alive, signal, 1.0, floor=0.01)
    assert dead.tolist() == [0.0, 1.0]
    torch.testing.assert_close(alive, torch.tensor([0.99, 0.01]))


@light
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.floats(0.001, 1))
def test_floor_is_the_nearest_distribution_in_relative_entropy(signal: list[float], share: float) -> None:
    size = len(signal)
    floor, gradient = share / size, torch.tensor(signal, dtype=torch.float64)
    free = mirror_descent(simplex(size), gradient, 1.0)
    held = mirror_descent(simplex(size), gradient, 1.0, floor)
    assert bool((held >= floor * (1 - 1e-9)).all())
    torch.testing.assert_close(held.sum().item(), 1.0)
    ratios, above = held / free, held > floor * (1 + 1e-9)
    common = ratios[above].max() if bool(above.any()) else ratios.min()
    torch.testing.assert_close(ratios[above], common.expand(int(above.sum())), rtol=1e-9, atol=0)
    assert bool((ratios[~above] >= common * (1 - 1e-9)).all())
    if bool((free >= floor).all()):
        torch.testing.assert_close(held, free, rtol=1e-12, atol=0)


def test_the_highest_floor_is_uniform() -> None:
    for size in range(1, 60):
        signal = torch.linspace(-3, 3, size, dtype=torch.float64)
        held = mirror_descent(simplex(size), signal, 1.0, floor=1 / size)
        torch.testing.assert_close(held, torch.full_like(held, 1 / size))


def test_mirror_descent_works_row_by_row() -> None:
    weights = torch.stack([simplex(4, seed) for seed in range(3)])
    signal = torch.randn(3, 4, dtype=torch.float64) * 3
    together = mirror_descent(weights, signal, 1.0, floor=0.1)
    alone = [mirror_descent(w, g, 1.0, floor=0.1) for w, g in zip(weights, signal, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone))


def test_mirror_descent_refuses_nonsense_and_says_what() -> None:
    weights, signal = torch.full((2,), 0.5), torch.zeros(2)
    with pytest.raises(ValueError, match=r"the gradient holds nan at index \[1\]"):
        mirror_descent(weights, torch.tensor([0.0, math.nan]), 1.0)
    with pytest.raises(ValueError, match="the gradient holds inf"):
        mirror_descent(weights, torch.tensor([math.inf, 0.0]), 1.0)
    with pytest.raises(ValueError, match="negative"):
        mirror_descent(torch.tensor([1.5, -0.5]), signal, 1.0)
    with pytest.raises(ValueError, match="all be zero"):
        mirror_descent(torch.zeros(2), signal, 1.0)
    with pytest.raises(ValueError, match="weight vector holds nan"):
        mirror_descent(torch.tensor([1.0, math.nan]), signal, 1.0)
    with pytest.raises(ValueError, match="floor"):
        mirror_descent(weights, signal, 1.0, floor=0.6)
    with pytest.raises(ValueError, match="floor"):
        mirror_descent(weights, signal, 1.0, floor=-0.1)
    for step in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="step"):
            mirror_descent(weights, signal, step)
    with pytest.raises(ValueError, match="must match"):
        mirror_descent(weights, torch.zeros(3), 1.0)


def test_ramp_is_mirror_descent_against_oneself() -> None:
    start = weights = simplex(4)
    for rounds in range(5):
        torch.testing.assert_close(ramp_weights(start, 2, rounds, step=0.8), weights)
        weights = mirror_descent(weights, torch.tensor([0.0, 0.0, -1.0, 0.0], dtype=torch.float64), 0.8)
    odds = ramp_weights(start, 2, 1) / start
    torch.testing.assert_close((odds[2] / odds[0]).item(), math.e)
    torch.testing.assert_close(ramp_weights(start, 2, 1e6).sum().item(), 1.0)


@light
@given(
    st.lists(st.floats(-50, 50), min_size=2, max_size=8),
    st.floats(0, 10),
    st.floats(0, 0.99),
    st.sampled_from(["float32", "float64"]),
)
def test_bandit_keeps_within_the_radius(losses: list[float], step: float, share: float, kind: str) -> None:
    dtype, radius = getattr(torch, kind), share * math.log(len(losses))
    weights = bandit_weights(simplex(len(losses)).to(dtype), torch.tensor(losses, dtype=dtype), step, radius)
    assert weights.dtype == dtype
    assert float(divergence(weights.double())) <= radius + (1e-12 if kind == "float64" else 1e-6)
    torch.testing.assert_close(weights.double().sum().item(), 1.0, atol=1e-6, rtol=0)


def test_bandit_is_the_tempered_step_with_an_exact_root() -> None:
    weights, losses = simplex(5), torch.randn(5, dtype=torch.float64).mul(3)
    scores = weights.log() + 2.0 * losses
    bound = bandit_weights(weights, losses, 2.0, 0.3)
    torch.testing.assert_close(divergence(bound).item(), 0.3, rtol=0, atol=1e-12)
    logs = bound.log()
    powers = (logs[1:] - logs[0]) / (scores[1:] - scores[0])
    torch.testing.assert_close(powers, powers[0].expand(4))
    assert 0 < powers[0] < 1
    free = bandit_weights(weights, losses * 0.01, 2.0, 1.5)
    torch.testing.assert_close(free, torch.softmax(weights.log() + 0.02 * losses, 0))


def test_bandit_solves_the_constrained_ascent() -> None:
    weights, losses, radius = simplex(4), torch.tensor([0.3, 2.0, -1.0, 0.7], dtype=torch.float64), 0.2

    def gain(p: Tensor) -> Tensor:
        return (p * losses).sum(-1) - torch.xlogy(p, p / weights).sum(-1)

    best = bandit_weights(weights, losses, 1.0, radius)
    candidates = torch.distributions.Dirichlet(best * 200).sample((20000,))
    candidates = candidates[divergence(candidates) <= radius]
    assert len(candidates) > 1000
    assert bool((gain(candidates) <= gain(best) + 1e-12).all())


def test_bandit_edges() -> None:
    losses = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(bandit_weights(simplex(3), losses, 1.0, 0.0), torch.full_like(losses, 1 / 3))
    torch.testing.assert_close(
        bandit_weights(simplex(3), losses + 1e5, 1.0, 0.1), bandit_weights(simplex(3), losses, 1.0, 0.1)
    )
    dead = bandit_weights(torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64), losses, 1.0, 0.1)
    assert float(divergence(dead)) <= 0.1 + 1e-12
    assert dead[0] > 0
    assert bandit_weights(torch.ones(1), torch.ones(1), 1.0, 0.1).tolist() == [1.0]
    rows = torch.stack([losses, -losses])
    both = bandit_weights(simplex(3).expand(2, 3), rows, 1.0, 0.1)
    torch.testing.assert_close(both[1], bandit_weights(simplex(3), -losses, 1.0, 0.1))


def test_bandit_warns_when_the_radius_never_binds() -> None:
    weights, losses = torch.full((3,), 1 / 3), torch.ones(3)
    with pytest.warns(UserWarning, match="never binds"):
        bandit_weights(weights, losses, 1.0, math.log(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bandit_weights(weights, losses, 1.0, math.log(3) * 0.999)


def test_bandit_refuses_nonsense() -> None:
    weights, losses = torch.full((2,), 0.5), torch.ones(2)
    with pytest.raises(ValueError, match="losses holds nan"):
        bandit_weights(weights, torch.tensor([1.0, math.nan]), 1.0, 0.1)
    for step, radius in ((-1.0, 0.1), (1.0, -0.1), (1.0, math.nan)):
        with pytest.raises(ValueError, match="step and radius"):
            bandit_weights(weights, losses, step, radius)
    with pytest.raises(ValueError, match="must match"):
        bandit_weights(weights, torch.ones(3), 1.0, 0.1)


@light
@given(st.lists(finite, min_size=1, max_size=8))
def test_rescale_keeps_sum_and_order(values: list[float]) -> None:
    weights = torch.tensor(values, dtype=torch.float64)
    scaled = rescale_weights(weights)
    torch.testing.assert_close(scaled.sum().item(), float(len(values)))
    assert bool((scaled >= 0).all())
    if float(weights.max()) > 0:
        torch.testing.assert_close(scaled / scaled.max(), weights.clamp_min(0) / weights.max())
    else:
        assert scaled.tolist() == [1.0] * len(values)


def test_rescale_extremes() -> None:
    torch.testing.assert_close(rescale_weights(torch.tensor([1e-30, 3e-30])), torch.tensor([0.5, 1.5]))
    torch.testing.assert_close(rescale_weights(torch.tensor([-1.0, 2.0]), 2.0), torch.ones(2))
    with pytest.raises(ValueError, match="weights holds nan"):
        rescale_weights(torch.tensor([1.0, math.nan]))
    with pytest.raises(ValueError, match="minimum"):
        rescale_weights(torch.ones(2), -1.0)
