"""Second-order products: Hessian times vector, damped conjugate gradients, and slopes in forward mode.

TAWT's hypergradient needs −∇L_0ᵀ H⁻¹ ∇L_t. No matrix is formed: `conjugate_gradients` solves (H + λI)x = b from
products alone. For the reduced Hessian H_φφ − H_φf H_ff⁻¹ H_fφ (the heads f re-optimise as the body φ moves) take
body and heads together as the parameters and a right-hand side that is zero at the heads: the body's part of the
solution is the reduced inverse times the right-hand side, by block elimination.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steelyard.gradients._errors import UnsupportedGraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Vector = dict[str, Tensor]


@contextmanager
def explained_second_derivative() -> Iterator[None]:
    """Say what to do where an operator has no second derivative."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not any(sign in text for sign in ("not implemented", "once_differentiable", "double backward", "compiled")):
            raise
        raise UnsupportedGraphError(
            f"an operator of this graph has no second derivative ({text.splitlines()[0]}). Build the model with "
            "attn_implementation='eager' or run its forward under "
            "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), run recurrent layers under "
            "torch.backends.mkldnn.flags(enabled=False), do not compile it; or ask for method='exact'"
        ) from error


class HessianProduct:
    """v ↦ ∇²L v over named parameters; the first backward is shared by all products.

    Args:
        loss: a scalar.
        parameters: the tensors to differentiate by, by name.

    Raises:
        UnsupportedGraphError: if an operator has no second derivative.
    """

    def __init__(self, loss: Tensor, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        with explained_second_derivative():
            found = torch.autograd.grad(
                loss, list(parameters.values()), create_graph=True, allow_unused=True, materialize_grads=True
            )
        self._gradient = dict(zip(parameters, found, strict=True))

    @property
    def gradient(self) -> Vector:
        """∇L by name, detached."""
        return {name: grad.detach() for name, grad in self._gradient.items()}

    def __call__(self, direction: Mapping[str, Tensor]) -> Vector:
        """∇²L v; parameters that the direction lacks count as zero."""
        pairs = [
            (grad, direction[name]) for name, grad in self._gradient.items() if name in direction and grad.requires_grad
        ]
        if not pairs:
            return {name: torch.zeros_like(value) for name, value in self._parameters.items()}
        with explained_second_derivative():
            found = torch.autograd.grad(
                [grad for grad, _ in pairs],
                list(self._parameters.values()),
                [v for _, v in pairs],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        return dict(zip(self._parameters, found, strict=True))


def hessian_vector_product(loss: Tensor, parameters: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Vector:
    """∇²L v by name, for a scalar loss. For many products with one loss keep a `HessianProduct`."""
    return HessianProduct(loss, parameters)(direction)


@dataclass(frozen=True)
class Solution:
    """What conjugate gradients found.

    Attributes:
        x: the solution by name.
        iterations: how many products it took.
        residual: ‖b − (A + λI)x‖ / ‖b‖.
        converged: whether the residual is below the tolerance.
        indefinite: whether it stopped at a direction of non-positive curvature; more damping helps.
    """

    x: Vector
    iterations: int
    residual: float
    converged: bool
    indefinite: bool


def conjugate_gradients(
    product: Callable[[Vector], Mapping[str, Tensor]],
    right: Mapping[str, Tensor],
    damping: float = 0.0,
    iterations: int = 100,
    tolerance: float = 1e-6,
) -> Solution:
    """Solve (A + λI)x = b for a symmetric A that is known by its products.

    Args:
        product: v ↦ A v by name, as `HessianProduct` gives it.
        right: b by name.
        damping: λ ≥ 0.
        iterations: the most products to spend.
        tolerance: stop when the residual is this fraction of ‖b‖.
    """
    x = {name: torch.zeros_like(value) for name, value in right.items()}
    rest = {name: value.detach().clone() for name, value in right.items()}
    step = {name: value.clone() for name, value in rest.items()}
    start = size = _dot(rest, rest)
    done, indefinite = 0, False
    while done < iterations and size > (tolerance**2) * start:
        image = product(step)
        done += 1
        moved = {name: image[name].detach() + damping * step[name] for name in step}
        curvature = _dot(step, moved)
        if curvature <= 0:
            indefinite = True
            break
        length = size / curvature
        for name, along in step.items():
            x[name].add_(along, alpha=length)
            rest[name].sub_(moved[name], alpha=length)
        before, size = size, _dot(rest, rest)
        for name, along in step.items():
            along.mul_(size / before).add_(rest[name])
    residual = (size / start) ** 0.5 if start > 0 else 0.0
    return Solution(x, done, residual, residual <= tolerance, indefinite)


def _dot(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return float(sum(torch.sum(first[name].double() * second[name].double()) for name in first))


def forward_slopes(
    function: Callable[[Vector], Tensor], parameters: Mapping[str, Tensor], direction: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The losses and their slopes ⟨∇L_t, v⟩ for all tasks by forward mode, in one pass and without a backward.

    Useful with shared inputs and many tasks. Fused attention and mkldnn LSTM have no forward mode.

    Args:
        function: from parameters by name to losses Tensor[T], as with `torch.func.functional_call`.
        parameters: where to take the slopes, by name.
        direction: v by name; parameters that it lacks count as zero.

    Returns:
        Tensor[T] losses and Tensor[T] slopes.

    Raises:
        UnsupportedGraphError: if an operator has no forward mode.
    """
    place = {name: value.detach() for name, value in parameters.items()}
    tangent = {name: direction.get(name, torch.zeros_like(value)) for name, value in place.items()}
    try:
        with warnings.catch_warnings():
            # torch itself calls a function that it deprecates when forward mode is first used
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*torch.jit.script")
            found = torch.func.jvp(function, (place,), (tangent,))
    except (NotImplementedError, RuntimeError) as error:
        if "forward AD" not in str(error) and "forward-mode" not in str(error):
            raise
        raise UnsupportedGraphError(
            f"an operator has no forward mode ({str(error).splitlines()[0]}); use a tape's slopes instead, with "
            "method='exact' for shared inputs"
        ) from error
    return found[0], found[1]
