"""The page of a run, of several runs or of a study, and the same figures for notebooks. They read folders only."""

from steelyard.report.html import Figure
from steelyard.report.page import write
from steelyard.report.plots import figures

__all__ = ["Figure", "figures", "write"]
