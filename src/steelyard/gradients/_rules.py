"""What a rule is, and the registry of rules per layer type.

A rule says how the parameters of a layer enter its output. From the layer's input and the gradient at its
output it gives the gradient of every task, and the inner product of every row's gradient with a direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from steelyard.gradients._groups import Groups

R = TypeVar("R", bound="type[Rule]")


@dataclass(frozen=True)
class Bound:
    """The arguments of one call of a layer, as its rule wants them.

    Attributes:
        rows: tensors that have one entry per row.
        outputs: the output tensors whose gradients the rule needs.
        dims: the row dimension of each output where the rule fixes it; else the engine finds it.
        unpack: turns a packed output (or its gradient) into one with rows first; its entry in `dims` is -1.
        fixed: everything else, the same for all rows.
    """

    rows: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    dims: tuple[int, ...] | None = None
    unpack: Callable[[Tensor], Tensor] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def rows_first(self, output: int, x: Tensor) -> Tensor:
        """An output (or its gradient) with its rows in dimension 0, where the rule fixes them."""
        dim = 0 if self.dims is None else self.dims[output]
        if dim < 0 and self.unpack is not None:
            return self.unpack(x)
        return x.movedim(dim, 0)


class Rule:
    """How the parameters of a layer enter its output; subclass it to register a layer of your own.

    It is enough to give `apply`, if the output is linear in the parameters (no constant part, as in Linear,
    Conv, Embedding and the affine part of norms). Give `task_gradients` too where a batched form is faster
    than one small backward per task.

    Attributes:
        pointwise: the layer treats all its leading dimensions alike, so rows may be in any of them.
        linear: the output is linear in the parameters.
        names: the names of the parameters that the rule knows; a layer with others takes the exact path.
    """

    pointwise: ClassVar[bool] = False
    linear: ClassVar[bool] = True
    names: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})

    def parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters of the layer by local name."""
        return dict(module.named_parameters(recurse=False, remove_duplicate=False))

    def knows(self, names: set[str]) -> bool:
        """Whether the rule accounts for exactly these parameters of a layer."""
        return names <= self.names

    def features(self, module: nn.Module) -> int:
        """How many of the output's last dimensions are the layer's own and can never hold the rows."""
        del module
        return 0

    def bind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Bound | None:
        """The call's row-wise inputs and outputs; None when this call has no rule and goes the exact path."""
        del module
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            return Bound((args[0],), (output,))
        if not args and set(kwargs) == {"input"} and isinstance(output, Tensor):
            return Bound((kwargs["input"],), (output,))
        return None

    def apply(self, module: nn.Module, bound: Bound, parameters: Mapping[str, Tensor]) -> Tensor:
        """The layer's output with these parameters instead of its own; absent ones count as zero."""
        raise NotImplementedError(f"{type(self).__name__} must define apply")

    def row_slopes(
        self, module: nn.Module, bound: Bound, grads: tuple[Tensor, ...], direction: Mapping[str, Tensor]
    ) -> Tensor:
        """Tensor[N]: the inner product of every row's gradient with the direction, one extra forward."""
        return inner(self.apply(module, bound, direction), grads[0])

    def task_gradients(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> dict[str, Tensor]:
        """Tensor[T, *shape] for each wanted parameter; by default one small backward per task."""
        own = self.parameters(module)
        leaves = {name: own[name].detach().to(grads[0].dtype).requires_grad_() for name in sorted(wanted)}
        total = {name: grads[0].new_zeros((groups.tasks, *leaf.shape)) for name, leaf in leaves.items()}
        pieces = [groups.split(x) for x in bound.rows]
        for task, g in enumerate(groups.split(grads[0])):
            if g.shape[0] == 0:
                continue
            part = Bound(tuple(piece[task] for piece in pieces), (), bound.dims, None, bound.fixed)
            with torch.enable_grad():
                out = self.apply(module, part, leaves)
            found = torch.autograd.grad(out, list(leaves.values()), g, allow_unused=True)
            for name, grad in zip(leaves, found, strict=True):
                if grad is not None:
                    total[name][task] = grad
        return total

    def ghost_cost(self, bound: Bound, grads: tuple[Tensor, ...], tasks: int) -> tuple[int, int] | None:
        """Multiplications of a Gram matrix by ghost products and by materialising; None: no ghost form."""
        del bound, grads, tasks
        return None

    def ghost_gram(
        self,
        module: nn.Module,
        bound: Bound,
        grads: tuple[Tensor, ...],
        groups: Groups,
        wanted: Collection[str],
    ) -> Tensor:
        """Tensor[T, T] from inner products of inputs and of output gradients, without any gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no ghost form")


def inner(out: Tensor, grad: Tensor) -> Tensor:
    """Tensor[N]: inner product of each row of two tensors [N, ...]."""
    count = grad.shape[0]
    found: Tensor = torch.linalg.vecdot(out.reshape(count, -1), grad.reshape(count, -1))
    return found


_RULES: dict[type[nn.Module] | str, Rule] = {}
_METHODS = ("forward", "_conv_forward", "_check_input_dim", "__call__")


def register(layer: type[nn.Module] | str) -> Callable[[R], R]:
    """Class decorator: use this rule for a layer type, given as the class or as its full dotted name.

    A subclass of the layer is covered only if it inherits `forward`; the latest registration wins.
    """

    def store(rule: R) -> R:
        _RULES[layer] = rule()
        return rule

    return store


def find(module: nn.Module) -> Rule | None:
    """The rule of a module, or None when it has none that certainly holds."""
    kind = type(module)
    if "forward" in vars(module):
        return None  # a patched instance may compute anything
    for base in kind.__mro__:
        rule = _RULES.get(base) or _RULES.get(f"{base.__module__}.{base.__qualname__}")
        if rule is None:
            continue
        same = all(getattr(kind, name, None) is getattr(base, name, None) for name in _METHODS)
        known = rule.knows(set(rule.parameters(module)))
        return rule if same and known else None
    return None
