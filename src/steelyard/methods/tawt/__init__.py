"""TAWT: weights of tasks, groups of rows and single rows by how their gradients agree with the target's."""

from steelyard.methods.tawt.drop_in import TargetWeights
from steelyard.methods.tawt.method import TAWT
from steelyard.methods.tawt.options import TAWTOptions

__all__ = ["TAWT", "TAWTOptions", "TargetWeights"]
