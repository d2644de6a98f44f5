"""Information transfer: similarity of covariances, and the shared subspace."""

from collections.abc import Sequence

import torch
from torch import Tensor

from steelyard.functional._tensors import narrow_type, require_finite, require_square, wide


def covariance_similarity(
    a: Tensor, b: Tensor, mass: float = 0.99, center: bool = False, normalized: bool = False
) -> Tensor:
    """Return how alike the covariances of two tasks' inputs are: sqrt(tr(S_a S_b) / (tr S_a · tr S_b)).

    Eq. 6 of the paper, with Σ = XᵀX and S its best approximation that keeps `mass` of its trace. The score of
    X with itself is ‖S‖_F/tr S, not one: 0.10 for 100 equal directions. It does not change with scale, with
    an orthogonal map of the rows, with duplicated rows, or with a rotation of the columns common to both.

    Args:
        a: `Tensor[m, d]`.
        b: `Tensor[n, d]`.
        mass: the share of the trace to keep. Eigenvalues equal to the last one kept are kept too.
        center: subtract the columns' means first (a map of the rows then changes the score).
        normalized: return tr(S_a S_b)/(‖S_a‖_F ‖S_b‖_F) instead, which is one for equal covariances.

    Returns:
        a scalar tensor in [0, 1].

    Raises:
        ValueError: if shapes do not match or a covariance is zero.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"inputs must be [m, d] and [n, d], not {list(a.shape)} and {list(b.shape)}")
    if not 0 < mass <= 1:
        raise ValueError(f"mass must lie in (0, 1], not {mass}")
    factors = [_principal_factor(_moment(x, center), mass) for x in (a, b)]
    return _similarities(factors, normalized)[0, 1].to(narrow_type(a, b))


def covariance_similarities(covariances: Sequence[Tensor], mass: float = 0.99, normalized: bool = False) -> Tensor:
    """Return `covariance_similarity` of all pairs of tasks whose covariances are there already.

    Args:
        covariances: Σ_t of each task, `Tensor[d, d]`, up to a factor.
        mass: as in `covariance_similarity`.
        normalized: as in `covariance_similarity`.

    Returns:
        `Tensor[k, k]`, symmetric; its diagonal is one only if `normalized`.

    Raises:
        ValueError: if shapes do not match or a covariance is zero.
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass must lie in (0, 1], not {mass}")
    for matrix in covariances:
        require_square(matrix, "a covariance")
        require_finite(matrix, "a covariance")
    if len({len(matrix) for matrix in covariances}) != 1:
        raise ValueError(f"covariances have different sizes: {[len(matrix) for matrix in covariances]}")
    factors = [_principal_factor(torch.linalg.eigh(_scaled(matrix, "covariance")), mass) for matrix in covariances]
    return _similarities(factors, normalized).to(narrow_type(*covariances))


def linear_shared_module(
    inputs: Tensor | Sequence[Tensor], labels: Tensor | Sequence[Tensor], rank: int, weights: Tensor | None = None
) -> Tensor:
    """Return the best shared module B of the linear model min Σ_i a_i ‖X_i B A_i - y_i‖².

    Propositions 3 and 5: where all X_iᵀX_i = Σ = V D² Vᵀ, the columns of B span V D⁻¹ Q_r, Q_r the top-r left
    singular vectors of the columns √a_i D⁻¹Vᵀ X_iᵀy_i. What is lost against every task's own least squares is the sum
    of the squares of the other singular values. With rank ≥ k nothing is lost, and nothing is shared.

    Args:
        inputs: `Tensor[N, d]`, shared by all tasks; or one `Tensor[n_i, d]` per task, of one covariance.
        labels: `Tensor[N, k]`; or one `Tensor[n_i]` per task.
        rank: the width r of the shared module, at most d and the number of rows.
        weights: `Tensor[k]`, the a_i; ones if not given.

    Returns:
        `Tensor[d, r]`. The best heads are the least-squares fits of labels on `inputs @ B`.

    Raises:
        ValueError: if rank does not fit, or tasks' covariances differ: then there is no closed form.
    """
    first = inputs if isinstance(inputs, Tensor) else inputs[0]
    if not 1 <= rank <= min(first.shape):
        raise ValueError(f"rank {rank} does not lie between 1 and the smaller side of {list(first.shape)}")
    _, values, columns = torch.linalg.svd(wide(first), full_matrices=False)
    known = values > values.max() * max(first.shape) * torch.finfo(values.dtype).eps
    inverse = torch.where(known, 1 / values, 0.0)[:, None]
    seen = inverse * (columns @ _correlations(inputs, labels))
    if weights is not None:
        seen = seen * wide(weights).sqrt()
    principal = torch.linalg.svd(seen, full_matrices=True).U[:, :rank]
    module: Tensor = columns.mT @ (inverse * principal)
    return module.to(narrow_type(first))


