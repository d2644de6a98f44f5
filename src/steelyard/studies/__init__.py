"""Studies: the papers' tables and figures, and our own questions, as code on one resumable grid."""

from __future__ import annotations

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.studies.aang import AANGTable
from steelyard.studies.advice import AdviceStudy
from steelyard.studies.alphavil import AlphaVILTable
from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.comparing import compare
from steelyard.studies.comparison import Comparison
from steelyard.studies.controls import Controls
from steelyard.studies.flip_rate import FlipRate
from steelyard.studies.information import AlignmentFigure, CapacityFigure, CosineFigure, CovarianceFigure, NoiseFigure
from steelyard.studies.metaweighting import MetaWeightingFigures
from steelyard.studies.noisy_rows import NoisyRows
from steelyard.studies.results import Results
from steelyard.studies.running import minutes, run
from steelyard.studies.signals import Signals
from steelyard.studies.statistics import Estimate, estimate, holm, paired
from steelyard.studies.subjects import Subject, Tables
from steelyard.studies.tawt_layers import TAWTLayers
from steelyard.studies.tawt_tables import TAWTFixed, TAWTRatio, TAWTSize
from steelyard.studies.transfer import transfer
from steelyard.studies.transferred import Transfer

_REGISTRY: dict[str, type[Study]] = {}


def register(study: type[Study]) -> type[Study]:
    """Makes a study known by its name; usable as a decorator on your own."""
    if study.name in _REGISTRY and _REGISTRY[study.name] is not study:
        raise SteelyardError(f"a study called {study.name!r} exists already; choose another name")
    _REGISTRY[study.name] = study
    return study


def names() -> list[str]:
    """The names of all studies."""
    return list(_REGISTRY)


def get(name: str) -> type[Study]:
    """The study of that name."""
    if name not in _REGISTRY:
        hint = did_you_mean(name, _REGISTRY) or f"the studies are {', '.join(_REGISTRY)}"
        raise SteelyardError(f"there is no study {name!r}; {hint}")
    return _REGISTRY[name]


for _study in (
    AdviceStudy,
    Controls,
    AANGTable,
    AlphaVILTable,
    CovarianceFigure,
    CosineFigure,
    FlipRate,
    Signals,
    NoisyRows,
    TAWTLayers,
    TAWTRatio,
    TAWTSize,
    TAWTFixed,
    AlignmentFigure,
    NoiseFigure,
    CapacityFigure,
    MetaWeightingFigures,
):  # fmt: skip
    register(_study)

__all__ = [
    "Comparison",
    "Estimate",
    "Findings",
    "Results",
    "Settings",
    "Size",
    "Study",
    "Subject",
    "Table",
    "Tables",
    "Transfer",
    "compare",
    "estimate",
    "get",
    "holm",
    "minutes",
    "names",
    "paired",
    "register",
    "run",
    "transfer",
]
