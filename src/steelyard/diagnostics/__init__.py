"""What can be said of tasks before, or without, learning the target: how far and how unlike sources are."""

from steelyard.diagnostics.advice import Advice, SourceAdvice, advise
from steelyard.diagnostics.capacity import Capacity, capacity_search
from steelyard.diagnostics.covariance import Moments, Similarities, covariance_similarity, similarity
from steelyard.diagnostics.distance import Distance, Estimate, task_distances

__all__ = [
    "Advice",
    "Capacity",
    "Distance",
    "Estimate",
    "Moments",
    "Similarities",
    "SourceAdvice",
    "advise",
    "capacity_search",
    "covariance_similarity",
    "similarity",
    "task_distances",
]