def _correlations(inputs: Tensor | Sequence[Tensor], labels: Tensor | Sequence[Tensor]) -> Tensor:
    """Return X_iᵀy_i of all tasks, `[d, k]`, if their covariances are one."""
    if isinstance(inputs, Tensor) and isinstance(labels, Tensor):
        return wide(inputs).mT @ wide(labels)
    if isinstance(inputs, Tensor) or isinstance(labels, Tensor) or len(inputs) != len(labels):
        raise ValueError("give one tensor of inputs and one of labels, or equally many of both")
    grams = [wide(x).mT @ wide(x) for x in inputs]
    for number, gram in enumerate(grams):
        if float((gram - grams[0]).norm()) > 1e-6 * float(grams[0].norm()):
            raise ValueError(f"the covariance of task {number} is not that of task 0; there is no closed form")
    return torch.stack([wide(x).mT @ wide(y) for x, y in zip(inputs, labels, strict=True)], 1)


def _moment(inputs: Tensor, center: bool) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (rising) and eigenvectors of XᵀX, up to a factor."""
    require_finite(inputs, "the inputs")
    rows = wide(inputs)
    if center:
        rows = rows - rows.mean(0)
    rows = _scaled(rows, "covariance of the inputs", " after centring" if center else "")
    if rows.shape[0] < rows.shape[1]:
        _, lengths, vectors = torch.linalg.svd(rows, full_matrices=False)
        return lengths.square().flip(0), vectors.mT.flip(-1)
    values, basis = torch.linalg.eigh(rows.mT @ rows)
    return values, basis


def _scaled(values: Tensor, what: str, when: str = "") -> Tensor:
    """Return values divided by the largest of them, so that squares neither overflow nor vanish."""
    values = wide(values)
    largest = values.abs().max()
    if not bool(largest > 0):
        raise ValueError(f"the {what} is zero{when}")
    return values / largest


def _principal_factor(spectrum: tuple[Tensor, Tensor], mass: float) -> Tensor:
    """Return F with F Fᵀ = S / largest eigenvalue, the truncated covariance; cut columns are zero."""
    values, basis = spectrum
    values, basis = values.clamp_min(0).flip(-1), basis.flip(-1)
    values = values / values[0]
    before = values.cumsum(0) - values
    needed = before < mass * values.sum() * (1 - 1e-12)
    last = torch.where(needed, values, torch.inf).min()
    kept = torch.where(values >= last * (1 - 1e-9), values, 0.0)
    factor: Tensor = basis * kept.sqrt()
    return factor


def _similarities(factors: Sequence[Tensor], normalized: bool) -> Tensor:
    """Return the score of every pair of truncated covariances, from their factors."""
    flat = torch.stack([(factor @ factor.mT).flatten() for factor in factors])
    overlap = (flat @ flat.mT).clamp_min(0)
    if normalized:
        return overlap / torch.sqrt(overlap.diagonal()[:, None] * overlap.diagonal())
    traces = torch.stack([factor.square().sum() for factor in factors])
    return torch.sqrt(overlap / (traces[:, None] * traces))
