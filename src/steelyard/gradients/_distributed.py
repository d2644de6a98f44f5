"""Sums over processes."""

from __future__ import annotations

from torch import Tensor
from torch import distributed as dist


def reduce_sum(value: Tensor) -> Tensor:
    """The sum of a dense tensor over all processes, in place; the tensor itself when there is only one."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        value = value.contiguous()
        dist.all_reduce(value)
    return value
