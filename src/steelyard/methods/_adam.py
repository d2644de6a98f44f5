"""Adam for what a method learns by itself: its moments live in the method's state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adam import adam


def adam_step(
    state: dict[str, Tensor], name: str, gradient: Tensor, rate: float, *, decay: float = 0.0, eps: float = 1e-30
) -> None:
    """Moves ``state[name]`` by one step of Adam, in place of its old value.

    Args:
        state: The method's; the moments are kept beside the value.
        name: Of the value.
        gradient: Of the value's shape.
        rate: The learning rate.
        decay: What of the value is added to its gradient.
        eps: Small enough that a gradient's scale does not matter.
    """
    value = state[name].clone()
    zero = torch.zeros_like(value)
    first, second = (state.get(f"{name}.{moment}", zero).clone() for moment in ("first", "second"))
    step = state.get(f"{name}.step", torch.zeros(())).cpu().clone()
    adam(
        [value], [gradient.to(value)], [first], [second], [], [step],
        amsgrad=False, beta1=0.9, beta2=0.999, lr=rate, weight_decay=decay, eps=eps, maximize=False,
    )  # fmt: skip
    state |= {name: value, f"{name}.first": first, f"{name}.second": second, f"{name}.step": step}
