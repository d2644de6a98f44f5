"""AANG: weights over a space of objectives, their gradient, which are legal, the stability bound."""

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from steelyard.functional._tensors import require_finite


def factored_weights(logits: Sequence[Tensor], sampled: Tensor) -> Tensor:
    """Return w_k = softmax over the sampled set of W_all[i,t,r,o] + W_I[i] + W_T[t] + W_R[r] + W_O[o].

    AANG, Algorithm 1. Only sampled objectives enter the softmax, so logits of illegal or unsampled ones may
    be anything, even -∞ or NaN. Differentiable in the logits.

    Args:
        logits: the tensor over the whole space, `Tensor[I, T, R, O]`, then one vector per stage, `Tensor[I]`,
            `Tensor[T]`, `Tensor[R]`, `Tensor[O]`. Any number of stages will do.
        sampled: `LongTensor[n, stages]`, the indices of the n sampled objectives.

    Returns:
        `Tensor[n]`, positive, with sum one.
    """
    shape = [len(factor) for factor in logits[1:]]
    if not shape or list(logits[0].shape) != shape:
        raise ValueError(f"logits of the space {list(logits[0].shape)} and of its stages {shape} differ")
    columns = _columns(sampled, len(shape))
    total = logits[0][columns]
    for factor, column in zip(logits[1:], columns, strict=True):
        total = total + factor[column]
    require_finite(total, "the sampled logits")
    return torch.softmax(total, dim=0)


def factored_gradient(weights: Tensor, signal: Tensor, sampled: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the gradient to every logit, given c_k = ∂(loss)/∂w_k for the sampled objectives.

    With the softmax's Jacobian, which the released code leaves out: the logit of objective k receives
    w_k·(c_k - Σ_j w_j c_j), and the logit of a primitive the sum over the sampled objectives that use it.
    Entries that were not sampled receive zero; every factor's entries sum to zero.

    Args:
        weights: `Tensor[n]`, from `factored_weights`.
        signal: `Tensor[n]`, for instance -β⟨∇_body L_k, ∇_body L_E^val⟩ (META-TARTAN, Eq. 5).
        sampled: `LongTensor[n, stages]`.
        shape: the size of each stage, such as [3, 4, 4, 2].

    Returns:
        tensors in the order and shapes of the logits of `factored_weights`.
    """
    if weights.shape != signal.shape or weights.ndim != 1:
        raise ValueError(f"weights {list(weights.shape)} and signal {list(signal.shape)} must be [n]")
    require_finite(signal, "the signal")
    columns = _columns(sampled, len(shape))
    answer = weights * (signal - weights @ signal)
    whole = answer.new_zeros(tuple(shape)).index_put(columns, answer, accumulate=True)
    parts = [answer.new_zeros(size).index_add(0, column, answer) for size, column in zip(shape, columns, strict=True)]
    return (whole, *parts)


def legal_objectives(
    task_data: Sequence[bool], transforms: int, one_way: Sequence[bool], end_task: Sequence[bool]
) -> Tensor:
    """Return which objectives (data, transform, representation, output) make sense, as a boolean tensor.

    An output that is the end task needs the task's own data and a representation that sees the whole input.

    Args:
        task_data: for each kind of data, whether it carries the end task's labels.
        transforms: the number of transforms.
        one_way: for each representation, whether it sees one side only (left-to-right, right-to-left).
        end_task: for each output, whether it is the end task.

    Returns:
        `BoolTensor[I, T, R, O]`.
    """
    own, partial, final = (torch.tensor(flags, dtype=torch.bool) for flags in (task_data, one_way, end_task))
    possible = own[:, None, None, None] & ~partial[:, None]
    legal = possible | ~final
    return legal.expand(len(own), transforms, len(partial), len(final)).clone()


def sample_objectives(legal: Tensor, count: int, generator: Generator | None = None) -> Tensor:
    """Draw objectives uniformly, without repetition, from the legal ones.

    Args:
        legal: `BoolTensor[I, T, R, O]`, from `legal_objectives`.
        count: how many; all of them if there are fewer.
        generator: source of the draw (on the device of `legal`).

    Returns:
        `LongTensor[n, stages]`.
    """
    choices = legal.nonzero()
    if count < 1 or len(choices) == 0:
        raise ValueError(f"cannot draw {count} of {len(choices)} legal objectives")
    order = torch.randperm(len(choices), generator=generator, device=legal.device)
    return choices[order[:count]]


def stability_bound(
    end_samples: float,
    end_weight: float,
    *,
    smoothness: tuple[float, float],
    lipschitz: float,
    gap: float,
    step: float,
    steps: float,
) -> float:
    """Bound how much one end-task example can change the loss after training with a sampled auxiliary.

    AANG, Theorem E.5: with p = λ_e/N_e and q = c·β̄,
    ε ≤ (1 + 1/q) · (2pL²c/(1-p) + r·Lc)^{1/(q+1)} · (pT)^{q/(q+1)}, the smaller of its values for
    (β̄, r) = (λ*β*, (1-λ*)(Δ+2L)), where β* is the smaller smoothness and λ* its weight, and for
    (λ_eβ_e + λ_aβ_a, 0). The paper writes p as gamma/N' with N' = N_e + N_a, which cancels: the number of
    auxiliary examples plays no part except through λ_e. The losses lie in [0, 1], so that a bound above one
    says nothing.

    Args:
        end_samples: N_e, more than one.
        end_weight: λ_e in (0, 1], the probability of an end-task step.
        smoothness: (β_e, β_a), both positive.
        lipschitz: L.
        gap: Δ, the largest distance between the two losses' gradients at the same parameters.
        step: c, with learning rates of at most c/t.
        steps: T.

    Returns:
        the bound.
    """
    positive = min(*smoothness, lipschitz, step, steps)
    if end_samples <= 1 or not 0 < end_weight <= 1 or positive <= 0 or gap < 0:
        raise ValueError("stability_bound: an argument is out of the range that its documentation gives")
    chance = end_weight / end_samples
    mixed = (end_weight, 1 - end_weight)
    lesser = 0 if smoothness[0] <= smoothness[1] else 1
    pairs = [
        (mixed[lesser] * smoothness[lesser], (1 - mixed[lesser]) * (gap + 2 * lipschitz)),
        (mixed[0] * smoothness[0] + mixed[1] * smoothness[1], 0.0),
    ]
    bounds = []
    for curvature, drift in pairs:
        power = step * curvature
        if power > 0:
            push = 2 * chance * lipschitz**2 * step / (1 - chance) + drift * lipschitz * step
            share = (chance * steps) ** (power / (power + 1))
            bounds.append((1 + 1 / power) * push ** (1 / (power + 1)) * share)
    return min(bounds, default=math.inf)


def _columns(sampled: Tensor, stages: int) -> tuple[Tensor, ...]:
    """Check the indices of sampled objectives and return them as one column per stage."""
    if sampled.ndim != 2 or sampled.shape[1] != stages or len(sampled) == 0:
        raise ValueError(f"sampled must be [n, {stages}] with n ≥ 1, not {list(sampled.shape)}")
    return sampled.unbind(1)
