"""Rules of the affine part of normalisation layers: y = x̂ ∘ w + b with x̂ computed row by row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.gradients._rules import Bound, Rule, register

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from steelyard.gradients._groups import Groups


@register(nn.LayerNorm)
class LayerNormRule(Rule):
    """LayerNorm: the normalised input is computed again and meets the output gradient."""

    pointwise = True

    def features(self, module: nn.Module) -> int:
        """The dimensions that are normalised over."""
        layer: Any = module
        return len(layer.normalized_shape)

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        """x̂, the input before scale and shift."""
        layer: Any = module
        return F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)

    def spread(self, module: nn.Module, parameter: Tensor, x: Tensor) -> Tensor:
        """A parameter in a shape that broadcasts against the input."""
        del module, x
        return parameter

    def collapse(self, module: nn.Module, x: Tensor, groups: Groups) -> Tensor:
        """Sum of a tensor of the output's shape over positions and rows: [T, *normalized_shape]."""
        layer: Any = module
        shape = tuple(layer.normalized_shape)
        flat = x.reshape(x.shape[0], -1, math.prod(shape))
        return groups.sum_positions(flat).reshape(groups.tasks, *shape)

    def apply(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> Tensor:
        """The layer with another scale and shift."""
        x = bound.rows[0]
        if "weight" not in parameters:
            return self.spread(module, parameters["bias"], x).expand_as(x)
        out = self.normalised(module, x) * self.spread(module, parameters["weight"], x)
        return out + self.spread(module, parameters["bias"], x) if "bias" in parameters else out

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """Segment sums of g ∘ x̂ and of g."""
        g, found = grads[0], {}
        if "weight" in wanted:
            found["weight"] = self.collapse(module, self.normalised(module, bound.rows[0]).mul_(g), groups)
        if "bias" in wanted:
            found["bias"] = self.collapse(module, g, groups)
        return found


@register(nn.RMSNorm)
class RMSNormRule(LayerNormRule):
    """RMSNorm has a scale only."""

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        """X over its root mean square."""
        layer: Any = module
        return F.rms_norm(x, layer.normalized_shape, None, layer.eps)


@register(nn.GroupNorm)
class GroupNormRule(LayerNormRule):
    """GroupNorm: one scale and shift per channel, the channel being dimension 1."""

    pointwise = False

    def features(self, module: nn.Module) -> int:
        """The channels."""
        del module
        return 1

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        """x̂ within each row's groups of channels."""
        layer: Any = module
        return F.group_norm(x, layer.num_groups, None, None, layer.eps)

    def spread(self, module: nn.Module, parameter: Tensor, x: Tensor) -> Tensor:
        """[C] as [C, 1, ...]."""
        del module
        return parameter.reshape(-1, *[1] * (x.dim() - 2))

    def collapse(self, module: nn.Module, x: Tensor, groups: Groups) -> Tensor:
        """[N, C, ...] to [T, C]."""
        del module
        return groups.sum(x.flatten(2).sum(2) if x.dim() > 2 else x)


@register(nn.InstanceNorm3d)
@register(nn.InstanceNorm2d)
@register(nn.InstanceNorm1d)
class InstanceNormRule(GroupNormRule):
    """InstanceNorm without running statistics: GroupNorm with one channel per group."""

    def bind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Bound | None:
        """Running statistics would be another layer; those calls take the exact path."""
        layer: Any = module
        return None if layer.track_running_stats else super().bind(module, args, kwargs, output)

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        """x̂ within each row's channel."""
        layer: Any = module
        return F.instance_norm(x, eps=layer.eps)


@register(nn.BatchNorm3d)
@register(nn.BatchNorm2d)
@register(nn.BatchNorm1d)
class BatchNormRule(GroupNormRule):
    """BatchNorm in eval mode, where the statistics are constants; `record` refuses the training mode."""

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        """x̂ with the running statistics."""
        layer: Any = module
        mean, var = layer.running_mean.to(x.dtype), layer.running_var.to(x.dtype)
        return F.batch_norm(x, mean, var, None, None, training=False, eps=layer.eps)
