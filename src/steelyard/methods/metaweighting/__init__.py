"""MetaWeighting: weights that lower every task's loss on rows that were kept out of training."""

from steelyard.methods.metaweighting.drop_in import QueryWeights
from steelyard.methods.metaweighting.method import MetaWeighting

__all__ = ["MetaWeighting", "QueryWeights"]
