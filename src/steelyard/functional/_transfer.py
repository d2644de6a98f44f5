"""Information transfer: task weights by singular values, similarity of covariances, the shared subspace."""

from collections.abc import Sequence

import torch
from torch import Tensor

from steelyard.functional._tensors import narrow_type, require_finite, require_square, wide


def svd_weights(
    inputs: Tensor | Sequence[Tensor],
    labels: Tensor | Sequence[Tensor],
    rank: int,
    center: bool = True,
    scale_free: bool = False,
    normalize: bool = True,
    *,
    standardize: bool = False,
) -> Tensor:
    """Weigh tasks by how much of their label signal lies in the tasks' principal directions.

    Algorithm 2 of the paper: θ_i = Xᵀy_i, U_r the top-r left singular vectors of [θ_1 … θ_k], and
    a_i = ‖θ_iᵀU_r‖. A task whose labels are flipped at random loses weight; rank = k removes nothing.
    Additive label noise and a wider label coding *raise* ‖θ_i‖ and with it a_i, and a task that is loud
    enough takes over U_r, so that `scale_free` does not help: `standardize` the labels against both.

    Args:
        inputs: `Tensor[N, d]`, shared by all tasks; or one `Tensor[n_i, d]` per task in a common feature
            space, such as the shared representation. Then θ_i is the mean over rows instead of the sum.
        labels: `Tensor[N, k]`, one numeric column per task; or one `Tensor[n_i]` per task.
        rank: r, from 1 to min(k, d); below k to denoise.
        center: subtract the columns' means, as label codings such as 0/1 and shifted inputs need.
        scale_free: return the share ‖θ_iᵀU_r‖/‖θ_i‖ instead of the length (0 for a task without signal).
        normalize: divide the weights by their mean.
        standardize: divide every label column by its root mean square (its standard deviation when centred),
            so that the unit and the noise of a label cannot make its task look informative.

    Returns:
        `Tensor[k]`, not negative.
    """
    if isinstance(inputs, Tensor) and isinstance(labels, Tensor):
        moments = _moments(inputs, labels, center, standardize)
    elif isinstance(inputs, Tensor) or isinstance(labels, Tensor) or len(inputs) != len(labels):
        raise ValueError("give one tensor of inputs and one of labels, or equally many of both")
    else:
        pairs = zip(inputs, labels, strict=True)
        moments = torch.cat([_moments(x, y[:, None], center, standardize) / len(x) for x, y in pairs])
    weights = moment_weights(moments, rank, scale_free, normalize=normalize)
    return weights.to(narrow_type(inputs if isinstance(inputs, Tensor) else inputs[0]))


def moment_weights(moments: Tensor, rank: int, scale_free: bool = False, *, normalize: bool = True) -> Tensor:
    """Return `svd_weights` for vectors θ_i that are already there, such as the tasks' gradients.

    Args:
        moments: `Tensor[k, d]`, one vector per task.
        rank: r, from 1 to min(k, d).
        scale_free: as in `svd_weights`.
        normalize: as in `svd_weights`; if all vectors are zero, all weights are one.

    Returns:
        `Tensor[k]`.
    """
    if moments.ndim != 2 or not 1 <= rank <= min(moments.shape):
        raise ValueError(f"rank {rank} does not lie between 1 and the smaller side of {list(moments.shape)}")
    require_finite(moments, "the tasks' vectors")
    vectors = wide(moments)
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    left, values, _ = torch.linalg.svd(vectors, full_matrices=False)
    projected = torch.linalg.vector_norm(left[:, :rank] * values[:rank], dim=1)
    weights = torch.where(lengths > 0, projected, 0.0)
    if scale_free:
        weights = _ratio(weights, lengths)
    if normalize:
        mean = weights.mean()
        weights = torch.where(mean > 0, weights / mean, 1.0)
    return weights.to(narrow_type(moments))


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
    first, second = _principal_factor(a, mass, center), _principal_factor(b, mass, center)
    overlap = (first.mT @ second).square().sum()
    if normalized:
        result = overlap / torch.sqrt((first.mT @ first).square().sum() * (second.mT @ second).square().sum())
    else:
        result = torch.sqrt(overlap / (first.square().sum() * second.square().sum()))
    return result.to(narrow_type(a, b))


