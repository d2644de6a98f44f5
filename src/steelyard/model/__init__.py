"""The shared model: one encoder call for the rows of all tasks in a step, and a head per task."""

from steelyard.model.alignment import Alignment
from steelyard.model.names import HEADS, build_head, mlp_head, unknown
from steelyard.model.reading import evaluating, masked_mean
from steelyard.model.shared import SharedModel, TaskLosses

__all__ = [
    "HEADS",
    "Alignment",
    "SharedModel",
    "TaskLosses",
    "build_head",
    "evaluating",
    "masked_mean",
    "mlp_head",
    "unknown",
]
