"""From the hypergradient matrix to the weights' next values; shared by the method and its drop-in form."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from steelyard.functional import min_norm_weights, rescale_weights

Bounds = Literal["renormalised", "clamped", "free"]


def common_direction(hypergradients: Tensor) -> Tensor:
    """d_c = Σ_t λ*_t d_t, the shortest vector in the convex hull of the rows of D ``[T, T]``   (Eqs. 11, 12).

    Against it every query loss falls; it is 0 where there is no such direction, or where D is not finite (the loop
    then names the task whose loss was not).
    """
    wide = hypergradients.detach().to("cpu").double()
    if not bool(wide.isfinite().all()):
        return wide.new_zeros(len(wide))
    largest = wide.abs().max().clamp_min(1e-300)
    wide = wide / largest  # products of tiny hypergradients would not be numbers any more
    found: Tensor = min_norm_weights(wide @ wide.T) @ wide * largest
    return found


def moved(weights: Tensor, direction: Tensor, alpha: float, bounds: Bounds) -> Tensor:
    """W ← w - α·d_c   (Eq. 13), kept in bounds."""
    found = weights - alpha * direction.to(weights)
    if bounds == "renormalised":
        return rescale_weights(found)
    return found.clamp_min(0) if bounds == "clamped" else found
