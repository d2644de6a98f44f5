"""Ridge regression that judges itself: every row by fits to all the others, in closed form."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from steelyard.functional._tensors import narrow_type, require_finite, wide

PENALTIES = tuple(10.0**power for power in range(3, -6, -1))
"""What is tried, in units of the mean of the inputs' squared singular values; the strongest first."""


class _Fit(NamedTuple):
    """One penalty's map, and what each row lacks under the map of all others, ``[n, k]``."""

    coefficients: Tensor
    missed: Tensor

    @property
    def errors(self) -> Tensor:
        return self.missed.square().sum(1)


def cautious_ridge(inputs: Tensor, targets: Tensor, sure: float = 2.0) -> tuple[Tensor, Tensor]:
    """Fit min_W ‖Y − XW − 1bᵀ‖² + p·‖W‖² with the strongest p that does not surely do worse than the best one.

    Penalties are judged by the rows' squared errors under fits to all other rows, and compared row by row; *surely* is
    by more than ``sure`` standard errors. An infinite penalty, the columns' means alone, is among them: inputs that
    say nothing of the targets get coefficients of exactly 0 rather than small random ones.

    Args:
        inputs: X, `Tensor[n, d]`, n ≥ 2.
        targets: Y, `Tensor[n, k]`.
        sure: the number of standard errors; 0 takes the best penalty.

    Returns:
        W, `Tensor[d, k]`, and b, `Tensor[k]`, in the inputs' type.
    """
    fits = list(_path(inputs, targets))
    best = min((fit.errors for fit in fits), key=lambda errors: float(errors.mean()))
    for fit in fits:
        worse = fit.errors - best
        if worse.mean() <= sure * worse.std() / len(worse) ** 0.5:
            break
    offset = wide(targets).mean(0) - wide(inputs).mean(0) @ fit.coefficients
    narrow = narrow_type(inputs)
    return fit.coefficients.to(narrow), offset.to(narrow)


def leave_one_out_errors(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each row under what ridge fits to all the other rows say of it.

    The fits' answers are averaged over penalties p with weights ∝ exp(−n/2 · e_p/e_∞), e_p being the mean
    squared error under p and e_∞ that of the columns' means: a few rows do not single a penalty out, and choosing one
    would add the choice's noise. Neither the inputs' scale nor the targets' matters.

    Args:
        inputs: X, `Tensor[n, d]`, n ≥ 2.
        targets: Y, `Tensor[n, k]`.

    Returns:
        `Tensor[n]` in float64.
    """
    fits = list(_path(inputs, targets))
    means = torch.stack([fit.errors.mean() for fit in fits])
    if not bool(means[0] > 0):
        return fits[0].errors
    trust = (-means / means[0] * len(inputs) / 2).softmax(0)
    return torch.stack([fit.missed for fit in fits]).mul(trust[:, None, None]).sum(0).square().sum(1)


def _path(inputs: Tensor, targets: Tensor) -> Iterator[_Fit]:
    """A fit for each penalty, the infinite one first.

    No row is left out in earnest: with X centred and H = 1/n + X(XᵀX + p)⁻¹Xᵀ, what row i lacks under the fit to the
    others is (y_i − ŷ_i)/(1 − H_ii). All penalties share the eigenvectors of XᵀX, or of XXᵀ where there are fewer rows.
    """
    require_finite(inputs, "inputs")
    require_finite(targets, "targets")
    if inputs.dim() != 2 or targets.dim() != 2 or len(inputs) != len(targets) or len(inputs) < 2:
        raise ValueError(
            f"inputs [n, d] and targets [n, k] of at least two rows, not {[*inputs.shape]} and {[*targets.shape]}"
        )
    x, y = wide(inputs), wide(targets)
    rows, rounding = len(x), 1e-24 * float(x.square().sum())
    x, y = x - x.mean(0), y - y.mean(0)
    yield _Fit(x.new_zeros(x.shape[1], y.shape[1]), y * rows / (rows - 1))
    if not bool(x.square().sum() > rounding):  # constant inputs differ by rounding alone, which no penalty is to read
        return
    few = rows < x.shape[1]
    squares, basis = torch.linalg.eigh(x @ x.mT if few else x.mT @ x)
    squares = squares.clamp_min(0)
    turned = basis * squares.sqrt() if few else x @ basis  # X in the directions in which it only stretches
    shrinks = 1 / (squares + squares.mean() * squares.new_tensor(PENALTIES)[:, None])
    unseen = (1 - 1 / rows - turned.square() @ shrinks.mT).clamp_min(1e-9)
    along = turned.mT @ y
    for place, shrink in enumerate(shrinks):
        fitted = turned @ (shrink[:, None] * along)
        found = basis @ (shrink[:, None] * (basis.mT @ y if few else along))
        yield _Fit(x.mT @ found if few else found, (y - fitted) / unseen[:, place, None])
