"""The loop, and all its plumbing: batches, metrics, optimisers, checkpoints, run folders."""

from steelyard.training.metrics import METRICS, evaluate
from steelyard.training.run import Run, fit, load
from steelyard.training.settings import Paradigm, Training

__all__ = ["METRICS", "Paradigm", "Run", "Training", "evaluate", "fit", "load"]
