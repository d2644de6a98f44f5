"""PCGrad in Gram space against the algorithm on vectors, with the same random orders."""

import math

import pytest
import torch
from torch import Generator, Tensor

from steelyard.functional import conflict_coefficients, gram_matrix, project_conflicts


def on_vectors(rows: Tensor, generator: Generator) -> Tensor:
    """PCGrad as its algorithm box has it, off the original gradients."""
    result = rows.clone()
    for task in range(len(rows)):
        for other in torch.randperm(len(rows), generator=generator).tolist():
            overlap = result[task] @ rows[other]
            if other != task and overlap < 0:
                result[task] = result[task] - overlap / (rows[other] @ rows[other]) * rows[other]
    return result


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_algorithm_on_vectors(seed: int, scale: float) -> None:
    generator = Generator().manual_seed(seed)
    rows = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    expected = on_vectors(rows, Generator().manual_seed(7)) * scale
    projected = project_conflicts(rows * scale, Generator().manual_seed(7))
    torch.testing.assert_close(projected, expected, rtol=1e-9, atol=1e-10 * scale)
    assert not torch.allclose(projected, rows * scale)


def test_orders_are_random_and_seeded() -> None:
    rows = torch.randn(6, 4, dtype=torch.float64, generator=Generator().manual_seed(0))
    runs = [project_conflicts(rows, Generator().manual_seed(seed)) for seed in range(5)]
    torch.testing.assert_close(runs[0], project_conflicts(rows, Generator().manual_seed(0)), rtol=0, atol=0)
    assert any(not torch.allclose(runs[0], other) for other in runs[1:])


def test_identity_without_conflict_is_bitwise() -> None:
    rows = torch.rand(5, 30, generator=Generator().manual_seed(0))
    assert torch.equal(project_conflicts(rows), rows)
    assert torch.equal(conflict_coefficients(gram_matrix(rows)), torch.eye(5, dtype=torch.float64))


def test_two_tasks_become_orthogonal_to_the_other_original() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    projected = project_conflicts(rows)
    torch.testing.assert_close(projected, torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64))


def test_lengths_far_apart_zero_rows_and_tiny_float32() -> None:
    rows = torch.tensor([[1e-20, 0.0], [-1e20, 1e20], [0.0, 0.0]], dtype=torch.float64)
    projected = project_conflicts(rows) / torch.tensor([[1e-20], [1e20], [1.0]], dtype=torch.float64)
    expected = torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(projected, expected, rtol=1e-12, atol=1e-15)
    tiny = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]) * 1e-30
    torch.testing.assert_close(project_conflicts(tiny) * 1e30, torch.tensor([[0.5, 0.5], [0.0, 1.0]]))


def test_mappings_and_shapes_equal_flat_rows() -> None:
    rows = torch.randn(4, 12, dtype=torch.float64, generator=Generator().manual_seed(2))
    flat = project_conflicts(rows, Generator().manual_seed(1))
    parts = project_conflicts({"a": rows[:, :8].reshape(4, 2, 4), "b": rows[:, 8:]}, Generator().manual_seed(1))
    torch.testing.assert_close(torch.cat([parts["a"].reshape(4, 8), parts["b"]], 1), flat)
    torch.testing.assert_close(
        project_conflicts(rows.reshape(4, 3, 4), Generator().manual_seed(1)).reshape(4, 12), flat
    )


def test_coefficients_weigh_the_losses() -> None:
    rows = torch.randn(5, 6, dtype=torch.float64, generator=Generator().manual_seed(4))
    mixing = conflict_coefficients(gram_matrix(rows), Generator().manual_seed(0))
    update = project_conflicts(rows, Generator().manual_seed(0)).sum(0)
    torch.testing.assert_close(mixing.sum(0) @ rows, update)
    assert bool((mixing >= 0).all())


def test_types_and_rounding_below_zero() -> None:
    assert conflict_coefficients(torch.eye(2)).dtype == torch.float32
    noisy = torch.tensor([[-1e-12, -1e-7], [-1e-7, 1.0]])
    assert torch.equal(conflict_coefficients(noisy), torch.eye(2))


def test_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="holds nan"):
        project_conflicts(torch.tensor([[math.nan]]))
    with pytest.raises(ValueError, match=r"\[n, n\]"):
        conflict_coefficients(torch.ones(2))
