"""αVIL: tasks trained alone from one start, their updates mixed for the target."""

from steelyard.methods.alphavil.drop_in import TaskUpdates
from steelyard.methods.alphavil.method import AlphaVIL

__all__ = ["AlphaVIL", "TaskUpdates"]
