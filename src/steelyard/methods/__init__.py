"""The methods, one file per published algorithm, by name."""

from __future__ import annotations

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.methods.alignment import Alignment
from steelyard.methods.alphavil import AlphaVIL
from steelyard.methods.base import Job, Method, Options, Probe, Weights
from steelyard.methods.diw import DIW
from steelyard.methods.fixed import Joint, Ramp, Random, Single, Uniform
from steelyard.methods.tawt import TAWT

_REGISTRY: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Makes a method known by its name; usable as a decorator on your own."""
    if method.name in _REGISTRY and _REGISTRY[method.name] is not method:
        raise SteelyardError(f"a method called {method.name!r} exists already; choose another name")
    _REGISTRY[method.name] = method
    return method


def names() -> list[str]:
    """The names of all methods."""
    return list(_REGISTRY)


def get(name: str) -> type[Method]:
    """The method of that name."""
    if name not in _REGISTRY:
        hint = did_you_mean(name, _REGISTRY) or f"the methods are {', '.join(_REGISTRY)}"
        raise SteelyardError(f"there is no method {name!r}; {hint}")
    return _REGISTRY[name]


for _method in (
    Single,
    Uniform,
    Joint,
    Random,
    Ramp,
    TAWT,
    Alignment,
    AlphaVIL,
    DIW,
):
    register(_method)

__all__ = ["Job", "Method", "Options", "Probe", "Weights", "get", "names", "register"]
