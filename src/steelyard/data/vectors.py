"""Pretrained word vectors: where they are, and which words they know."""

from __future__ import annotations

from pathlib import Path

from steelyard.data.paths import place
from steelyard.encoders.vectors import words_in

PREFIX = "suite:"


def vectors_file(vectors: str, base: Path | str) -> Path:
    """The file that ``[features] vectors`` names; ``suite:glove`` is fetched and checked first.

    Args:
        vectors: A GloVe text file, or ``suite:glove``.
        base: The folder that a relative path starts from.
    """
    if vectors.startswith(PREFIX):
        from steelyard.data.suites import pretrained

        return pretrained(vectors)
    return place(vectors, base)


def words_of(vectors: str | None, base: Path) -> frozenset[str]:
    """The words that a file of vectors knows."""
    return frozenset() if vectors is None else frozenset(words_in(vectors_file(vectors, base)))
