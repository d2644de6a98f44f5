"""The shortest vector in the convex hull of the tasks' gradients, from their Gram matrix alone."""

import torch
from torch import Tensor

from steelyard.functional._tensors import narrow_type, require_finite, require_square, wide

_EPS = torch.finfo(torch.float64).eps


def min_norm_weights(gram: Tensor, tolerance: float = 1e-12) -> Tensor:
    """Return λ on the simplex that minimises ‖Σ_t λ_t d_t‖² = λᵀ K λ.

    The common descent direction of MGDA and of MetaWeighting (Eq. 12, Algorithm 2). The papers use
    Frank-Wolfe; this is Wolfe's active-set method, which ends at the exact solution after finitely many
    steps. It stops on the duality gap: λᵀKλ - min_t (Kλ)_t ≤ tolerance · λᵀKλ, up to rounding. The result
    does not depend on the gradients' common scale. Works in float64 on the host, with one transfer.

    A task with a zero gradient makes the minimum zero: it then takes all the weight. Where several weightings
    attain the minimum (duplicates, more tasks than dimensions), one of them is returned, always the same.

    Args:
        gram: `Tensor[T, T]` of inner products ⟨d_t, d_j⟩.
        tolerance: relative duality gap at which to stop.

    Returns:
        `Tensor[T]`, in the type and on the device of `gram`.

    Raises:
        ValueError: if `gram` is not square, symmetric and finite, or its diagonal is negative.
    """
    kernel = _prepared(gram)
    weights = torch.zeros(len(kernel), dtype=torch.float64)
    weights[int(kernel.diagonal().argmin())] = 1.0
    if float(kernel.diagonal().max()) == 0.0:
        weights = torch.full_like(weights, 1 / len(weights))
    while True:
        entering = _steepest(kernel, weights, tolerance)
        if entering is None:
            break
        moved = _reoptimise(kernel, weights, entering)
        if not float(moved @ kernel @ moved) < float(weights @ kernel @ weights):
            break
        weights = moved
    return weights.to(device=gram.device, dtype=narrow_type(gram))


def min_norm_gap(gram: Tensor, weights: Tensor) -> Tensor:
    """Return the duality gap λᵀKλ - min_t (Kλ)_t of a weighting: zero exactly at the optimum.

    The gap bounds how far λᵀKλ/2 lies above its minimum. Its sign is that of the Karush-Kuhn-Tucker
    conditions ⟨d_c, d_t⟩ ≥ ‖d_c‖² for all t, where d_c = Σ_t λ_t d_t.

    Args:
        gram: `Tensor[T, T]`.
        weights: `Tensor[T]` on the simplex.

    Returns:
        a scalar tensor, in the square of the gradients' unit.
    """
    require_square(gram, "the Gram matrix")
    slopes = wide(gram) @ wide(weights)
    return (wide(weights) @ slopes - slopes.min()).to(narrow_type(gram, weights))


def _prepared(gram: Tensor) -> Tensor:
    """Check a Gram matrix and return it symmetric, on the host, in float64, with largest diagonal one."""
    require_square(gram, "the Gram matrix")
    require_finite(gram, "the Gram matrix")
    kernel = gram.detach().to(device="cpu", dtype=torch.float64)
    largest = float(kernel.abs().max())
    if largest > 0:
        kernel = kernel / largest
    if bool((kernel - kernel.T).abs().max() > 1e-3):
        raise ValueError("the Gram matrix is not symmetric")
    if bool((kernel.diagonal() < 0).any()):
        raise ValueError("the Gram matrix has a negative diagonal entry")
    return (kernel + kernel.T) / 2


def _steepest(kernel: Tensor, weights: Tensor, tolerance: float) -> int | None:
    """Return the task whose entry shortens the vector fastest, or None when the duality gap is closed."""
    slopes, value = kernel @ weights, weights @ kernel @ weights
    size = kernel.abs() @ weights
    rounding = 2 * _EPS * len(weights) * (size + weights @ size)
    excess = value - slopes - tolerance * value - rounding
    if not bool((excess > 0).any()):
        return None
    return int((excess / kernel.diagonal().sqrt().clamp_min(_EPS**2)).argmax())


def _reoptimise(kernel: Tensor, weights: Tensor, entering: int) -> Tensor:
    """Admit a task and move to the affine hull's minimum, dropping tasks that would turn negative."""
    weights = weights.clone()
    active = weights > 0
    active[entering] = True
    while True:
        index = active.nonzero().squeeze(-1)
        goal = torch.zeros_like(weights)
        goal[index] = _affine_minimum(kernel[index][:, index])
        bad = active & (goal <= 0)
        if not bool(bad.any()):
            return goal
        ratios = torch.where(bad, weights / (weights - goal).clamp_min(_EPS**4), torch.inf)
        first = int(ratios.argmin())
        weights = (weights + ratios[first] * (goal - weights)).clamp_min(0)
        weights[first] = 0.0
        weights = weights / weights.sum()
        active = active & (weights > 0)


def _affine_minimum(kernel: Tensor) -> Tensor:
    """Return μ with Σμ = 1 that minimises μᵀKμ, of any sign.

    Solves (K + s·11ᵀ) u = 1 and divides by Σu, which is regular whenever the points are affinely
    independent; rows and columns are scaled to a unit diagonal so that gradients of very different length
    keep their digits.
    """
    shift = kernel.diagonal().min().clamp_min(_EPS**2)
    matrix = kernel + shift
    scale = matrix.diagonal().rsqrt()
    matrix = scale[:, None] * matrix * scale
    solved: Tensor = torch.linalg.lstsq(matrix, scale[:, None], driver="gelsd").solution
    raw = solved.squeeze(-1) * scale
    return raw / raw.sum()
