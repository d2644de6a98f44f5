"""The one error that a user's own input can cause: it is told in a line and costs no traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SteelyardError(ValueError):
    """What is wrong with the user's input, where, and what to do about it, in one line.

    The command line prints it and exits with status 2; in Python it is an ordinary ``ValueError``.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` for a misspelt name, or nothing when no known name is near."""
    near = get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""
