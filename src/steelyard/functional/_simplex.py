"""Weights on the simplex, or with a fixed sum: mirror descent, the ramp, the bandit, rescaling."""

import math
import warnings

import torch
from torch import Tensor

from steelyard.functional._tensors import narrow_type, require_finite, wide


def mirror_descent(weights: Tensor, gradient: Tensor, step: float, floor: float = 0.0) -> Tensor:
    """Take one exponentiated-gradient step: ω_t ← ω_t·exp(-step·g_t) / Σ_s ω_s·exp(-step·g_s).

    TAWT, Eq. 2.8. Works on logarithms, so no step and no gradient overflows, and adding a constant to the
    gradient changes nothing. A weight of exactly zero stays zero for ever unless `floor` is positive.

    Args:
        weights: `Tensor[..., T]`, not negative; need not sum to one.
        gradient: `Tensor[..., T]`, ∂(target loss)/∂ω_t or any signal that should fall.
        step: the step size η ≥ 0.
        floor: smallest weight returned, at most 1/T. Weights above it keep their proportions (the
            projection that is nearest in relative entropy); nothing changes where it does not bind.

    Returns:
        `Tensor[..., T]` on the simplex.

    Raises:
        ValueError: if the gradient is not finite, or weights, step or floor are out of range.
    """
    if weights.shape != gradient.shape or weights.ndim == 0:
        raise ValueError(f"weights {list(weights.shape)} and gradient {list(gradient.shape)} must match")
    if not (math.isfinite(step) and step >= 0):
        raise ValueError(f"step must be finite and not negative, not {step}")
    if not 0 <= floor * weights.shape[-1] <= 1:
        raise ValueError(f"floor must lie between 0 and 1/T = {1 / weights.shape[-1]:.3g}, not {floor}")
    require_finite(gradient, "the gradient")
    logits = _log_weights(weights) - step * wide(gradient)
    moved = torch.softmax(logits, dim=-1)
    if floor > 0:
        moved = _raise_to_floor(moved, floor)
    return moved.to(narrow_type(weights))


def ramp_weights(initial: Tensor, target: int, rounds: float, step: float = 1.0) -> Tensor:
    """Return the weights that TAWT's published joint update reaches whatever the data say.

    In published joint training the target is compared with itself, so that g_target = -1 in every round; with
    all other signals at zero the target's weight relative to the others' grows by exp(step) a round. This
    schedule is the control against which a claim for learned weights is made.

    Args:
        initial: `Tensor[..., T]`, the weights before the first round.
        target: index of the target task.
        rounds: how many rounds have passed.
        step: η·c, the growth of the target's log-weight per round.

    Returns:
        `Tensor[..., T]` on the simplex.
    """
    push = torch.zeros_like(wide(initial))
    push[..., target] = step * rounds
    return torch.softmax(_log_weights(initial) + push, dim=-1).to(narrow_type(initial))


def bandit_weights(weights: Tensor, losses: Tensor, step: float, radius: float) -> Tensor:
    """Take BanditMTL's mirror-ascent step: p_t ∝ (p_t·exp(step·L_t))^{1/(1+λ)}.

    λ ≥ 0 is zero if the step stays within KL(p‖uniform) ≤ radius, and otherwise the root of
    KL(p‖uniform) = radius, found by bisection on 1/(1+λ), in which the divergence is monotone. Give raw
    losses, not weighted ones. Tasks with larger losses gain weight.

    Args:
        weights: `Tensor[..., T]`, not negative. A zero counts as the smallest positive number, since a
            distribution with zeros may have no tempered form within the radius.
        losses: `Tensor[..., T]`.
        step: the step size η ≥ 0.
        radius: the largest divergence from uniform, in nats; infinity for none.

    Returns:
        `Tensor[..., T]` on the simplex.

    Warns:
        UserWarning: if a finite radius is ≥ log T, which no distribution over T tasks passes.
    """
    tasks = weights.shape[-1] if weights.ndim else 0
    if weights.shape != losses.shape or tasks == 0:
        raise ValueError(f"weights {list(weights.shape)} and losses {list(losses.shape)} must match")
    if not (math.isfinite(step) and step >= 0) or not radius >= 0:
        raise ValueError(f"step and radius must not be negative: step={step}, radius={radius}")
    if tasks > 1 and math.log(tasks) <= radius < math.inf:
        warnings.warn(f"radius {radius:.3g} ≥ log T = {math.log(tasks):.3g} never binds", stacklevel=2)
    require_finite(losses, "the losses")
    tiny = torch.finfo(wide(weights).dtype).tiny
    scores = _log_weights(weights).clamp_min(math.log(tiny)) + step * wide(losses)
    scores = scores - scores.amax(-1, keepdim=True)
    power = _largest_power(scores, radius)
    return torch.softmax(power * scores, dim=-1).to(narrow_type(weights))


def rescale_weights(weights: Tensor, minimum: float = 0.0) -> Tensor:
    """Clamp weights from below and rescale them so that they sum to T.

    Keeps the overall learning rate where uniform weights of one have it (GradNorm's renormalisation;
    MetaWeighting's guard against drift). If nothing is left, all weights are one.

    Args:
        weights: `Tensor[..., T]`, any sign.
        minimum: the clamp that is applied before rescaling.

    Returns:
        `Tensor[..., T]`, not negative, with sum T.
    """
    if not minimum >= 0:
        raise ValueError(f"minimum must not be negative, not {minimum}")
    require_finite(weights, "the weights")
    kept = wide(weights).clamp_min(minimum)
    largest = kept.amax(-1, keepdim=True)
    kept = torch.where(largest > 0, kept / largest, 1.0)
    return (kept * weights.shape[-1] / kept.sum(-1, keepdim=True)).to(narrow_type(weights))


def _log_weights(weights: Tensor) -> Tensor:
    """Return log ω in float64, -∞ for a zero, or raise if some weight is no weight."""
    require_finite(weights, "the weight vector")
    if bool((weights < 0).any()) or bool((weights.sum(-1) <= 0).any()):
        raise ValueError("weights must not be negative and must not all be zero")
    return wide(weights).log()


def _raise_to_floor(weights: Tensor, floor: float) -> Tensor:
    """Return max(floor, c·ω) with the c that makes it sum to one: the KL projection on {ω ≥ floor}."""
    tasks = weights.shape[-1]
    ordered = weights.sort(dim=-1).values
    rest = ordered.flip(-1).cumsum(-1).flip(-1)
    raised = torch.arange(tasks, device=weights.device, dtype=weights.dtype)
    factors = (1 - raised * floor).clamp_min(0) / rest
    fits = factors * ordered >= floor
    first = torch.where(fits, raised, float(tasks - 1)).amin(-1, keepdim=True).long()
    lifted = torch.maximum(weights * factors.gather(-1, first), torch.full_like(weights, floor))
    return lifted / lifted.sum(-1, keepdim=True)


def _divergence(scores: Tensor, power: Tensor) -> Tensor:
    """Return KL(softmax(power·scores) ‖ uniform), shape [..., 1]."""
    logs = torch.log_softmax(power * scores, dim=-1)
    return (logs.exp() * logs).sum(-1, keepdim=True) + math.log(scores.shape[-1])


def _largest_power(scores: Tensor, radius: float) -> Tensor:
    """Return the largest power in [0, 1] whose tempered softmax stays within the radius, shape [..., 1]."""
    high = torch.ones_like(scores[..., :1])
    inside = _divergence(scores, high) <= radius
    low = inside.to(scores.dtype)
    for _ in range(64):
        middle = (low + high) / 2
        good = _divergence(scores, middle) <= radius
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    return low
