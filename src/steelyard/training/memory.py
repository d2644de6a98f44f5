"""How much memory a process has taken."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def peak_mb() -> float:
    """The most memory in MB that this process has held since it began, Python and torch included."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, else kB
    return round(most / (2**20 if sys.platform == "darwin" else 2**10), 1)


class Peak:
    """The most memory that this process has held since the object was made, Python and torch included.

    Where the system cannot forget earlier peaks (anything but Linux), it is the most since the process began.
    """

    def __init__(self) -> None:
        try:
            _CLEAR.write_text("5", encoding="ascii")  # resets the high-water mark
            self._reset = True
        except OSError:
            self._reset = False

    @property
    def megabytes(self) -> float:
        """The peak so far."""
        if self._reset:
            found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"))
            if found:
                return round(int(found[1]) / 1024, 1)
        return peak_mb()
