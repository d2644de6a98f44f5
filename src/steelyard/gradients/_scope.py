"""The parameters that gradients are taken by, under one name each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from steelyard.gradients._exact import sum_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Scope:
    """Named trainable parameters of a module.

    A parameter that has several names (tied weights) goes by the first of `named_parameters()`; the others are
    understood. Frozen parameters are left out.

    Args:
        module: the module.
        names: the parameters wanted; all trainable ones when None.
    """

    def __init__(self, module: nn.Module, names: Iterable[str] | None = None) -> None:
        first = dict(module.named_parameters())
        canonical = {id(value): name for name, value in first.items()}
        every = module.named_parameters(remove_duplicate=False)
        self._alias = {name: canonical[id(value)] for name, value in every}
        wanted = list(first) if names is None else list(names)
        if isinstance(names, str):
            raise TypeError("parameters takes an iterable of parameter names, not one string")
        missing = [name for name in wanted if name not in self._alias]
        if missing:
            raise ValueError(f"no such parameters in {type(module).__name__}: {', '.join(missing)}")
        chosen = {self._alias[name] for name in wanted}
        self.parameters = {name: value for name, value in first.items() if name in chosen and value.requires_grad}
        self.ids = {id(value): name for name, value in self.parameters.items()}
        self.shapes = {name: value.shape for name, value in self.parameters.items()}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of sums over all parameters: float64 if any of them is."""
        kinds = {sum_dtype(value.dtype) for value in self.parameters.values()}
        return torch.float64 if torch.float64 in kinds else torch.float32

    def names(self, names: Iterable[str]) -> set[str]:
        """Names of parameters as the scope says them; those outside it are refused."""
        given = list(names)
        missing = [name for name in given if self._alias.get(name) not in self.parameters]
        if missing:
            raise ValueError(
                f"not in the parameter scope: {', '.join(missing)}; the scope has the trainable parameters that "
                "record(..., parameters=...) named, by default all of the module's"
            )
        return {self._alias[name] for name in given}

    def direction(self, direction: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A direction under the scope's names, detached and checked for shape."""
        self.names(direction)
        found: dict[str, Tensor] = {}
        for name, value in direction.items():
            own = self._alias[name]
            if value.shape != self.shapes[own]:
                raise ValueError(
                    f"direction[{name!r}] has shape {tuple(value.shape)}, the parameter {tuple(self.shapes[own])}"
                )
            if name == own or own not in found:  # a tied parameter given twice counts once, under its first name
                found[own] = value.detach()
        return found
