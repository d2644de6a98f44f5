"""Pieces of the methods that are compared against: losses with learned scales, rates of learning, orthogonality."""

import math

import torch
from torch import Tensor

from steelyard.functional._tensors import narrow_type, require_finite, require_square


def uncertainty_losses(losses: Tensor, log_variance: Tensor, regression: Tensor | bool = False) -> Tensor:
    """Return each task's loss under a learned noise level s² = exp(u).

    Kendall et al.: classification L/s² + log s, regression L/(2s²) + log s. Sum over the tasks and learn u
    with the model, without weight decay. At the stationary u the loss L carries the weight 1/(2L) either way.

    Args:
        losses: `Tensor[..., T]`.
        log_variance: `Tensor[T]`, u = log s².
        regression: `BoolTensor[T]`, or one answer for all tasks.

    Returns:
        `Tensor[..., T]`.
    """
    share = 1.0 - 0.5 * torch.as_tensor(regression, dtype=losses.dtype, device=losses.device)
    return share * torch.exp(-log_variance) * losses + log_variance / 2


def impartial_losses(losses: Tensor, log_weights: Tensor) -> Tensor:
    """Return each task's loss under a learned scale e^s: e^s·L - s.

    IMTL-L (Liu et al. 2021, Eq. 8). Sum over the tasks and learn s with the model, without weight decay. At the
    stationary s the loss L carries the weight 1/L, so that every weighted loss is one.

    Args:
        losses: `Tensor[..., T]`.
        log_weights: `Tensor[T]`, s.

    Returns:
        `Tensor[..., T]`.
    """
    return torch.exp(log_weights) * losses - log_weights


def average_weights(losses: Tensor, earlier: Tensor, temperature: float = 2.0) -> Tensor:
    """Return DWA's weights softmax(r/temperature), r_t = L_t/L_t' the ratio of two epochs' mean losses.

    Liu, Johns and Davison 2019, Eq. 7, which multiplies by T. Tasks whose loss falls slowly gain weight.

    Args:
        losses: `Tensor[..., T]`, of the last epoch.
        earlier: `Tensor[..., T]`, of the epoch before; where it is not positive the ratio counts as one.
        temperature: the larger, the more even.

    Returns:
        `Tensor[..., T]` on the simplex.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    known = earlier > 0
    ratios = torch.where(known, losses / torch.where(known, earlier, 1.0), 1.0)
    return torch.softmax(ratios / temperature, dim=-1)


def amortised_weights(logits: Tensor, losses: Tensor) -> Tensor:
    """Return FAMO's weights, in proportion to softmax(ξ)_t / L_t: the step that lowers log L_t by z_t.

    Liu et al. 2023, Eq. 8, with Σ = 1 so that the step keeps the length of the gradients.

    Args:
        logits: `Tensor[..., T]`, ξ.
        losses: `Tensor[..., T]`; a loss that is not positive counts as absent, with weight 0.

    Returns:
        `Tensor[..., T]` on the simplex; softmax(ξ) where no loss is positive.
    """
    known = losses > 0
    scores = torch.log_softmax(logits, -1) - torch.where(known, losses, 1.0).log()
    scores = torch.where(known | ~known.any(-1, keepdim=True), scores, -torch.inf)
    return torch.softmax(scores, dim=-1)


def amortised_gradient(logits: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return FAMO's gradient for ξ: Jᵀ(log L(θ_k) - log L(θ_{k+1})), J the Jacobian of softmax at ξ.

    Liu et al. 2023, Eq. 9: along it falls the weight of tasks whose losses have improved most.

    Args:
        logits: `Tensor[..., T]`, ξ.
        before: `Tensor[..., T]`, the losses before the step.
        after: `Tensor[..., T]`, those of the same rows after it; pairs that are not positive count as unchanged.

    Returns:
        `Tensor[..., T]`, with sum 0.
    """
    known = (before > 0) & (after > 0)
    gains = torch.where(known, torch.where(known, before, 1.0).log() - torch.where(known, after, 1.0).log(), 0.0)
    shares = torch.softmax(logits, dim=-1).to(gains)
    return shares * (gains - (shares * gains).sum(-1, keepdim=True))