def linear_shared_module(inputs: Tensor, labels: Tensor, rank: int, weights: Tensor | None = None) -> Tensor:
    """Return the best shared module B of the linear model min Σ_i a_i ‖X B A_i - y_i‖².

    Proposition 3: with X = U D Vᵀ the columns of B span V D⁻¹ Q_r, Q_r the top-r eigenvectors of
    Σ_i a_i Uᵀy_i y_iᵀU. With rank ≥ k every task reaches its own least-squares solution: nothing is shared.

    Args:
        inputs: `Tensor[N, d]`.
        labels: `Tensor[N, k]`.
        rank: the width r of the shared module, at most min(N, d).
        weights: `Tensor[k]`, the a_i; ones if not given.

    Returns:
        `Tensor[d, r]`. The best heads are the least-squares fits of `labels` on `inputs @ B`.
    """
    if not 1 <= rank <= min(inputs.shape):
        raise ValueError(f"rank {rank} does not lie between 1 and the smaller side of {list(inputs.shape)}")
    rows, values, columns = torch.linalg.svd(wide(inputs), full_matrices=False)
    known = values > values.max() * max(inputs.shape) * torch.finfo(values.dtype).eps
    seen = rows.mT @ wide(labels) * known[:, None]
    if weights is not None:
        seen = seen * wide(weights).sqrt()
    principal = torch.linalg.svd(seen, full_matrices=True).U[:, :rank]
    inverse = torch.where(known, 1 / values, 0.0)
    module: Tensor = columns.mT @ (inverse[:, None] * principal)
    return module.to(narrow_type(inputs))


def _moments(inputs: Tensor, labels: Tensor, center: bool, standardize: bool) -> Tensor:
    """Return the rows θ_i = Xᵀy_i, shape [k, d], in float64."""
    if inputs.ndim != 2 or labels.ndim != 2 or len(inputs) != len(labels):
        raise ValueError(f"inputs {list(inputs.shape)} and labels {list(labels.shape)} do not match")
    columns, answers = wide(inputs), wide(labels)
    if center:
        columns, answers = columns - columns.mean(0), answers - answers.mean(0)
    spread = answers.square().mean(0).sqrt()
    spread = torch.where(spread > 1e-12 * wide(labels).abs().amax(0), spread, 0.0)
    answers = _ratio(answers, spread) * (1.0 if standardize else spread)
    return answers.mT @ columns


def _ratio(values: Tensor, by: Tensor) -> Tensor:
    """Return values / by, and zero where `by` is zero."""
    return torch.where(by > 0, values / by, 0.0)


def _principal_factor(inputs: Tensor, mass: float, center: bool) -> Tensor:
    """Return F with F Fᵀ = S / largest eigenvalue, the truncated covariance; cut columns are zero."""
    require_finite(inputs, "the inputs")
    rows = wide(inputs)
    if center:
        rows = rows - rows.mean(0)
    largest = rows.abs().max()
    if not bool(largest > 0):
        raise ValueError("the covariance of the inputs is zero" + (" after centring" if center else ""))
    rows = rows / largest
    if rows.shape[0] < rows.shape[1]:
        _, lengths, vectors = torch.linalg.svd(rows, full_matrices=False)
        values, basis = lengths.square(), vectors.mT
    else:
        values, basis = torch.linalg.eigh(rows.mT @ rows)
        values, basis = values.clamp_min(0).flip(-1), basis.flip(-1)
    values = values / values[0]
    before = values.cumsum(0) - values
    needed = before < mass * values.sum() * (1 - 1e-12)
    last = torch.where(needed, values, torch.inf).min()
    kept = torch.where(values >= last * (1 - 1e-9), values, 0.0)
    factor: Tensor = basis * kept.sqrt()
    return factor


def gram_weights(gram: Tensor, rank: int, scale_free: bool = False, *, normalize: bool = True) -> Tensor:
    """Return `moment_weights` from the Gram matrix ⟨θ_i, θ_j⟩, for vectors that are too long to hold.

    Squaring halves the digits: a vector 1e-6 times as long as the longest keeps about four of them.

    Args:
        gram: `Tensor[k, k]`.
        rank: r, from 1 to k.
        scale_free: as in `svd_weights`.
        normalize: as in `svd_weights`.

    Returns:
        `Tensor[k]`.
    """
    require_square(gram, "the Gram matrix")
    require_finite(gram, "the Gram matrix")
    values, vectors = torch.linalg.eigh(wide(gram))
    moments = vectors * values.clamp_min(0).sqrt()
    weights = moment_weights(moments, rank, scale_free, normalize=normalize)
    return weights.to(narrow_type(gram))
