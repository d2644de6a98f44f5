"""Steelyard: learn a target task that has few labels from everything else you have, and see what it was worth."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard import (
        data,
        diagnostics,
        encoders,
        estimators,
        functional,
        gradients,
        heads,
        integrations,
        methods,
        testing,
    )
    from steelyard.errors import SteelyardError
    from steelyard.model import SharedModel
    from steelyard.tasks import Kind, Ragged, Role, Rows, Suite, Task
    from steelyard.training import Run, Training, fit, load

__version__ = "0.1.0"

# Names are fetched from their rooms when they are first used, so that importing the package costs next to nothing.
_HOMES = {
    "Kind": "tasks",
    "Ragged": "tasks",
    "Role": "tasks",
    "Rows": "tasks",
    "Run": "training",
    "SharedModel": "model",
    "SteelyardError": "errors",
    "Suite": "tasks",
    "Task": "tasks",
    "Training": "training",
    "fit": "training",
    "load": "training",
}
_ROOMS = {
    "data",
    "diagnostics",
    "encoders",
    "estimators",
    "functional",
    "gradients",
    "heads",
    "integrations",
    "methods",
    "testing",
}

__all__ = [
    "Kind",
    "Ragged",
    "Role",
    "Rows",
    "Run",
    "SharedModel",
    "SteelyardError",
    "Suite",
    "Task",
    "Training",
    "data",
    "diagnostics",
    "encoders",
    "estimators",
    "fit",
    "functional",
    "gradients",
    "heads",
    "integrations",
    "load",
    "methods",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"steelyard.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"steelyard.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'steelyard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
