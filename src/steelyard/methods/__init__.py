"""The methods, one file per published algorithm, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.methods.aang import AANG, Tartan
from steelyard.methods.adversarial import Adversarial
from steelyard.methods.alignment import Alignment
from steelyard.methods.alphavil import AlphaVIL
from steelyard.methods.autolambda import AutoLambda
from steelyard.methods.bandit import Bandit
from steelyard.methods.base import Method, Options
from steelyard.methods.cagrad import CAGrad
from steelyard.methods.combination import Combination, Composed, pair
from steelyard.methods.diw import DIW
from steelyard.methods.dwa import DWA
from steelyard.methods.famo import FAMO
from steelyard.methods.fixed import Joint, Ramp, Random, Single, Uniform
from steelyard.methods.gradnorm import GradNorm
from steelyard.methods.gradvac import GradVac
from steelyard.methods.imtl_g import IMTLG
from steelyard.methods.imtl_l import IMTLL
from steelyard.methods.job import Job, Probe, Weights
from steelyard.methods.metaweighting import MetaWeighting
from steelyard.methods.mgda import MGDA, MGDAUB
from steelyard.methods.nash import Nash
from steelyard.methods.own_loop import OwnLoop
from steelyard.methods.pcgrad import PCGrad
from steelyard.methods.svd import SVD
from steelyard.methods.target_first import TargetFirst
from steelyard.methods.tawt import TAWT
from steelyard.methods.tchebycheff import Tchebycheff
from steelyard.methods.uncertainty import Uncertainty
from steelyard.methods.upgrad import UPGrad

_REGISTRY: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Makes a method known by its name; usable as a decorator on your own."""
    if method.name in _REGISTRY and _REGISTRY[method.name] is not method:
        raise SteelyardError(f"a method called {method.name!r} exists already; choose another name")
    _REGISTRY[method.name] = method
    return method


ALIASES = {"rlw": "random"}
"""Other names by which methods are known."""


def names() -> list[str]:
    """The names of all methods."""
    return list(_REGISTRY)


def get(name: str) -> type[Method]:
    """The method of that name; ``tawt+pcgrad`` is tawt's weights with pcgrad's combination of the gradients."""
    if "+" in name and name not in _REGISTRY:
        weighing, _, combining = name.partition("+")
        return pair(get(weighing.strip()), get(combining.strip()))
    name = name if name in _REGISTRY else ALIASES.get(name, name)
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
    Tartan,
    AANG,
    Alignment,
    SVD,
    AlphaVIL,
    DIW,
    MGDA,
    MGDAUB,
    PCGrad,
    GradVac,
    CAGrad,
    IMTLG,
    Nash,
    UPGrad,
    TargetFirst,
    MetaWeighting,
    Uncertainty,
    IMTLL,
    GradNorm,
    DWA,
    FAMO,
    Bandit,
    Tchebycheff,
    Adversarial,
    AutoLambda,
):
    register(_method)


def build(given: str | Method | Mapping[str, Any]) -> Method:
    """A method from what a user has written.

    Args:
        given: A name; a method; or a mapping, either with ``name`` and the method's options, or with what weighs the
            losses as ``weights`` and what combines their gradients as ``gradients``, each a name or a mapping with
            ``name`` and options. One of the two may be missing.
    """
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        return get(given)()
    table = dict(given)
    if "name" in table or not table.keys() & {"weights", "gradients"}:
        return get(table.pop("name", "uniform"))(**table)
    sides = {side: _side(side, table.pop(side)) for side in ("weights", "gradients") if side in table}
    if table:
        raise SteelyardError(
            f"method: beside weights and gradients there is no {next(iter(table))!r}; put options into the side that "
            'they belong to: weights = {name = "tawt", eta = 2.0}'
        )
    if len(sides) == 1:
        ((kind, options),) = sides.values()
        return kind(**options)
    kinds, options = zip(*(sides[side] for side in ("weights", "gradients")), strict=True)
    return pair(*kinds)(*options)


def _side(side: str, given: Any) -> tuple[type[Method], dict[str, Any]]:
    """One side of a composition: the method, and its options."""
    if isinstance(given, str):
        return get(given), {}
    if isinstance(given, Method):
        return type(given), given.options.model_dump(exclude_unset=True)
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        return get(given["name"]), {key: value for key, value in given.items() if key != "name"}
    raise SteelyardError(f"method: {side} is a method's name, or a table with its name and options, not {given!r}")


__all__ = [
    "Combination",
    "Composed",
    "Job",
    "Method",
    "Options",
    "OwnLoop",
    "Probe",
    "Weights",
    "build",
    "get",
    "names",
    "register",
]
