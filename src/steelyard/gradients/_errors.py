"""What the engine refuses, each with its reason and a remedy."""

from __future__ import annotations


class GradientError(RuntimeError):
    """The engine cannot give an exact answer and says why; base of the refusals below."""


class RowsMixError(GradientError):
    """The output of one row depends on other rows, so a row's gradient is not its task's alone."""


class UnsupportedGraphError(GradientError):
    """The autograd graph hides parameters or cannot be differentiated in the way that was asked."""
