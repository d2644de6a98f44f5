"""Rules of layers whose fused kernels hide what a formula would need: recurrent layers and attention.

They are run again, once per task on the task's rows, and differentiated there. Together the T small passes do
the arithmetic of one pass through the layer, and the rest of the network is left alone. Slopes take one run over all
rows in forward mode. A call that would not repeat itself (dropout in training mode) has no rule.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from steelyard.gradients._rules import Bound, Rule, inner, register

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from steelyard.gradients._groups import Groups


class RecomputeRule(Rule):
    """A layer that is run again on the rows of each task; its outputs may be several."""

    linear = False

    def parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """All parameters below the layer, because it uses those of its children itself."""
        return dict(module.named_parameters(remove_duplicate=False))

    def run(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The layer's outputs with the row as first dimension, in the order of `Bound.outputs`."""
        raise NotImplementedError

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """One small forward and backward of the layer per task."""
        kind = grads[0].dtype
        own = {name: value.detach().to(kind) for name, value in self.parameters(module).items()}
        leaves = {name: own[name].clone().requires_grad_() for name in sorted(wanted)}
        total = {name: grads[0].new_zeros((groups.tasks, *leaf.shape)) for name, leaf in leaves.items()}
        rows = [groups.split(x) for x in bound.rows]
        parts = [groups.split(g) for g in grads]
        for task, size in enumerate(groups.sizes):
            if size == 0:
                continue
            part = Bound(tuple(piece[task] for piece in rows), (), fixed=bound.fixed)
            with torch.enable_grad():
                outs = self.run(module, part, own | leaves)
            seeds = [piece[task].contiguous() for piece in parts]
            found = torch.autograd.grad(outs, list(leaves.values()), seeds, allow_unused=True)
            for name, grad in zip(leaves, found, strict=True):
                if grad is not None:
                    total[name][task] = grad
        return total

    def row_slopes(
        self, module: nn.Module, bound: Bound, grads: tuple[Tensor, ...], direction: Mapping[str, Tensor]
    ) -> Tensor:
        """⟨g, J v⟩ by one run in forward mode, which the fused kernels lack and the plain ones have."""
        kind = grads[0].dtype
        own = {name: value.detach().to(kind) for name, value in self.parameters(module).items()}
        with plain_kernels(), forward_ad.dual_level():
            make, unpack = cast("Any", forward_ad.make_dual), cast("Any", forward_ad.unpack_dual)
            dual = {name: make(own[name], v) for name, v in direction.items()}
            moved = [unpack(out).tangent for out in self.run(module, bound, own | dual)]
            return torch.stack([inner(out, g) for out, g in zip(moved, grads, strict=True) if out is not None]).sum(0)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Recurrent layers and attention run without their fused kernels inside this block."""
    with warnings.catch_warnings():
        # torch itself calls a function that it deprecates, and warns of a flag that was not touched
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*torch.jit.script")
        warnings.filterwarnings("ignore", category=UserWarning, message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            yield


@register(nn.RNN)
@register(nn.GRU)
@register(nn.LSTM)
class RecurrentRule(RecomputeRule):
    """LSTM, GRU and RNN over padded or packed batches that start from the zero state."""

    def parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """The weights of all layers and directions."""
        return dict(module.named_parameters(recurse=False, remove_duplicate=False))

    def knows(self, names: set[str]) -> bool:
        """Weights and biases of layers, by prefix."""
        return all(name.startswith(("weight_", "bias_")) for name in names)

    def bind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Bound | None:
        """Batches, padded or packed; unbatched inputs and given states take the exact path."""
        layer: Any = module
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        x = given["input"]
        if given.get("hx") is not None or (layer.training and layer.dropout > 0 and layer.num_layers > 1):
            return None
        out, state = output
        states = state if isinstance(state, tuple) else (state,)
        if isinstance(x, PackedSequence):
            padded, lengths = pad_packed_sequence(x, batch_first=True)
            dims = (-1, *[1] * len(states))
            return Bound((padded, lengths), (out.data, *states), dims, lambda data: _padded(x, data))
        if x.dim() != 3:
            return None
        first = x if layer.batch_first else x.movedim(1, 0)
        return Bound((first,), (out, *states), (0 if layer.batch_first else 1, *[1] * len(states)))

    def run(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Output and last states, rows first."""
        layer: Any = module
        x = bound.rows[0]
        if len(bound.rows) > 1:
            lengths = bound.rows[1].cpu()
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, state = functional_call(module, dict(parameters), (packed,))
            out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
            states = state if isinstance(state, tuple) else (state,)
            return (out, *[value.movedim(1, 0) for value in states])
        x = x if layer.batch_first else x.movedim(0, 1)
        out, state = functional_call(module, dict(parameters), (x.contiguous(),))
        states = state if isinstance(state, tuple) else (state,)
        return (out if layer.batch_first else out.movedim(1, 0), *[value.movedim(1, 0) for value in states])


def _padded(like: PackedSequence, data: Tensor) -> Tensor:
    """Values at the places of a packed sequence as [N, L, d], zero at padding."""
    packed = PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)
    return pad_packed_sequence(packed, batch_first=True)[0]


@register(nn.MultiheadAttention)
class AttentionRule(RecomputeRule):
    """torch's own multi-head attention, which uses the parameters of its projections functionally."""

    _FIELDS = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    _FIELDS_LAST = ("average_attn_weights", "is_causal")

    def knows(self, names: set[str]) -> bool:
        """The projections, whether packed or separate."""
        return all(name.startswith(("in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "bias_")) for name in names)

    def bind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Bound | None:
        """Batched calls without dropout whose mask, if any, is the same for all rows."""
        layer: Any = module
        given = dict(zip(self._FIELDS + self._FIELDS_LAST, args, strict=False)) | kwargs
        mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
        if given["query"].dim() != 3 or (layer.training and layer.dropout > 0):
            return None
        if mask is not None and mask.dim() != 2:
            return None
        dim = 0 if layer.batch_first else 1
        rows = [given[name].movedim(dim, 0) for name in ("query", "key", "value")]
        if padding is not None:
            rows.append(padding)
        fixed = {"attn_mask": mask, "is_causal": given.get("is_causal", False)}
        return Bound(tuple(rows), (output[0],), (dim,), fixed=fixed)

    def run(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The attended values, rows first."""
        layer: Any = module
        dim = 0 if layer.batch_first else 1
        query, key, value = (x.movedim(0, dim) for x in bound.rows[:3])
        kwargs = dict(bound.fixed, need_weights=False)
        kwargs["key_padding_mask"] = bound.rows[3] if len(bound.rows) > 3 else None
        out, _ = functional_call(module, dict(parameters), (query, key, value), kwargs)
        return (out.movedim(dim, 0),)
