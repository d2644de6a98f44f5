"""Task weights by singular values (information transfer, Algorithm 2), and the rank that they need."""

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


def moment_weights(
    moments: Tensor, rank: int, scale_free: bool = False, *, normalize: bool = True, owners: Tensor | None = None
) -> Tensor:
    """Return `svd_weights` for vectors θ_i that are already there, such as the tasks' gradients.

    Args:
        moments: `Tensor[k, d]`, one vector per task, or several (one for each column of its labels).
        rank: r, from 1 to min(k, d).
        scale_free: as in `svd_weights`.
        normalize: as in `svd_weights`; if all vectors are zero, all weights are one.
        owners: `LongTensor[k]`, the task of each vector; by default each has its own. a_i is then the length
            of all that a task's vectors have in U_r: ‖Θ_iᵀU_r‖_F.

    Returns:
        `Tensor[k]`, or one number for each task, up to the largest of `owners`.
    """
    if moments.ndim != 2 or not 1 <= rank <= min(moments.shape):
        raise ValueError(f"rank {rank} does not lie between 1 and the smaller side of {list(moments.shape)}")
    require_finite(moments, "the tasks' vectors")
    vectors = wide(moments)
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    left, values, _ = torch.linalg.svd(vectors, full_matrices=False)
    projected = torch.linalg.vector_norm(left[:, :rank] * values[:rank], dim=1)
    if owners is not None:
        projected, lengths = _joined(projected, owners), _joined(lengths, owners)
    weights = torch.where(lengths > 0, projected, 0.0)
    if scale_free:
        weights = _ratio(weights, lengths)
    if normalize:
        mean = weights.mean()
        weights = torch.where(mean > 0, weights / mean, 1.0)
    return weights.to(narrow_type(moments))


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


def spectral_gap_rank(moments: Tensor) -> int:
    """Return the rank r after which the singular values of the vectors fall by most, s_r - s_(r+1).

    It is smaller than the number of the values that are not zero (unless there is one only): keeping all
    removes no noise.

    Args:
        moments: `Tensor[k, d]`, the vectors θ_i.

    Returns:
        r, at least 1.
    """
    require_finite(moments, "the tasks' vectors")
    values = torch.linalg.svdvals(wide(moments))
    values = values[values > values[:1] * max(moments.shape) * torch.finfo(values.dtype).eps]
    return int((values[:-1] - values[1:]).argmax()) + 1 if len(values) > 1 else 1


def cross_validated_rank(folds: Tensor) -> int:
    """Return the rank r with which the vectors of some rows, denoised, best foretell those of the other rows.

    For each fold f the vectors of all others, Θ_(-f), are projected on their first r left singular vectors, and
    compared with Θ_f: the error Σ_f ‖P_r Θ_(-f) - Θ_f‖² has a minimum, where ‖Θ_f - P_r Θ_f‖² would fall for ever.

    Args:
        folds: `Tensor[F, k, d]`, the vectors θ_i of each fold's rows alone (means over them), F ≥ 2.

    Returns:
        r, from 1 to min(k, d); the smallest of those that do equally well.
    """
    if folds.ndim != 3 or len(folds) < 2:
        raise ValueError(f"folds must have the shape [F, k, d] with F ≥ 2, not {list(folds.shape)}")
    require_finite(folds, "the folds' vectors")
    vectors = wide(folds)
    others = (vectors.sum(0) - vectors) / (len(vectors) - 1)
    left, values, right = torch.linalg.svd(others, full_matrices=False)
    # P_r adds one direction at a time: ‖P_rΘ - Θ_f‖² changes by s_r² - 2 s_r ⟨u_r v_rᵀ, Θ_f⟩ with each.
    agreement = torch.einsum("fkr,fkd,frd->fr", left, vectors, right)
    errors = (values.square() - 2 * values * agreement).sum(0).cumsum(0)
    return int((errors <= errors.min() + 1e-12 * errors.abs().max()).nonzero()[0]) + 1


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


def _joined(lengths: Tensor, owners: Tensor) -> Tensor:
    """Return the length of all vectors of a task together, from each one's."""
    total = lengths.new_zeros(int(owners.max()) + 1).index_add(0, owners.to(lengths.device), lengths.square())
    return total.sqrt()


def _ratio(values: Tensor, by: Tensor) -> Tensor:
    """Return values / by, and zero where `by` is zero."""
    return torch.where(by > 0, values / by, 0.0)
