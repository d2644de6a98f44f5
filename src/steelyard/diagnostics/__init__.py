"""What can be said of tasks before, or without, learning the target: how far sources are from it."""

from steelyard.diagnostics.distance import Distance, Estimate, task_distances

__all__ = ["Distance", "Estimate", "task_distances"]
