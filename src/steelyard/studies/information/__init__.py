"""The studies of information transfer (Wu, Zhang and Ré, ICLR 2020): its figures, redone."""

from steelyard.studies.information.alignment import AlignmentFigure
from steelyard.studies.information.capacity import CapacityFigure
from steelyard.studies.information.cosine import CosineFigure
from steelyard.studies.information.covariance import CovarianceFigure
from steelyard.studies.information.noise import NoiseFigure

__all__ = ["AlignmentFigure", "CapacityFigure", "CosineFigure", "CovarianceFigure", "NoiseFigure"]
