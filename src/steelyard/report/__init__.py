"""The page of a run: it reads the run folder and nothing else."""

from steelyard.report.page import write

__all__ = ["write"]
