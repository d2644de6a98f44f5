"""The minimum-norm solver against enumeration of all supports, closed forms and optimality conditions."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from steelyard.functional import gram_matrix, min_norm_gap, min_norm_weights

SCALES = [1e-6, 1e-3, 1.0, 1e3, 1e6]


def enumerate_minimum(kernel: Tensor) -> float:
    """Return min λᵀKλ over the simplex: the best stationary point over all supports, an exact solution."""
    scale, best = float(kernel.diagonal().max()), math.inf
    kernel = kernel / scale
    for count in range(1, len(kernel) + 1):
        for chosen in itertools.combinations(range(len(kernel)), count):
            index = torch.tensor(chosen)
            system = torch.ones(count + 1, count + 1, dtype=torch.float64)
            system[:count, :count] = kernel[index][:, index]
            system[count, count] = 0
            goal = torch.zeros(count + 1, 1, dtype=torch.float64)
            goal[count] = 1
            point = torch.linalg.lstsq(system, goal, driver="gelsd").solution[:count, 0]
            if bool((point >= -1e-12).all()) and abs(float(point.sum()) - 1) < 1e-9:
                best = min(best, float(point @ kernel[index][:, index] @ point))
    return best * scale


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("seed", range(6))
def test_equals_enumeration_and_satisfies_kkt(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tasks, width in ((2, 4), (3, 2), (4, 8), (5, 5), (6, 3)):
        shift = seed % 3
        rows = torch.randn(tasks, width, dtype=torch.float64, generator=generator) + shift
        kernel = gram_matrix(rows * scale)
        weights = min_norm_weights(kernel)
        assert bool((weights >= 0).all())
        torch.testing.assert_close(weights.sum().item(), 1.0)
        value, size = float(weights @ kernel @ weights), float(kernel.diagonal().max())
        assert value <= enumerate_minimum(kernel) * (1 + 1e-9) + 1e-13 * size
        common = weights @ rows * scale
        slack = (rows * scale) @ common - common @ common
        assert float(slack.min()) >= -1e-9 * value - 1e-13 * size
        assert float((weights * slack).abs().max()) <= 1e-9 * value + 1e-13 * size


def test_two_tasks_in_closed_form() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        first, second = torch.randn(2, 3, dtype=torch.float64, generator=generator) + 0.5
        apart = first - second
        share = float(((second - first) @ second / (apart @ apart)).clamp(0, 1))
        weights = min_norm_weights(gram_matrix(torch.stack([first, second])))
        torch.testing.assert_close(weights.tolist(), [share, 1 - share], atol=1e-10, rtol=0)


@pytest.mark.parametrize("ratio", [1e-6, 1e-3, 1e3, 1e6])
def test_orthogonal_gradients_of_very_different_length(ratio: float) -> None:
    lengths = torch.tensor([1.0, ratio, 3.0], dtype=torch.float64)
    weights = min_norm_weights(torch.diag(lengths**2))
    expected = lengths**-2 / (lengths**-2).sum()
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1.0, 1e15])
def test_common_scale_does_not_matter_even_for_tiny_float32_gradients(scale: float) -> None:
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(3)) + 0.3
    plain = min_norm_weights(gram_matrix(rows))
    torch.testing.assert_close(min_norm_weights(gram_matrix(rows * scale)), plain, rtol=1e-4, atol=1e-6)
    assert float(plain.std()) > 1e-3


def test_zero_rows_duplicates_and_a_single_task() -> None:
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 4.0]], dtype=torch.float64)
    weights = min_norm_weights(gram_matrix(rows))
    torch.testing.assert_close(weights @ rows, torch.tensor([1.92, 1.44], dtype=torch.float64))
    with_zero = torch.cat([rows, torch.zeros(1, 2, dtype=torch.float64)])
    assert min_norm_weights(gram_matrix(with_zero)).tolist() == [0, 0, 0, 1]
    assert min_norm_weights(torch.zeros(4, 4)).tolist() == [0.25] * 4
    assert min_norm_weights(torch.tensor([[7.0]])).tolist() == [1.0]
    same = torch.ones(3, 5, dtype=torch.float64)
    torch.testing.assert_close(min_norm_weights(gram_matrix(same)) @ same, same[0])


def test_no_direction_is_left_when_zero_lies_in_the_hull() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [5.0, 5.0]], dtype=torch.float64)
    weights = min_norm_weights(gram_matrix(rows))
    torch.testing.assert_close(weights @ rows, torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_nearly_parallel_gradients_end_on_the_gap() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.ones(8, 30, dtype=torch.float64)
    rows = rows + 1e-5 * torch.randn(8, 30, dtype=torch.float64, generator=generator)
    kernel = gram_matrix(rows)
    weights = min_norm_weights(kernel)
    assert float(min_norm_gap(kernel, weights)) <= 1e-11 * float(weights @ kernel @ weights)


@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_tasks_that_enter_may_leave_again(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    for _ in range(60):
        lengths = 0.3 + 3 * torch.rand(20, 1, dtype=torch.float64, generator=generator)
        rows = lengths * (torch.randn(20, width, dtype=torch.float64, generator=generator))
        rows[:, 0] = rows[:, 0].abs() + 0.2 * lengths[:, 0]
        kernel = gram_matrix(rows)
        weights = min_norm_weights(kernel)
        assert bool((weights >= 0).all())
        torch.testing.assert_close(weights.sum().item(), 1.0)
        assert float(min_norm_gap(kernel, weights)) <= 1e-10 * float(weights @ kernel @ weights)


def test_many_tasks_end_on_the_gap() -> None:
    generator = torch.Generator().manual_seed(2)
    lengths = 10 ** torch.rand(60, 1, dtype=torch.float64, generator=generator).mul(4).sub(2)
    rows = lengths * (torch.randn(60, 400, dtype=torch.float64, generator=generator) + 0.05)
    kernel = gram_matrix(rows)
    weights = min_norm_weights(kernel)
    assert float(min_norm_gap(kernel, weights)) <= 1e-9 * float(weights @ kernel @ weights)
    assert int((weights > 0).sum()) > 5


def test_tolerance_is_a_relative_gap() -> None:
    generator = torch.Generator().manual_seed(4)
    kernel = gram_matrix(torch.randn(20, 50, dtype=torch.float64, generator=generator) + 0.2)
    loose = min_norm_weights(kernel, tolerance=0.5)
    gap, value = min_norm_gap(kernel, loose), loose @ kernel @ loose
    assert 1e-6 * float(value) < float(gap) <= 0.5 * float(value)


def test_order_of_tasks_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(6, 20, dtype=torch.float64, generator=generator) + 0.3
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    plain, moved = min_norm_weights(gram_matrix(rows)), min_norm_weights(gram_matrix(rows[order]))
    torch.testing.assert_close(moved, plain[order], rtol=1e-8, atol=1e-10)


def test_gap_is_positive_away_from_the_optimum() -> None:
    kernel = torch.diag(torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(min_norm_gap(kernel, torch.tensor([0.8, 0.2])).item(), 0.0, atol=1e-6, rtol=0)
    torch.testing.assert_close(min_norm_gap(kernel, torch.tensor([0.0, 1.0])).item(), 4.0)


def test_keeps_the_type_and_refuses_nonsense() -> None:
    assert min_norm_weights(torch.eye(3)).dtype == torch.float32
    assert min_norm_weights(torch.eye(3).double()).dtype == torch.float64
    with pytest.raises(ValueError, match="nan"):
        min_norm_weights(torch.tensor([[math.nan]]))
    with pytest.raises(ValueError, match=r"\[n, n\]"):
        min_norm_weights(torch.ones(2, 3))
    with pytest.raises(ValueError, match="symmetric"):
        min_norm_weights(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="negative diagonal"):
        min_norm_weights(torch.diag(torch.tensor([1.0, -1.0])))
