"""The mathematics of αVIL's merge: θ + Σ α_t δ_t, its slopes in α, and the α that lowers the dev loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import torch
from torch import Tensor, nn

from steelyard import functional
from steelyard.methods._turns import State, under

Dev = Callable[[Tensor], tuple[float, Tensor]]
"""α ``[T]`` to the dev loss at θ + Σ α_t δ_t and its slopes ∂L/∂α ``[T]``."""

Precision = Literal["full", "bfloat16", "float16"]

_BEND = 0.05
"""How far α is moved to see how the slopes change."""
_STORED: dict[Precision, torch.dtype | None] = {"full": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@torch.no_grad()
def keep(
    state: State,
    model: nn.Module,
    task: int,
    share: float,
    *,
    whole: AbstractSet[str] = frozenset(),
    on_cpu: bool = False,
    precision: Precision = "full",
) -> None:
    """Adds δ_t = share·(θ_t - θ) to the state, of the parameters that moved, and sums the buffers over the tasks.

    Args:
        state: Holds θ under ``start.``; gets ``delta.{t}.``, ``whole.`` and ``buffer.``.
        model: The model at θ_t.
        task: t.
        share: What the way is multiplied with.
        whole: Parameters that are kept as they are at θ_t, not as a delta.
        on_cpu: Whether deltas are kept in the host's memory.
        precision: The precision that they are kept in.
    """
    start = under(state, "start.")
    for name, parameter in model.named_parameters():
        delta = parameter.detach() - start[name]
        if not delta.any():
            continue
        if name in whole:
            state[f"whole.{name}"] = parameter.detach().clone()
        else:
            delta *= share
            state[f"delta.{task}.{name}"] = delta.to(
                device="cpu" if on_cpu else delta.device, dtype=_STORED[precision] or delta.dtype
            )
    for name, buffer in model.named_buffers():
        if name in start and buffer.dtype != torch.bool:
            value = buffer.double() if buffer.is_floating_point() else buffer.clone()
            before = state.get(f"buffer.{name}")
            state[f"buffer.{name}"] = value if before is None else before + value


def mean_buffers(state: State, tasks: int) -> State:
    """The mean over the tasks of what their turns made of each buffer (BatchNorm's statistics), in its own dtype."""
    start, sums = under(state, "start."), under(state, "buffer.")
    return {
        name: (total / tasks if total.is_floating_point() else total // tasks).to(start[name])
        for name, total in sums.items()
    }


@torch.no_grad()
def place(
    parameters: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    deltas: Sequence[Mapping[str, Tensor]],
    alpha: Tensor,
) -> None:
    """Writes θ + Σ α_t δ_t into the parameters, in place.

    Args:
        parameters: What is written to, by name.
        start: θ, by the same names.
        deltas: δ_t of each task: the parameters that it moved, by name.
        alpha: ``[T]``.
    """
    for name in {name: None for delta in deltas for name in delta}:
        value = start[name].clone()
        for factor, delta in zip(alpha.tolist(), deltas, strict=True):
            if name in delta:
                value += delta[name].to(value) * factor
        parameters[name].copy_(value)


def slopes(gradient: Mapping[str, Tensor], deltas: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """∂L/∂α_t = ⟨∇L, δ_t⟩ for each task, ``[T]`` in float64 on the CPU; no double backward.

    Args:
        gradient: ∇L at θ + Σ α_t δ_t, by parameter name.
        deltas: δ_t of each task, by parameter name.
    """
    found = [
        sum(
            (torch.sum(gradient[n] * d.to(gradient[n]), dtype=torch.float64) for n, d in delta.items()), torch.zeros(())
        )
        for delta in deltas
    ]
    return torch.stack([slope.double().cpu() for slope in found])


def tune(
    dev: Dev,
    tasks: int,
    *,
    solver: Literal["newton", "sgd"] = "newton",
    steps: int = 1,
    accept: bool = True,
    radius: float = 0.1,
    damping: float = 0.01,
    rate: float = 0.005,
    momentum: float = 0.5,
) -> Tensor:
    """α that lowers the dev loss (lines 8 and 9), from α = 1.

    ``newton`` takes trust-region steps in the T-dimensional space; the curvature is that of the slopes, by finite
    differences, so a step costs T + 1 gradients of the dev loss. ``sgd`` is as published.

    Args:
        dev: The dev loss and its slopes at an α.
        tasks: T.
        solver: ``newton`` or ``sgd``.
        steps: s, how many steps.
        accept: Whether a step (``newton``) or the whole (``sgd``) is taken back if the dev loss rises by it.
        radius: The longest step, for ``newton``.
        damping: Curvature that is added in every direction, relative to the largest on the diagonal.
        rate: The learning rate, for ``sgd``.
        momentum: Its momentum.

    Returns:
        ``Tensor[T]`` in float64; 1 where the dev loss is not a finite number.
    """
    alpha = torch.ones(tasks, dtype=torch.float64)
    if not steps:
        return alpha
    loss, slope = dev(alpha)
    if solver == "newton":
        for _ in range(steps):
            found = _newton_step(dev, alpha, loss, slope, radius, damping, accept)
            if found is None:
                break
            alpha, loss, slope = found
        return alpha
    first, velocity = loss, torch.zeros_like(alpha)
    for number in range(steps):
        if not bool(slope.isfinite().all()):
            return torch.ones_like(alpha)
        velocity = slope if number == 0 else momentum * velocity + slope
        alpha = alpha - rate * velocity
        if accept or number + 1 < steps:
            loss, slope = dev(alpha)
    return torch.ones_like(alpha) if accept and not loss <= first else alpha


def _newton_step(
    dev: Dev, alpha: Tensor, loss: float, slope: Tensor, radius: float, damping: float, accept: bool
) -> tuple[Tensor, float, Tensor] | None:
    """The next α with its loss and slopes; None if no step of any length is better."""
    unit = _BEND * torch.eye(len(alpha), dtype=alpha.dtype)
    curvature = torch.stack([(dev(alpha + bend)[1] - slope) / _BEND for bend in unit])
    if not bool(slope.isfinite().all() and curvature.isfinite().all()):
        return None
    curvature = (curvature + curvature.T) / 2
    curvature += damping * curvature.diagonal().abs().max() * torch.eye(len(alpha), dtype=alpha.dtype)
    for _ in range(4):
        moved = alpha + functional.trust_region_step(slope, curvature, radius)
        after, slope_after = dev(moved)
        if after <= loss or not accept:
            return moved, after, slope_after
        radius /= 4
    return None
