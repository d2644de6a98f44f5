"""What every test compares with: the exact path, one backward per task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from steelyard import gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def task_losses(out: Tensor, rows: Tensor, tasks: int) -> Tensor:
    """A loss per task that is not linear in the output, the mean over the task's rows; zero without rows."""
    weight = torch.linspace(0.5, 1.5, out[0].numel(), dtype=out.dtype).reshape(out.shape[1:])
    each = ((out * weight).tanh() + 0.1 * out.square()).flatten(1).sum(1)
    counts = torch.bincount(rows, minlength=tasks).clamp(min=1)
    return torch.zeros(tasks, dtype=out.dtype).index_add(0, rows, each) / counts


def close(found: Tensor, wanted: Tensor, scale: float, tolerance: float) -> None:
    assert found.shape == wanted.shape
    error = (found - wanted).abs().max().item() if wanted.numel() else 0.0
    assert error <= tolerance * max(scale, 1e-30), f"off by {error:.2e} of {scale:.2e}"


def random_direction(parameters: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
        for name, value in parameters.items()
    }


def check(
    module: nn.Module,
    forward: Callable[[], Tensor],
    rows: Tensor,
    tasks: int,
    *,
    slow: Iterable[str] | None = (),
    parameters: Iterable[str] | None = None,
    losses_of: Callable[[Tensor], Tensor] | None = None,
    tolerance: float | None = None,
    row_slopes: bool = True,
) -> gradients.TaskGradients:
    """Everything the tape answers, against the exact path; `slow` are the parameters expected on that path."""
    with gradients.record(module, rows, parameters) as tape:
        out = forward()
        losses = losses_of(out) if losses_of else task_losses(out, rows, tasks)
    scope = tape.scope.parameters
    exact = gradients.exact_task_gradients(losses, scope)
    tolerance = tolerance or TOLERANCE[losses.dtype]
    flat = torch.cat([value.reshape(tasks, -1) for value in exact.values()], 1)
    scale = flat.norm(dim=1).max().item()
    found = tape.task_gradients(losses)
    assert list(found) == list(scope)
    for name, wanted in exact.items():
        close(found[name], wanted, max(wanted.abs().max().item(), 1e-3 * scale), tolerance)
    if slow is not None:
        assert set(tape.exact_names(losses)) == set(slow)
    check_scalars(tape, losses, flat, tolerance)
    direction = random_direction(scope)
    v = torch.cat([value.flatten() for value in direction.values()])
    slopes = flat @ v
    size = max(scale * v.norm().item(), 1e-30)
    close(tape.slopes(losses, direction), slopes, size, tolerance)
    close(found.slopes(direction), slopes, size, tolerance)
    if row_slopes:
        per_row = tape.row_slopes(losses, direction)
        assert per_row.shape == rows.shape
        close(torch.zeros_like(slopes).index_add(0, rows, per_row.to(slopes.dtype)), slopes, size, tolerance)

    def recorded() -> tuple[gradients.Tape, Tensor]:
        with gradients.record(module, rows, parameters) as again:
            out = forward()
            return again, losses_of(out) if losses_of else task_losses(out, rows, tasks)

    check_traces(recorded, tolerance)
    return found


def check_traces(recorded: Callable[[], tuple[gradients.Tape, Tensor]], tolerance: float) -> None:
    """Products of two batches whose gradients are never there as a whole; the first step moves the parameters."""
    tape, losses = recorded()
    scope = tape.scope.parameters
    flat = _flat(losses, scope)
    weights = torch.linspace(-1, 2, losses.numel(), dtype=flat.dtype)
    moved, traces = tape.traced(losses, weights)
    size = flat.norm(dim=1).max().item()
    for name, value in moved.items():
        place = sum(p.numel() for p in list(scope.values())[: list(scope).index(name)])
        wanted = weights @ flat[:, place : place + value.numel()]
        close(value.flatten().to(flat.dtype), wanted, size * losses.numel(), tolerance)
    before = {name: value.detach().clone() for name, value in scope.items()}
    with torch.no_grad():
        for value in scope.values():
            value.mul_(0.9)
    try:
        other, losses = recorded()
        second = _flat(losses, scope)
        size = max(size * second.norm(dim=1).max().item(), 1e-30)
        close(other.products(losses, traces).to(flat.dtype), second @ flat.t(), size, tolerance)
    finally:
        with torch.no_grad():
            for name, value in scope.items():
                value.copy_(before[name])


def _flat(losses: Tensor, scope: Mapping[str, Tensor]) -> Tensor:
    exact = gradients.exact_task_gradients(losses, scope)
    return torch.cat([value.reshape(losses.numel(), -1) for value in exact.values()], 1)


def check_scalars(tape: gradients.Tape, losses: Tensor, flat: Tensor, tolerance: float) -> None:
    gram = flat @ flat.t()
    size = gram.diagonal().max().item()
    close(tape.gram(losses), gram, size, tolerance)
    close(tape.norms(losses), flat.norm(dim=1), size**0.5, tolerance)
    found = tape.task_gradients(losses)
    close(found.gram(), gram, size, tolerance)
    close(found.norms(), flat.norm(dim=1), size**0.5, tolerance)
    weights = torch.linspace(-1, 2, losses.numel(), dtype=flat.dtype)
    combined = torch.cat([value.flatten() for value in found.combine(weights).values()])
    close(combined, weights @ flat, size**0.5 * losses.numel(), tolerance)
