"""AANG's factored weights, their exact gradient, the legal space and the stability bound."""

import math

import pytest
import torch
from torch import Tensor

from steelyard.functional import (
    factored_gradient,
    factored_weights,
    legal_objectives,
    sample_objectives,
    stability_bound,
)

SHAPE = (3, 4, 4, 2)


def random_logits(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [SHAPE, *((size,) for size in SHAPE)]
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


SAMPLED = torch.tensor([[0, 1, 2, 0], [0, 3, 2, 1], [2, 1, 0, 0], [1, 1, 1, 1], [0, 1, 3, 0]])


def test_weights_are_the_softmax_over_the_sampled_set() -> None:
    logits = random_logits()
    whole, data, transform, representation, output = logits
    total = [
        float(whole[i, t, r, o] + data[i] + transform[t] + representation[r] + output[o])
        for i, t, r, o in SAMPLED.tolist()
    ]
    expected = torch.tensor(total, dtype=torch.float64).softmax(0)
    torch.testing.assert_close(factored_weights(logits, SAMPLED), expected)
    fresh = [torch.zeros_like(part) for part in logits]
    torch.testing.assert_close(factored_weights(fresh, SAMPLED), torch.full((5,), 0.2, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_gradient_equals_finite_differences(scale: float) -> None:
    logits, signal = random_logits(), torch.randn(5, dtype=torch.float64) * scale
    exact = factored_gradient(factored_weights(logits, SAMPLED), signal, SAMPLED, SHAPE)
    for part, gradient in zip(logits, exact, strict=True):
        flat, width = part.view(-1), 1e-5
        for index in range(len(flat)):
            old = float(flat[index])
            values = []
            for shift in (width, -width):
                flat[index] = old + shift
                values.append(float(factored_weights(logits, SAMPLED) @ signal))
            flat[index] = old
            slope = (values[0] - values[1]) / (2 * width)
            assert math.isclose(slope, float(gradient.reshape(-1)[index]), rel_tol=1e-5, abs_tol=1e-8 * scale)


def test_gradient_sums_to_zero_and_spares_what_was_not_sampled() -> None:
    logits = [part.requires_grad_() for part in random_logits()]
    signal = torch.randn(5, dtype=torch.float64)
    weights = factored_weights(logits, SAMPLED)
    gradient = factored_gradient(weights.detach(), signal, SAMPLED, SHAPE)
    automatic = torch.autograd.grad(weights @ signal, logits)
    for ours, theirs, part in zip(gradient, automatic, logits, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.shape == part.shape
        torch.testing.assert_close(ours.sum().item(), 0.0, atol=1e-12, rtol=0)
    unsampled = torch.ones(SHAPE, dtype=torch.bool)
    unsampled[SAMPLED.unbind(1)] = False
    assert float(gradient[0][unsampled].abs().max()) == 0.0
    assert float(gradient[2][0]) == float(gradient[2][2]) == 0.0
    assert float(gradient[2][1].abs()) > 0


def test_a_step_reaches_unsampled_objectives_through_shared_factors_only() -> None:
    logits = random_logits()
    everything = torch.ones(SHAPE, dtype=torch.bool).nonzero()
    before = factored_weights(logits, everything).reshape(SHAPE)
    gradient = factored_gradient(factored_weights(logits, SAMPLED), torch.randn(5, dtype=torch.float64), SAMPLED, SHAPE)
    moved = [part - step for part, step in zip(logits, gradient, strict=True)]
    after = factored_weights(moved, everything).reshape(SHAPE)
    assert float(moved[0][2, 2, 2, 0] - logits[0][2, 2, 2, 0]) == 0.0
    assert abs(float(after[2, 2, 2, 0] / before[2, 2, 2, 0] - 1)) > 1e-3


def test_masked_entries_may_hold_anything() -> None:
    logits = random_logits()
    expected = factored_weights(logits, SAMPLED)
    poisoned = logits[0].clone()
    unsampled = torch.ones(SHAPE, dtype=torch.bool)
    unsampled[SAMPLED.unbind(1)] = False
    poisoned[unsampled] = math.nan
    torch.testing.assert_close(factored_weights([poisoned, *logits[1:]], SAMPLED), expected)
    poisoned[tuple(SAMPLED[2].tolist())] = -math.inf
    with pytest.raises(ValueError, match=r"sampled logits holds -inf at index \[2\]"):
        factored_weights([poisoned, *logits[1:]], SAMPLED)


def test_factors_refuse_nonsense() -> None:
    logits, signal = random_logits(), torch.zeros(5, dtype=torch.float64)
    with pytest.raises(ValueError, match="differ"):
        factored_weights(logits[:3], SAMPLED)
    with pytest.raises(ValueError, match=r"\[n, 4\]"):
        factored_weights(logits, SAMPLED[:, :3])
    with pytest.raises(ValueError, match="n ≥ 1"):
        factored_weights(logits, SAMPLED[:0])
    weights = factored_weights(logits, SAMPLED)
    with pytest.raises(ValueError, match="signal holds nan"):
        factored_gradient(weights, signal * math.nan, SAMPLED, SHAPE)
    with pytest.raises(ValueError, match=r"\[n\]"):
        factored_gradient(weights, signal[:4], SAMPLED, SHAPE)


def test_the_published_spaces_have_24_and_40_objectives() -> None:
    one_way, end_task = [False, True, True, False], [False, True]
    alone = legal_objectives([True], 4, one_way, end_task)
    both = legal_objectives([True, False], 4, one_way, end_task)
    assert int(alone.sum()) == 24
    assert int(both.sum()) == 40
    assert both.shape == (2, 4, 4, 2)
    assert not bool(both[0, :, 1:3, 1].any())
    assert not bool(both[1, :, :, 1].any())
    assert bool(both[..., 0].all())
    assert bool(both[0, :, 0, 1].all())


def test_sampling_is_legal_uniform_and_seeded() -> None:
    legal = legal_objectives([True, False], 2, [False, True], [False, True])
    counts = torch.zeros(legal.shape)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        drawn = sample_objectives(legal, 3, generator)
        assert len(set(map(tuple, drawn.tolist()))) == 3
        counts[drawn.unbind(1)] += 1
    assert float(counts[~legal].sum()) == 0.0
    expected = 2000 * 3 / int(legal.sum())
    assert float((counts[legal] - expected).abs().max()) < 6 * math.sqrt(expected)
    assert len(sample_objectives(legal, 1000)) == int(legal.sum())
    first = sample_objectives(legal, 3, torch.Generator().manual_seed(5))
    assert torch.equal(first, sample_objectives(legal, 3, torch.Generator().manual_seed(5)))
    with pytest.raises(ValueError, match="cannot draw 2 of 0"):
        sample_objectives(torch.zeros(2, 2, dtype=torch.bool), 2)
    with pytest.raises(ValueError, match="cannot draw 0"):
        sample_objectives(legal, 0)


def bound(
    samples: tuple[float, float],
    weight: float,
    smoothness: tuple[float, float] = (0.5, 2.0),
    gap: float = 0.1,
) -> float:
    return stability_bound(samples[0], weight, smoothness=smoothness, lipschitz=0.7, gap=gap, step=0.3, steps=1000.0)


def bound_by_search(samples: tuple[float, float], weight: float, curvature: float, drift: float) -> float:
    """Return Eq. 11 minimised over t_0 on a fine grid, for one pair of the theorem."""
    total = sum(samples)
    gamma, smooth = weight * total / samples[0], 0.3 * curvature
    start = torch.logspace(-6, 6, 400_001, dtype=torch.float64)
    pushed = 2 * gamma * 0.7 + (total - gamma) * drift
    values = gamma * start / total + 0.7 * pushed / (curvature * (total - gamma)) * (1000 / start) ** smooth
    return float(values.min())


@pytest.mark.parametrize(
    ("weight", "smoothness", "winner"),
    [(0.6, (0.5, 2.0), 1), (0.6, (2.0, 0.5), 1), (0.95, (0.5, 1000.0), 0), (0.05, (1e4, 0.5), 0)],
)
def test_stability_bound_minimises_equation_11(weight: float, smoothness: tuple[float, float], winner: int) -> None:
    samples = (200.0, 800.0)
    share = weight if smoothness[0] < smoothness[1] else 1 - weight
    mixed = weight * smoothness[0] + (1 - weight) * smoothness[1]
    searched = [
        bound_by_search(samples, weight, share * 0.5, (1 - share) * (0.1 + 2 * 0.7)),
        bound_by_search(samples, weight, mixed, 0.0),
    ]
    assert searched[winner] == min(searched)
    assert math.isclose(bound(samples, weight, smoothness), searched[winner], rel_tol=1e-6)
    gain = bound(samples, weight, smoothness, gap=0.0) - bound(samples, weight, smoothness)
    assert gain < 0 if winner == 0 else gain == 0


def test_stability_bound_without_auxiliary_is_the_classical_one() -> None:
    power, size = 0.3 * 0.5, 500.0
    ours = bound((size, 0), 1.0, (0.5, 0.5))
    classical = (1 + 1 / power) / (size - 1) * (2 * 0.3 * 0.7**2) ** (1 / (power + 1))
    classical *= 1000 ** (power / (power + 1))
    assert math.isclose(ours, classical, rel_tol=2 / size)
    assert ours <= classical
    assert bound((10 * size, 0), 1.0, (0.5, 0.5)) < ours


@pytest.mark.parametrize(
    ("samples", "weight", "gap"),
    [
        ((1, 5), 0.5, 0.1),
        ((100, 5), 0.0, 0.1),
        ((100, 5), 1.1, 0.1),
        ((9, 5), 0.5, -1),
    ],
)
def test_stability_bound_refuses_what_it_does_not_cover(
    samples: tuple[float, float], weight: float, gap: float
) -> None:
    with pytest.raises(ValueError, match="out of the range"):
        bound(samples, weight, gap=gap)
