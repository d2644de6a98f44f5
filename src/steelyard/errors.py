"""The one error that a user's own input can cause: it is told in a line and costs no traceback."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class SteelyardError(ValueError):
    """What is wrong with the user's input, where, and what to do about it, in one line.

    The command line prints it and exits with status 2; in Python it is an ordinary ``ValueError``.
    """


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Says in a line that a file of a run's folder is not what a run writes, whatever that brings up in reading it."""
    try:
        yield
    except SteelyardError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, OSError, csv.Error) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise SteelyardError(f"{path}: it is not what a run writes ({what}); get the folder anew") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` for a misspelt name, or nothing when no known name is near."""
    near = get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""
