"""How a loss on other data answers to the task weights: MetaWeighting's and TAWT's hypergradients."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from steelyard.functional._tensors import (
    Rows,
    inner_products,
    narrow_type,
    require_finite,
    require_square,
    wide,
)

Matvec = Callable[[Tensor], Tensor]
"""A symmetric linear map on vectors, such as a Hessian-vector product."""


def hypergradient_matrix(query: Rows, support: Rows, step: float, preconditioner: Rows | None = None) -> Tensor:
    """Return D[t, j] = ∂L_t^q(θ^k)/∂w_j = -(step/T)·⟨∇L_t^q(θ^k), ∇L_j^s(θ^{k-1})⟩.

    MetaWeighting, Eq. 10: how the query loss of task t answers to the weight of task j through the one step
    θ^k = θ^{k-1} - (step/T) Σ_j w_j ∇L_j^s(θ^{k-1}). The rows must hold *all* parameters that the step moves,
    heads too, with zeros where a task has no gradient; query gradients are taken after the step, support
    gradients before it, on the rows that the step itself used.

    Args:
        query: `Tensor[S, ...]` or `{name: Tensor[S, *shape]}`, one gradient per query loss.
        support: `Tensor[T, ...]` or a mapping with the same names, one gradient per weighted task.
        step: the learning rate η of the step.
        preconditioner: diagonal of the optimiser's metric (`adam_preconditioner`), shaped as one row; the
            identity (plain gradient descent) if not given.

    Returns:
        `Tensor[S, T]`, in float64.
    """
    products = inner_products(query, support, preconditioner)
    return products * (-step / products.shape[1])


def adam_preconditioner(
    second_moment: Tensor, count: int, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Tensor:
    """Return the diagonal P with which Adam's step answers to the current gradient, its v held constant.

    Adam moves by -step·m̂/(√v̂ + eps); with v held, the part due to the current gradient g is -step·P·g with
    P = (1-β₁)/(1-β₁^count) / (√v̂ + eps). The first factor is what the momentum lets through at once.

    Args:
        second_moment: Adam's `exp_avg_sq`, any shape, after the step.
        count: Adam's step counter after the step, from 1.
        betas: Adam's β₁ and β₂. Take β₁ = 0 for the plain 1/(√v̂ + eps).
        eps: Adam's ε.

    Returns:
        a tensor of the same shape.
    """
    if count < 1:
        raise ValueError(f"count must be the number of steps taken, at least 1, not {count}")
    corrected = second_moment / (1 - betas[1] ** count)
    share = (1 - betas[0]) / (1 - betas[0] ** count)
    return share / (corrected.sqrt() + eps)


def cosine_hypergradient(target: Tensor, sources: Tensor, scale: float = 1.0) -> Tensor:
    """Return TAWT's practical signal g_t = -scale·cos(∇_φ L_0, ∇_φ L_t).

    Section 4 of the paper, in place of Eq. 2.7: the Hessian is dropped. Give gradients of the shared
    parameters φ alone, a missing one as zeros. For a target that is also trained on, give a second,
    independent batch's gradient as its source row, or its entry is -scale whatever the data say. A zero
    gradient has the cosine zero. Lengths are measured in float64, so tiny gradients keep their direction.

    Args:
        target: `Tensor[..., P]`.
        sources: `Tensor[..., T, P]`.
        scale: the constant c.

    Returns:
        `Tensor[..., T]` in [-scale, scale].
    """
    kind = wide(target.new_empty(0)).dtype
    length = torch.linalg.vector_norm(target, dim=-1, keepdim=True, dtype=kind)
    lengths = torch.linalg.vector_norm(sources, dim=-1, dtype=kind)
    unit = torch.where(length > 0, wide(target) / length, 0.0).to(sources.dtype)
    overlap = wide(sources @ unit[..., None]).squeeze(-1)
    cosines = torch.where(lengths > 0, overlap / lengths, 0.0).clamp(-1, 1)
    return (-scale * cosines).to(narrow_type(target, sources))


def target_hypergradient(
    target: Tensor,
    sources: Tensor,
    hessian: Tensor | Matvec,
    damping: float = 0.0,
    *,
    tolerance: float = 1e-6,
    max_iterations: int | None = None,
) -> Tensor:
    """Return g_t = ∂L_0(φ^ω, f_0)/∂ω_t = -∇L_0ᵀ [Σ_s ω_s H_s]⁻¹ ∇L_t, with one solve for all tasks.

    TAWT, Eq. 2.7, for φ^ω = argmin_φ Σ_t ω_t min_{f_t} L_t(φ, f_t). Because the heads f_t follow φ, H must be
    the *reduced* Hessian H_φφ - H_φf H_ff⁻¹ H_fφ; the printed ∂²L_t/∂φ² is exact only without heads. Two ways
    to give it: `reduced_hessian` on explicit matrices; or, with no matrix formed, the Hessian-vector product
    of Σ_s ω_s L_s over φ *and* all heads, with `target` and `sources` zero on the heads' coordinates, since
    the φ block of the whole inverse is the inverse of the reduced Hessian. At the inner optimum
    Σ_t ω_t g_t = 0.

    Args:
        target: `Tensor[P]`, the gradient ∇_φ L_0.
        sources: `Tensor[T, P]`, the gradients ∇_φ L_t.
        hessian: `Tensor[P, P]`, symmetric, or a function v ↦ Hv solved by conjugate gradients.
        damping: added to the diagonal.
        tolerance: relative residual at which conjugate gradients stop.
        max_iterations: their limit, 10·P if not given.

    Returns:
        `Tensor[T]`.

    Raises:
        ValueError: if conjugate gradients meet a direction of non-positive curvature.
    """
    if target.ndim != 1 or sources.ndim != 2 or sources.shape[1] != len(target):
        raise ValueError(f"target {list(target.shape)} and sources {list(sources.shape)} are not [P], [T, P]")
    if isinstance(hessian, Tensor):
        require_square(hessian, "the Hessian")
        solution = torch.linalg.solve(hessian + damping * torch.eye(len(target)).to(hessian), target)
    else:
        solution = conjugate_gradients(hessian, target, damping, tolerance, max_iterations)
    slopes: Tensor = sources @ solution
    return -slopes


def reduced_hessian(body: Tensor, cross: Tensor, heads: Tensor) -> Tensor:
    """Return H_φφ - H_φf H_ff⁻¹ H_fφ, the curvature in φ of min_f L(φ, f).

    Args:
        body: `Tensor[..., P, P]`, H_φφ.
        cross: `Tensor[..., P, Q]`, H_φf.
        heads: `Tensor[..., Q, Q]`, H_ff.

    Returns:
        `Tensor[..., P, P]`.
    """
    response: Tensor = torch.linalg.solve(heads, cross.mT)
    return body - cross @ response


def conjugate_gradients(
    matvec: Matvec,
    goal: Tensor,
    damping: float = 0.0,
    tolerance: float = 1e-6,
    max_iterations: int | None = None,
) -> Tensor:
    """Solve (H + damping·I) x = goal for a positive definite H that is known by its products alone.

    Args:
        matvec: v ↦ Hv.
        goal: `Tensor[P]`.
        damping: added to the diagonal.
        tolerance: stop at ‖residual‖ ≤ tolerance · ‖goal‖.
        max_iterations: limit on the number of products, 10·P if not given.

    Returns:
        `Tensor[P]`.

    Raises:
        ValueError: if the goal is not finite, or curvature along a direction is not positive.

    Warns:
        UserWarning: if the limit is reached first; the result is then the regularised, truncated solution.
    """
    require_finite(goal, "the right-hand side")
    unit = goal.abs().max().clamp_min(torch.finfo(goal.dtype).tiny)
    solution, residual = torch.zeros_like(goal), goal / unit
    direction = residual
    size = largest = float(residual @ residual)
    for _ in range(10 * len(goal) if max_iterations is None else max_iterations):
        if size <= tolerance**2 * largest:
            break
        image = matvec(direction) + damping * direction
        curvature = float(direction @ image)
        if not curvature > 0:
            raise ValueError(f"the curvature {curvature:.3g} along a direction is not positive: raise damping")
        solution = solution + direction * (size / curvature)
        residual = residual - image * (size / curvature)
        previous, size = size, float(residual @ residual)
        direction = residual + direction * (size / previous)
    if size > tolerance**2 * largest:
        ratio = (size / largest) ** 0.5
        warnings.warn(f"conjugate gradients stopped at a relative residual of {ratio:.1e}", stacklevel=2)
    return solution * unit
