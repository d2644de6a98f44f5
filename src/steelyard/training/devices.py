"""Devices, mixed precision, processes and trackers: all through Accelerate."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.training.settings import Training

_PACKAGES = {
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "comet_ml": "comet_ml",
    "aim": "aim",
    "clearml": "clearml",
    "dvclive": "dvclive",
}


def accelerator(training: Training, folder: Path | None) -> Any:
    """An Accelerator for these settings."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs

    for tracker in training.trackers:
        _check_tracker(tracker)
    state = AcceleratorState._shared_state
    if state and (state.get("_mixed_precision"), bool(state.get("_cpu"))) != (
        training.precision,
        training.device == "cpu",
    ):
        # One process, two runs of different precision: Accelerate keeps the first one's settings unless told.
        AcceleratorState._reset_state()
    # A step need not use every head, nor an encoder every parameter. Gradients lie where they are exchanged: no copy.
    several = DistributedDataParallelKwargs(find_unused_parameters=True, gradient_as_bucket_view=True)
    found = Accelerator(
        kwargs_handlers=[several],
        cpu=training.device == "cpu",
        mixed_precision=training.precision,
        log_with=training.trackers or None,
        project_dir=str(folder) if folder else None,
    )
    if training.precision == "fp16" and found.device.type == "cpu":
        # Accelerate would train in full precision and not say so.
        raise SteelyardError("precision = 'fp16' needs an accelerator; on the CPU use 'bf16' or 'no'")
    return found


def _check_tracker(name: str) -> None:
    if name not in _PACKAGES:
        hint = did_you_mean(name, _PACKAGES) or f"choose {', '.join(_PACKAGES)}"
        raise SteelyardError(f"there is no tracker {name!r}; {hint}")
    if importlib.util.find_spec(_PACKAGES[name]) is None:
        raise SteelyardError(f"tracker {name!r} is not installed: pip install {_PACKAGES[name].replace('_', '-')}")
