"""Rules of convolutions, with groups, stride, dilation and every padding mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.gradients._rules import Bound, Rule, register

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from steelyard.gradients._groups import Groups

_FORWARD: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _padded(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    """The input with its padding made explicit where a number cannot say it, and the padding that is left."""
    conv: Any = module
    if conv.padding_mode == "zeros" and not isinstance(conv.padding, str):
        return x, conv.padding
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    return F.pad(x, conv._reversed_padding_repeated_twice, mode=mode), (0,) * len(conv.kernel_size)


@register(nn.Conv3d)
@register(nn.Conv2d)
@register(nn.Conv1d)
class ConvRule(Rule):
    """A convolution: the gradient of a task is the convolution's own weight gradient over its rows."""

    def bind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Bound | None:
        """Batched inputs only: without a batch dimension there are no rows."""
        bound = super().bind(module, args, kwargs, output)
        conv: Any = module
        return bound if bound is not None and bound.rows[0].dim() == len(conv.kernel_size) + 2 else None

    def apply(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> Tensor:
        """The convolution with another weight and bias."""
        conv: Any = module
        x, padding = _padded(module, bound.rows[0])
        weight = parameters.get("weight")
        if weight is None:
            weight = torch.zeros_like(conv.weight, dtype=x.dtype)
        run = _FORWARD[len(conv.kernel_size)]
        return run(x, weight, parameters.get("bias"), conv.stride, padding, conv.dilation, conv.groups)  # type: ignore[no-any-return]

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """The gradients of each task's slice."""
        conv: Any = module
        g = grads[0]
        if "weight" not in wanted:
            return {"bias": groups.sum(g.flatten(2).sum(2))}
        x, padding = _padded(module, bound.rows[0])
        weight = conv.weight.detach().to(g.dtype)
        found = {"weight": g.new_zeros((groups.tasks, *weight.shape))}
        if "bias" in wanted:
            found["bias"] = g.new_zeros((groups.tasks, weight.shape[0]))
        still = [0] * len(conv.kernel_size)
        for task, (part, a) in enumerate(zip(groups.split(g), groups.split(x), strict=True)):
            if a.shape[0]:
                _, own, bias = torch.ops.aten.convolution_backward(
                    part, a, weight, [weight.shape[0]], conv.stride, padding, conv.dilation, False, still, conv.groups,
                    (False, True, "bias" in wanted),
                )  # fmt: skip
                found["weight"][task] = own
                if "bias" in wanted:
                    found["bias"][task] = bias
        return found
