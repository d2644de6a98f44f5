"""What is learned, and from which rows: kinds of task, typed data roles, suites, batches."""

from steelyard.tasks.carving import carve
from steelyard.tasks.cutting import cut, taken
from steelyard.tasks.kinds import LOSSES, METRICS, SUMS, Kind, RowLoss, labelled
from steelyard.tasks.rows import IGNORE, Batch, Inputs, Member, Part, Ragged, Rows, View, collate
from steelyard.tasks.task import HeadFactory, Role, Spec, Suite, Task
from steelyard.tasks.units import Units

__all__ = [
    "IGNORE",
    "LOSSES",
    "METRICS",
    "SUMS",
    "Batch",
    "HeadFactory",
    "Inputs",
    "Kind",
    "Member",
    "Part",
    "Ragged",
    "Role",
    "RowLoss",
    "Rows",
    "Spec",
    "Suite",
    "Task",
    "Units",
    "View",
    "carve",
    "collate",
    "cut",
    "labelled",
    "taken",
]
