"""How much memory a run takes."""

from __future__ import annotations

import re
from pathlib import Path

from steelyard.training.memory import peak_mb

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


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
