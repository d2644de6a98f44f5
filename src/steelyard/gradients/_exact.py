"""The exact path: one backward per task. It is the fallback of the engine and the oracle of its tests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steelyard.gradients._errors import GradientError
from steelyard.gradients._graph import places, survey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def exact_task_gradients(losses: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every task's gradient by one backward per task.

    Args:
        losses: Tensor[T], any function of the parameters.
        parameters: the tensors to differentiate by, by name.

    Returns:
        Tensor[T, *shape] by name; zeros where a task does not depend on a parameter. The graph is kept, no
        `.grad` is touched.
    """
    total = {
        name: torch.zeros((losses.numel(), *value.shape), dtype=sum_dtype(value.dtype), device=value.device)
        for name, value in parameters.items()
    }
    if not parameters or not losses.requires_grad:
        return total
    for task, loss in enumerate(losses.reshape(-1).unbind()):
        found = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
        for name, grad in zip(parameters, found, strict=True):
            if grad is not None:
                total[name][task] = grad.to_dense() if grad.is_sparse else grad
    return total


def exact_slopes(losses: Tensor, parameters: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Tensor:
    """Tensor[T]: every task's slope by one backward per task, of which no gradient is kept.

    Args:
        losses: Tensor[T].
        parameters: the tensors to differentiate by, by name.
        direction: v by name, for all these parameters.
    """
    total = torch.zeros(losses.numel(), dtype=sum_dtype(losses.dtype), device=losses.device)
    if not parameters or not losses.requires_grad:
        return total
    for task, loss in enumerate(losses.reshape(-1).unbind()):
        found = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
        for name, grad in zip(parameters, found, strict=True):
            if grad is not None:
                total[task] += (grad.to_dense() if grad.is_sparse else grad).mul(direction[name]).sum()
    return total


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients are summed: float64 for float64, float32 for everything smaller."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def exact_row_slopes(
    losses: Tensor,
    outputs: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    direction: Mapping[str, Tensor],
    count: int,
) -> Tensor:
    """Tensor[N]: the share of every row in ⟨∇ Σ_t L_t, v⟩ by one backward per row from the module's outputs.

    Args:
        losses: Tensor[T].
        outputs: the module's outputs that have a row dimension.
        parameters: the tensors to differentiate by, by name.
        direction: v by name, for all these parameters.
        count: the number of rows N.
    """
    used = survey([losses], [], stop=frozenset(places(outputs))).uncovered
    past = [name for name, value in parameters.items() if id(value) in used]
    if past or not outputs:
        raise GradientError(
            f"the slopes of single rows are not defined for {', '.join(past or parameters)}: there is no rule for its "
            "layer, and the losses do not depend on it through an output of the recorded module with one entry per "
            "row alone. Register a rule for the layer, or leave the parameter out of the scope"
        )
    total = torch.zeros(count, dtype=sum_dtype(losses.dtype), device=losses.device)
    for row in range(count):
        keep = torch.arange(count, device=losses.device) == row
        with only_rows(outputs, keep):
            found = torch.autograd.grad(
                losses,
                list(parameters.values()),
                torch.ones_like(losses),
                retain_graph=True,
                allow_unused=True,
            )
        for name, grad in zip(parameters, found, strict=True):
            if grad is not None:
                total[row] += (grad.to_dense() if grad.is_sparse else grad).mul(direction[name]).sum()
    return total


@contextmanager
def only_rows(outputs: Sequence[Tensor], keep: Tensor) -> Iterator[None]:
    """Backwards inside this block pass through the outputs at the rows to keep and nowhere else.

    Args:
        outputs: tensors [N, ...].
        keep: BoolTensor[N].
    """

    def mask(grad: Tensor) -> Tensor:
        return grad * keep.to(grad.dtype).reshape(-1, *[1] * (grad.dim() - 1))

    register: list[Any] = [value.register_hook for value in outputs]
    handles = [hook(mask) for hook in register]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