def gradnorm_targets(norms: Tensor, losses: Tensor, initial_losses: Tensor, asymmetry: float) -> Tensor:
    """Return the gradient norms Ḡ·r_t^a that GradNorm pulls each task towards, as constants.

    r_t is the task's loss ratio L_t/L_t(0) relative to the mean ratio: tasks that learn slowly get larger
    gradients. The loss for the weights is Σ_t |G_t - target_t|; its gradient must reach them alone.

    Args:
        norms: `Tensor[..., T]`, G_t = ‖∇_W w_t L_t‖ at the last shared layer W.
        losses: `Tensor[..., T]`.
        initial_losses: `Tensor[..., T]`, the losses at the start, positive.
        asymmetry: the exponent a.

    Returns:
        `Tensor[..., T]`, detached.
    """
    if bool((initial_losses <= 0).any()):
        raise ValueError("initial losses must be positive")
    ratios = losses.detach() / initial_losses.detach()
    mean = ratios.mean(-1, keepdim=True)
    rates = torch.where(mean > 0, ratios / mean, 1.0)
    return norms.detach().mean(-1, keepdim=True) * rates**asymmetry


def orthogonality_penalty(shared: Tensor, private: Tensor) -> Tensor:
    """Return ‖SᵀP‖²_F, zero when no shared feature varies with a private one over the batch.

    AdvMTL's penalty between the features of the shared and the private encoder. It is a sum over the rows
    before the square: it grows with the square of the batch size.

    Args:
        shared: `Tensor[..., N, p]`.
        private: `Tensor[..., N, q]`.

    Returns:
        `Tensor[...]`.
    """
    return (shared.mT @ private).square().sum((-2, -1))


def trust_region_step(gradient: Tensor, curvature: Tensor, radius: float = math.inf) -> Tensor:
    """Return the step a that minimises gᵀa + ½aᵀHa subject to ‖a‖ ≤ radius, exactly.

    For alphaVIL: the dev loss at θ + Σ_t (1 + a_t)·δ_t has at a = 0 the gradient g_t = ⟨∇L, δ_t⟩ and the
    curvature H_tj = δ_tᵀ∇²L δ_j, both T-dimensional, so that the best mixture is one small exact step. With
    a positive definite H and room enough it is Newton's -H⁻¹g; H may also be indefinite.

    Args:
        gradient: `Tensor[T]`.
        curvature: `Tensor[T, T]`, symmetric.
        radius: the largest length of the step, positive.

    Returns:
        `Tensor[T]`.

    Raises:
        ValueError: if the radius is infinite and the model has no unique minimum.
    """
    require_square(curvature, "the curvature")
    require_finite(curvature, "the curvature")
    require_finite(gradient, "the gradient")
    if not radius > 0 or gradient.shape != curvature.shape[:1]:
        raise ValueError(f"radius {radius}, gradient {list(gradient.shape)}: not positive, or of another size")
    matrix = curvature.detach().to(device="cpu", dtype=torch.float64)
    values, basis = torch.linalg.eigh((matrix + matrix.T) / 2)
    pull = -(basis.T @ gradient.detach().to(matrix))
    tiny = torch.finfo(torch.float64).eps * len(values) * float(values.abs().max())
    if float(values[0]) > tiny and float((pull / values).norm()) <= radius:
        step = pull / values
    elif math.isinf(radius):
        raise ValueError("the curvature is not positive definite: give a radius")
    else:
        step = _boundary_step(values, pull, radius, tiny)
    rotated: Tensor = basis @ step
    return rotated.to(device=gradient.device, dtype=narrow_type(gradient))


def _boundary_step(values: Tensor, pull: Tensor, radius: float, tiny: float) -> Tensor:
    """Return the minimiser where the radius binds or curvature is not positive, in the eigenbasis."""
    lowest = min(float(values[0]), 0.0)
    lifted = values - lowest
    flat = lifted <= tiny
    noise = tiny * radius + torch.finfo(torch.float64).eps * float(pull.norm())
    if float((pull * flat).norm()) <= noise:
        step = torch.where(flat, 0.0, pull / torch.where(flat, 1.0, lifted))
        room = radius**2 - float(step.square().sum())
        if room >= 0:
            step[0] = math.sqrt(room) if lowest < -tiny else 0.0
            return step
    low, high = 0.0, float(pull.norm()) / radius
    while low < (middle := (low + high) / 2) < high:
        if float((pull / (lifted + middle)).norm()) > radius:
            low = middle
        else:
            high = middle
    return pull / (lifted + high)
