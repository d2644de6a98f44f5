"""What a person is told who stops work that can be gone on with."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Stopped(KeyboardInterrupt):
    """Stopped by the user, with what to type to go on."""


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Turns Ctrl-C into a line that says how to go on: the same command, with the folder that was made for it."""
    try:
        yield
    except KeyboardInterrupt:
        given = sys.argv[1:] if "--out" in sys.argv else [*sys.argv[1:], "--out", str(folder)]
        raise Stopped(f"stopped; to go on: {shlex.join(['steelyard', *given])}") from None
