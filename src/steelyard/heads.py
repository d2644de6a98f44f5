"""Heads: the part of the model that belongs to one task.

A head is made by a factory ``(width of the features, number of outputs) -> module``. A task names one
(``linear``, ``mlp``, ``token``, or what `register` added) or brings its own:

    Task("topic", "classification", data, head=heads.mlp(hidden=256))
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from steelyard.errors import SteelyardError
from steelyard.model import HEADS, mlp_head, unknown

if TYPE_CHECKING:
    from steelyard.tasks import HeadFactory

__all__ = ["get", "linear", "mlp", "names", "register", "token"]


def linear(width: int, outputs: int) -> nn.Module:
    """One linear layer: ``[N, width]`` to ``[N, outputs]``."""
    return nn.Linear(width, outputs)


def token(width: int, outputs: int) -> nn.Module:
    """One linear layer on every token: ``[N, L, width]`` to ``[N, L, outputs]``."""
    return nn.Linear(width, outputs)


def mlp(hidden: int | None = None) -> HeadFactory:
    """Linear, ReLU, linear, with a hidden layer of this size (the features' own by default)."""
    if hidden is not None and hidden < 1:
        raise SteelyardError(f"an mlp head needs a hidden layer of at least 1, not {hidden}")
    return partial(mlp_head, hidden=hidden)


def names() -> list[str]:
    """The heads that a task can name."""
    return sorted(HEADS)


def get(name: str) -> HeadFactory:
    """A head's factory by name."""
    if name not in HEADS:
        raise unknown("head", name, names())
    return HEADS[name]


def register(name: str, factory: HeadFactory) -> HeadFactory:
    """Makes a head available by name; a name is given once."""
    if HEADS.setdefault(name, factory) is not factory:
        raise SteelyardError(f"there is a head {name!r} already; give yours another name")
    return factory
