"""Word vectors from text files."""

from __future__ import annotations

import gzip
import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

log = logging.getLogger(__name__)

DECIMAL = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")

SMALL = 0.1
"""The standard deviation of the vector of a word that the file lacks."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """A vector per word of a vocabulary.

    Attributes:
        values: ``[V, d]``.
        found: Which words the file has, ``[V]``.
    """

    values: Tensor
    found: Tensor

    @property
    def coverage(self) -> float:
        """The share of the words that the file has."""
        return float(self.found.float().mean())


def glove(path: str | PathLike[str], vocabulary: Sequence[str], seed: int = 0) -> Tensor:
    """Word vectors ``[V, d]`` of a vocabulary's words; see `read_vectors`, which also says what was found."""
    return read_vectors(path, vocabulary, seed).values


def read_vectors(path: str | PathLike[str], vocabulary: Sequence[str], seed: int = 0) -> Vectors:
    """Reads the vectors of a vocabulary's words from a file with lines ``word v1 v2 ...``.

    Args:
        path: The file, as published with GloVe or by word2vec (whose first line is skipped); ``.gz`` too.
        vocabulary: The words, as the file writes them (GloVe's 6B vectors are of lower-case words).
        seed: Of the small random vectors of words that the file lacks.

    Raises:
        SteelyardError: If the file cannot be read, a line is malformed, or none of the words is in it.
    """
    wanted: dict[str, list[int]] = {}
    for row, word in enumerate(vocabulary):
        wanted.setdefault(word, []).append(row)
    rows: dict[str, list[float]] = {}
    size = 0
    for place, word, size, entry in _entries(Path(path)):
        if word in wanted and word not in rows:
            rows[word] = _numbers(place, word, entry.rsplit(" ", size)[1:])
    if not size:
        raise SteelyardError(f"{path}: there are no vectors in this file; lines must read: word v1 v2 …")
    if not rows:
        raise SteelyardError(
            f"{path}: none of the {len(vocabulary)} words has a vector; lower-case them, or check the file"
        )
    values = torch.randn(len(vocabulary), size, generator=torch.Generator().manual_seed(seed)) * SMALL
    found = torch.zeros(len(vocabulary), dtype=torch.bool)
    for word, numbers in rows.items():
        values[wanted[word]] = torch.tensor(numbers)
        found[wanted[word]] = True
    vectors = Vectors(values, found)
    log.info("%s: %d of %d words have a vector (%.1f %%)", path, found.sum(), len(found), 100 * vectors.coverage)
    return vectors


def words_in(path: Path) -> Iterator[str]:
    """The words of a file of vectors."""
    return (word for _, word, _, _ in _entries(path))


def _entries(path: Path) -> Iterator[tuple[str, str, int, str]]:
    """Each line's place, word, number of values, and text; only wanted words are parsed further."""
    size = 0
    for number, line in enumerate(_lines(path), 1):
        entry, place = line.rstrip(), f"{path}, line {number}"
        spaces = entry.count(" ")
        if not entry:
            continue
        if number == 1 and spaces == 1 and entry.replace(" ", "").isdecimal():
            size = int(entry.split(" ")[1])
            continue
        size = size or spaces
        if spaces == size and size:
            yield place, entry.partition(" ")[0], size, entry
        elif spaces > size and not DECIMAL.fullmatch(entry.split(" ")[-size - 1]):
            yield place, entry.rsplit(" ", size)[0], size, entry  # a word may hold spaces
        else:
            raise SteelyardError(
                f"{place}: {spaces} numbers after the word instead of {max(size, 1)}; each line must "
                "read: word v1 v2 …, all with as many numbers (is the file complete?)"
            )


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file; only a line feed ends one, for some words hold other separators."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace", newline="\n") as file:
            yield from file
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SteelyardError(f"{path}: the word vectors cannot be read ({reason}); check the path") from error


def _numbers(place: str, word: str, fields: list[str]) -> list[float]:
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise SteelyardError(f"{place}: the vector of {word!r} holds something that is not a finite number; correct it")
    return numbers
