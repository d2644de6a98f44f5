"""SVD weights (Wu, Zhang and Ré, ICLR 2020, Algorithm 2)."""

from steelyard.methods.svd.method import SVD

__all__ = ["SVD"]
