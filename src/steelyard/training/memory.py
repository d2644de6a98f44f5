"""How much memory a process has taken."""

from __future__ import annotations

import resource
import sys


def peak_mb() -> float:
    """The most memory in MB that this process has held since it began, Python and torch included."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, else kB
    return round(most / (2**20 if sys.platform == "darwin" else 2**10), 1)
